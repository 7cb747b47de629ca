package boardssh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh/sshtest"
)

// What each keyword of "ssh -G" means to us. A keyword that a newer ssh has belongs into
// one of them: what changes where or how a connection goes is never ignored.
var keywords = map[string]string{
	"followed": `addressfamily certificatefile ciphers connecttimeout globalknownhostsfile
		hashknownhosts host hostkeyalias hostname identitiesonly identityagent identityfile kexalgorithms macs port
		proxycommand proxyjump revokedhostkeys user userknownhostsfile`,
	"followed by ssh -G": `canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots
		canonicalizepermittedcnames include match tag`,
	"refused": `bindaddress bindinterface preferredauthentications proxyusefdpass pubkeyauthentication`,
	// Slipway proves host keys always, and by pinned keys and authorities alone.
	"stricter": `casignaturealgorithms checkhostip fingerprinthash hostkeyalgorithms knownhostscommand nohostauthenticationforlocalhost
		stricthostkeychecking updatehostkeys verifyhostkeydns visualhostkey requiredrsasize`,
	// Slipway logs in with keys of files and of the agent.
	"not offered": `addkeystoagent enablesshkeysign gssapiauthentication gssapidelegatecredentials gssapikexalgorithms
		gssapikeyexchange gssapirenewalforcesrekey gssapitrustdns gssapiclientidentity gssapiserveridentity hostbasedacceptedalgorithms hostbasedauthentication
		kbdinteractiveauthentication kbdinteractivedevices numberofpasswordprompts passwordauthentication pkcs11provider
		pubkeyacceptedalgorithms securitykeyprovider`,
	"harmless": `batchmode channeltimeout clearallforwardings compression connectionattempts controlmaster controlpath controlpersist
		dynamicforward enableescapecommandline escapechar exitonforwardfailure forkafterauthentication forwardagent forwardx11
		forwardx11timeout forwardx11trusted gatewayports ignoreunknown ipqos localcommand localforward loglevel logverbose
		obscurekeystroketiming permitlocalcommand permitremoteopen refuseconnection rekeylimit remotecommand remoteforward requesttty sendenv serveralivecountmax
		serveraliveinterval sessiontype setenv stdinnull streamlocalbindmask streamlocalbindunlink syslogfacility tcpkeepalive
		tunnel tunneldevice versionaddendum warnweakcrypto xauthlocation`,
}

func TestEachKeywordIsKnown(t *testing.T) {
	out, err := exec.Command("ssh", "-G", "-oBindAddress=::1", "-oBindInterface=lo", "-oPreferredAuthentications=publickey", "-oTag=x", "-oSetEnv=A=B", "board").Output()
	if err != nil {
		out, err = exec.Command("ssh", "-G", "board").Output() // an older one
	}
	if err != nil {
		t.Skip("ssh is missing: install the Debian package openssh-client")
	}
	var known []string
	for _, names := range keywords {
		known = append(known, strings.Fields(names)...)
	}
	for key := range parseConfig(string(out)) {
		if !slices.Contains(known, strings.ToLower(key)) {
			t.Errorf("ssh -G prints %s, and nothing says what that means to us", key)
		}
	}
}

func TestConnectionOfAConfig(t *testing.T) {
	got, err := parseConfig(`hostname a
addressfamily inet6
connecttimeout 7
ciphers aes256-ctr,chacha20-poly1305@openssh.com,none
macs hmac-md5,hmac-sha2-256
kexalgorithms diffie-hellman-group14-sha256,sntrup761x25519-sha512
preferredauthentications hostbased,publickey
`).toAddress(Address{Host: "a"}, "/nowhere")
	want := Address{
		Host: "a", Family: "inet6", ConnectTimeout: 7 * time.Second,
		Ciphers: []string{"chacha20-poly1305@openssh.com", "aes256-ctr"}, MACs: []string{"hmac-sha2-256"}, KeyExchanges: []string{"diffie-hellman-group14-sha256"},
	}
	slices.Sort(got.Ciphers)
	slices.Sort(want.Ciphers)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("address: %v (-want +got):\n%s", err, diff)
	}
}

func TestConnectionThatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"addressfamily x":                   "AddressFamily",
		"connecttimeout 0":                  "ConnectTimeout",
		"connecttimeout soon":               "ConnectTimeout",
		"bindaddress ::1":                   "TCP:%h:%p,bind=::1",
		"bindinterface usb0":                "TCP:%h:%p,so-bindtodevice=usb0",
		"ciphers 3des":                      "ciphers 3des",
		"macs umac-64@openssh.com":          "macs",
		"kexalgorithms x":                   "kexalgorithms",
		"pubkeyauthentication no":           "PubkeyAuthentication",
		"pubkeyauthentication false":        "PubkeyAuthentication",
		"preferredauthentications password": "PreferredAuthentications",
	} {
		_, err := parseConfig("hostname a\n"+text+"\n").toAddress(Address{Host: "a"}, "/nowhere")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error with %q", text, err, want)
		}
	}
}

// ssh ignores BindAddress and BindInterface if a proxy makes the connection.
func TestBindBehindAProxy(t *testing.T) {
	for _, proxy := range []string{"proxycommand nc %h %p", "proxyjump other"} {
		if _, err := parseConfig("hostname a\nbindaddress ::1\nbindinterface usb0\n"+proxy+"\n").toAddress(Address{Host: "a"}, "/nowhere"); err != nil {
			t.Errorf("%s: %v", proxy, err)
		}
	}
}

// The name is one that the C library knows, and Go's own resolver does not.
func TestNameOfTheSystem(t *testing.T) {
	if _, err := exec.LookPath("getent"); err != nil {
		t.Skip("getent is missing: install the Debian package libc-bin")
	}
	a := aliased(t, addressOf(sshtest.StartSSHD(t)))
	for host, want := range map[string]string{"127.1": "", "localhost": "", "no-such-board.invalid": "getent ahosts no-such-board.invalid finds none", "-x": "no address of"} {
		a.Host = host
		c, err := Dial(t.Context(), a)
		if err == nil {
			c.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Dial %s = %v; want %q", host, err, want)
		}
	}
}

// Name servers that are silent take getent longer than a connection may take.
func TestNameThatIsNotFoundInTime(t *testing.T) {
	if _, err := exec.LookPath("getent"); err != nil {
		t.Skip("getent is missing: install the Debian package libc-bin")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err := Address{Host: "board.local"}.lookUpHost(ctx)
	for _, want := range []string{"no address of board.local", "getent ahosts board.local", "next: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("lookup = %v; want %q in it", err, want)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("lookup = %v; want the deadline in its chain", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := (Address{Host: "board.local"}).lookUpHost(stopped); err != context.Canceled {
		t.Errorf("lookup that the user ends = %v; want that alone", err)
	}
}

func TestAddressOfAnotherFamily(t *testing.T) {
	a := Address{Host: "127.0.0.1", Family: "inet6"}
	if _, err := a.dialDirect(t.Context()); err == nil || !strings.Contains(err.Error(), "inet6") {
		t.Errorf("an address of another family: %v", err)
	}
}

func TestParseHosts(t *testing.T) {
	text := "fe80::1%lo STREAM board.local\nfe80::1%lo DGRAM\n\nnonsense STREAM\n10.0.0.7   STREAM board\n10.0.0.7 RAW"
	got, _ := Address{}.filterFamily(parseHosts(text))
	want := []netip.Addr{netip.MustParseAddr("fe80::1%lo"), netip.MustParseAddr("10.0.0.7")}
	if !slices.Equal(got, want) {
		t.Errorf("parseHosts = %v; want %v", got, want)
	}
	for i := range maxAddresses {
		text = fmt.Sprintf("fe80::%d STREAM\n", i+2) + text
	}
	if got, err := (Address{Family: "inet"}).filterFamily(parseHosts(text)); err != nil || !slices.Equal(got, want[1:]) {
		t.Errorf("behind %d of another family: %v, %v; want %v", maxAddresses, got, err, want[1:])
	}
}

func FuzzParseHosts(f *testing.F) {
	f.Add("127.0.0.1       STREAM 127.1\n::1 STREAM x\n")
	f.Fuzz(func(t *testing.T, text string) {
		if all, _ := (Address{}).filterFamily(parseHosts(text)); len(all) > maxAddresses {
			t.Errorf("%d addresses", len(all))
		}
	})
}

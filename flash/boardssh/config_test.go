package boardssh

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/run"
)

func TestConfigMakesAnAddress(t *testing.T) {
	home := t.TempDir()
	key, known := filepath.Join(home, "key"), filepath.Join(home, "known")
	t.Setenv("WHICH", "key")
	for _, f := range []string{key, known, filepath.Join(home, "10.0.0.7-field"), filepath.Join(home, "hardware.pub")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := parseConfig(`host board
user field
hostname 10.0.0.7
port 2222
hostkeyalias serial-0042
identityfile ~/key
identityfile ~/missing
identityfile ~/${WHICH}
identityfile %d/%h-%r
identityfile ~/hardware
certificatefile ~/10.0.0.7-field
identityagent ${WHICH}/agent
identitiesonly yes
userknownhostsfile ~/known2 ~/known
globalknownhostsfile `+known+` none
hashknownhosts yes
revokedhostkeys ~/revoked
proxycommand nc -X 5 %h %p 100%% "$USER" %n
`).toAddress(Address{Host: "board"}, home)
	want := Address{
		Host: "10.0.0.7", Port: 2222, User: "field", HostKeyAlias: "serial-0042",
		Identities: []string{key, key, filepath.Join(home, "10.0.0.7-field"), filepath.Join(home, "hardware")},
		KnownHosts: []string{known, known}, PinFile: filepath.Join(home, "known2"), HashNames: true, Revoked: filepath.Join(home, "revoked"),
		Certificates: []string{filepath.Join(home, "10.0.0.7-field")}, Agent: "key/agent", IdentitiesOnly: true,
		ProxyCommand: `nc -X 5 10.0.0.7 2222 100% "$USER" board`,
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("address: %v (-want +got):\n%s", err, diff)
	}
}

func TestConfigThatIsRefused(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "named no host"},
		{"no host", "user root\n", "named no host"},
		{"port", "hostname a\nport 0\n", "between 1 and 65535"},
		{"token", "hostname a\nidentityfile ~/%Q\n", "%Q"},
		{"end", "hostname a\nidentityfile ~/x%\n", "single %"},
		{"variable", "hostname a\nidentityfile ${NO_SUCH_VARIABLE}/x\n", "NO_SUCH_VARIABLE"},
		{"descriptors", "hostname a\nproxycommand x\nproxyusefdpass yes\n", "ProxyUseFdpass"},
		{"host that is a command", "hostname a;id\nproxycommand nc %h\n", "a;id"},
		{"user that is a command", "hostname a\nuser $(id)\nproxycommand nc %r\n", "$(id)"},
		{"host that is an option", "hostname -x\nproxycommand nc %h\n", "-x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseConfig(tt.text).toAddress(Address{Host: "a"}, "/nowhere"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("address = %v; want an error with %q", err, tt.want)
			}
		})
	}
}

// sshConfig makes text the user's configuration of ssh, for one test. ssh finds the
// home folder by itself, so it is called by another name with -F.
func sshConfig(t *testing.T, text string) {
	t.Helper()
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("ssh is missing: install the Debian package openssh-client")
	}
	dir := t.TempDir()
	script := "#!/bin/sh\nexec " + ssh + " -F " + filepath.Join(dir, "config") + " \"$@\"\n"
	for name, content := range map[string]string{"config": text, "ssh": script} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("HOME", dir)
}

func TestResolveJumps(t *testing.T) {
	sshConfig(t, `
Host board
	HostName 10.0.0.7
	ProxyJump rack,me@dpu:2222
Host rack
	HostName 192.0.2.1
	User gatekeeper
	ProxyJump edge
Host dpu
	ProxyJump never-asked
`)
	got, err := Resolve(t.Context(), "root@board")
	if err != nil {
		t.Fatal(err)
	}
	var route []string
	for a := &got; a != nil; a = a.Via {
		route = append(route, a.String())
	}
	edge, err := Address{Host: "edge"}.fillDefaults()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"root@10.0.0.7:22", "me@dpu:2222", "gatekeeper@192.0.2.1:22", edge.String()}
	if diff := cmp.Diff(want, route); diff != "" {
		t.Errorf("the route to the board, backwards (-want +got):\n%s", diff)
	}
}

func TestResolveRefusesJumps(t *testing.T) {
	sshConfig(t, `
Host a
	ProxyJump b
Host b
	ProxyJump a
Host own
	ProxyJump own
Host long
	ProxyJump 1,2,3,4,5,6,7,8,9
`)
	tests := []struct{ host, want string }{
		{"a", "circle: a, then b, then a"},
		{"own", "jumphost loop via own"},
		{"long", "more than 8 jump hosts"},
	}
	for _, tt := range tests {
		if a, err := Resolve(t.Context(), tt.host); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Resolve(%q) = %v, %v; want an error with %q", tt.host, a, err, tt.want)
		}
	}
}

func TestResolveQueriesSSH(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("ssh is missing: install the Debian package openssh-client")
	}
	got, err := Resolve(t.Context(), "somebody@127.0.0.1:2022")
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != "127.0.0.1" || got.Port != 2022 || got.User != "somebody" {
		t.Errorf("Resolve = %+v", got)
	}
}

// The home folder is the one that ssh takes, even if HOME names another.
func TestResolveHome(t *testing.T) {
	file := "/../../../../../../etc/passwd"
	sshConfig(t, "IdentityFile %d"+file+"\n")
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(t.Context(), "board")
	if err != nil || !slices.Equal(got.Identities, []string{u.HomeDir + file}) {
		t.Errorf("Resolve = %+v, %v; want a key in %s", got, err, u.HomeDir)
	}
}

func TestResolveWithoutSSH(t *testing.T) {
	home := t.TempDir()
	t.Setenv("PATH", home)
	t.Setenv("HOME", home)
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	known := filepath.Join(home, ".ssh", "known_hosts")
	if err := os.WriteFile(known, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Resolve(t.Context(), "somebody@board")
	if err != nil {
		t.Fatal(err)
	}
	if got.Port != 22 || len(got.Identities) != 0 || len(got.KnownHosts) == 0 || got.KnownHosts[0] != known {
		t.Errorf("Resolve = %+v; want port 22, no identity, known hosts from %s", got, known)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add("hostname a\nport 22\nuser b\nidentityfile ~/.ssh/id\n")
	f.Add("hostname\nport -1\n")
	f.Add("hostname a\nproxyjump b,c@d:1,ssh://e\n")
	f.Add("hostname a'b\nproxycommand nc %h %p\n")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseConfig(s).toAddress(Address{Host: "a"}, "/nonexistent")
		if err == nil && (a.Host == "" || a.Port < 0 || a.Port > 65535) {
			t.Errorf("address of %q = %+v", s, a)
		}
	})
}

// Whatever the host is called, the shell must read the same words as without it.
func FuzzProxyCommand(f *testing.F) {
	f.Add("board", "root")
	f.Add("a b", "$x")
	f.Add("-o", "é")
	f.Fuzz(func(t *testing.T, host, user string) {
		text, err := newTokens(Address{Host: host, User: user, Port: 22}, host, "/").expandCommand("nc %h %r %p")
		if err != nil {
			return
		}
		words := strings.FieldsFunc(text, unicode.IsSpace)
		if len(words) != 4 || words[1] != host || words[2] != user || strings.ContainsAny(text, "'\"`$;&|<>()*?[]{}\\~#!\n") {
			t.Errorf("host %q, user %q: %q", host, user, text)
		}
	})
}

package boardssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// maxAddresses is how many of a name's addresses are tried.
const maxAddresses = 16

// leastTry is how long one address is tried at least, if others may follow.
const leastTry = 2 * time.Second

// dialDirect looks up the host and connects to its addresses one after the other, in the order of
// the system's resolver, until one accepts.
func (a Address) dialDirect(ctx context.Context) (net.Conn, error) {
	all, err := a.lookUpHost(ctx)
	if err != nil {
		return nil, err
	}
	var failed []error
	for i, ip := range all {
		conn, err := dialOne(ctx, netip.AddrPortFrom(ip, uint16(a.Port)), len(all)-i)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// dialOne connects to one address. left is how many addresses are still to be tried, this one
// included. If others follow, this one gets its share of ctx's time, but at least leastTry.
func dialOne(ctx context.Context, to netip.AddrPort, left int) (net.Conn, error) {
	if end, limited := ctx.Deadline(); limited && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(leastTry, time.Until(end)/time.Duration(left)))
		defer cancel()
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", to.String())
}

// ErrNoAddress means that the board's name has no address, so Slipway contacted no board.
var ErrNoAddress = errors.New("no address")

// lookUpHost returns the addresses of the host that Family allows. It runs getent, which uses all
// modules of nsswitch.conf, such as mDNS. Go's own resolver, used without getent, knows only files
// and DNS. It does not look up an IP address. Without an address, the error is ErrNoAddress.
func (a Address) lookUpHost(ctx context.Context) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		return a.filterFamily([]netip.Addr{ip})
	}
	if _, err := exec.LookPath("getent"); err != nil {
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", a.Host)
		if err != nil {
			return nil, fmt.Errorf("%w of %s: %w", ErrNoAddress, plaintext.Quote(a.Host), err)
		}
		return a.filterFamily(all)
	}
	cmd := run.Prepare(ctx, run.Command{Argv: []string{"getent", "ahosts", a.Host}})
	out, err := cmd.Output()
	switch ctx.Err() {
	case nil:
	case context.DeadlineExceeded:
		return nil, fmt.Errorf("%w of %s: getent ahosts %[2]s does not end: %w\nnext: cat /etc/resolv.conf  # see that its servers answer, or give the board's IP address", ErrNoAddress, plaintext.Quote(a.Host), context.Cause(ctx))
	default:
		return nil, context.Cause(ctx)
	}
	all := parseHosts(string(out))
	if err != nil || len(all) == 0 {
		return nil, fmt.Errorf("%w of %s: getent ahosts %[2]s finds none in what /etc/nsswitch.conf names\nnext: getent ahosts %[2]s  # see that the board is on and the name is right, or give its IP address", ErrNoAddress, plaintext.Quote(a.Host))
	}
	return a.filterFamily(all)
}

// filterFamily returns up to maxAddresses different ones of a.Family ("": both), or ErrNoAddress.
func (a Address) filterFamily(all []netip.Addr) ([]netip.Addr, error) {
	var some []netip.Addr
	for _, ip := range all {
		ip = ip.Unmap()
		if a.Family == "inet" && !ip.Is4() || a.Family == "inet6" && ip.Is4() || len(some) == maxAddresses || slices.Contains(some, ip) {
			continue
		}
		some = append(some, ip)
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("%w of %s is of AddressFamily %s", ErrNoAddress, plaintext.Quote(a.Host), a.Family)
	}
	return some, nil
}

// parseHosts returns the addresses in the output of getent ahosts, each as often as it occurs.
func parseHosts(text string) (all []netip.Addr) {
	for line := range strings.Lines(text) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if ip, err := netip.ParseAddr(first); err == nil {
			all = append(all, ip)
		}
	}
	return all
}

// setConnection fills in the address family, timeout and algorithms. It refuses unknown values.
func (c config) setConnection(a *Address) error {
	switch a.Family = c.lastValue("addressfamily"); a.Family {
	case "any":
		a.Family = ""
	case "", "inet", "inet6":
	default:
		return fmt.Errorf("AddressFamily %s is not known", a.Family)
	}
	if text := c.lastValue("connecttimeout"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 1 {
			return fmt.Errorf("ConnectTimeout %s is no number of seconds", text)
		}
		a.ConnectTimeout = time.Duration(seconds) * time.Second
	}
	return c.setAlgorithms(a)
}

// setAlgorithms sets the address's ciphers, MACs and key exchanges to those that the configuration
// and Slipway allow. No common one is an error. It uses weak ones only if no other is left. Without
// a setting, ssh lists its defaults, which contain all of Slipway's.
func (c config) setAlgorithms(a *Address) (err error) {
	var ours ssh.Config
	ours.SetDefaults()
	weak := ssh.InsecureAlgorithms()
	for _, n := range []struct {
		key        string
		ours, weak []string
		to         *[]string
	}{
		{"ciphers", ours.Ciphers, weak.Ciphers, &a.Ciphers},
		{"macs", ours.MACs, weak.MACs, &a.MACs},
		{"kexalgorithms", ours.KeyExchanges, weak.KeyExchanges, &a.KeyExchanges},
	} {
		text := c.lastValue(n.key)
		if text == "" {
			continue
		}
		allowed := strings.Split(text, ",")
		other := func(name string) bool { return !slices.Contains(allowed, name) }
		if *n.to = slices.DeleteFunc(n.ours, other); len(*n.to) == 0 {
			*n.to = slices.DeleteFunc(n.weak, other)
		}
		if len(*n.to) == 0 {
			return fmt.Errorf("%s %s: Slipway has none of them", n.key, text)
		}
	}
	return nil
}

// checkSupported refuses configurations without login by public key. On a direct connection it also
// refuses BindAddress and BindInterface: if Slipway ignored them, another board might answer.
func (c config) checkSupported() error {
	methods := c.lastValue("preferredauthentications")
	switch {
	case c.lastValue("pubkeyauthentication") == "no" || c.lastValue("pubkeyauthentication") == "false":
		return errors.New("PubkeyAuthentication is no, and Slipway logs in with keys alone")
	case methods != "" && !slices.Contains(strings.Split(methods, ","), "publickey"):
		return fmt.Errorf("PreferredAuthentications %s lacks publickey, and Slipway logs in with keys alone", methods)
	case c.lastValue("proxycommand")+c.lastValue("proxyjump") != "": // ssh ignores the next two then
	case c.lastValue("bindaddress") != "":
		return errors.New("BindAddress is set, which Slipway does not follow; write in its place ProxyCommand socat - TCP:%h:%p,bind=" + c.lastValue("bindaddress"))
	case c.lastValue("bindinterface") != "":
		return errors.New("BindInterface is set, which Slipway does not follow; write in its place ProxyCommand socat - TCP:%h:%p,so-bindtodevice=" + c.lastValue("bindinterface"))
	}
	return nil
}

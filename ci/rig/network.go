package rig

import (
	"context"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/run"
)

// A room that plays a board has these names. p is a port, l a place:
//
//	p <-> esw-p ... wire-p <-> uplink, of the bridge br0 in namespace lan-p <-> eth0 in namespace l
//
// Between esw-p and wire-p there is nothing: that is the switch, which a driver of DPDK's
// plays, or nobody.

// plug makes the ports, the places behind them and the lines between.
func (m *room) plug(ctx context.Context, r images.Rig) error {
	if err := m.all(ctx, [][]string{{"ip", "link", "set", "lo", "up"}, quiet(), forward(true), ownAddresses()}); err != nil {
		return err
	}
	for _, p := range r.Ports {
		if err := m.plugPort(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range r.Places {
		if err := m.plugPlace(ctx, p, gateway(r, p)); err != nil {
			return err
		}
	}
	return nil
}

func (m *room) plugPort(ctx context.Context, p images.RigPort) error {
	lan, esw, wire := "lan-"+p.Name, "esw-"+p.Name, "wire-"+p.Name
	if err := m.all(ctx, [][]string{
		{"ip", "netns", "add", lan},
		in(lan, quiet()...),
		in(lan, plainBridge()...),
		{"ip", "link", "add", p.Name, "type", "veth", "peer", "name", esw},
		{"ip", "link", "add", wire, "type", "veth", "peer", "name", "uplink", "netns", lan},
		{"ip", "-n", lan, "link", "add", "br0", "type", "bridge"},
		{"ip", "-n", lan, "link", "set", "dev", "uplink", "master", "br0", "up"},
		{"ip", "-n", lan, "link", "set", "br0", "up"},
		{"ip", "address", "add", p.Address, "dev", p.Name},
	}); err != nil {
		return err
	}
	for _, name := range []string{p.Name, esw, wire} {
		if err := m.bring(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *room) plugPlace(ctx context.Context, p images.RigPlace, gateway string) error {
	lan := "lan-" + p.Port
	if err := m.all(ctx, [][]string{
		{"ip", "netns", "add", p.Name},
		in(p.Name, quiet()...),
		in(p.Name, forward(false)...),
		{"ip", "link", "add", p.Name, "type", "veth", "peer", "name", "eth0"},
	}); err != nil {
		return err
	}
	if err := m.do(func() error { return wholeChecksums("eth0") }); err != nil {
		return err
	}
	return m.all(ctx, [][]string{
		{"ip", "link", "set", p.Name, "netns", lan},
		{"ip", "-n", lan, "link", "set", p.Name, "master", "br0", "up"},
		{"ip", "link", "set", "eth0", "netns", p.Name},
		{"ip", "-n", p.Name, "address", "add", p.Address, "dev", "eth0"},
		{"ip", "-n", p.Name, "link", "set", "lo", "up"},
		{"ip", "-n", p.Name, "link", "set", "eth0", "up"},
		{"ip", "-n", p.Name, "route", "add", "default", "via", gateway},
	})
}

// bring switches an interface on.
func (m *room) bring(ctx context.Context, name string) error {
	if err := m.do(func() error { return wholeChecksums(name) }); err != nil {
		return err
	}
	return m.runIn(ctx, run.Command{Argv: []string{"ip", "link", "set", name, "up"}})
}

func (m *room) all(ctx context.Context, lines [][]string) error {
	for _, argv := range lines {
		if err := m.runIn(ctx, run.Command{Argv: argv}); err != nil {
			return err
		}
	}
	return nil
}

func in(namespace string, argv ...string) []string {
	return append([]string{"ip", "netns", "exec", namespace}, argv...)
}

// quiet keeps IPv6 from sending packets of its own, which captures would hold. A kernel
// without IPv6 has no such key.
func quiet() []string { return []string{"sysctl", "-qew", "net.ipv6.conf.default.disable_ipv6=1"} }

// plainBridge keeps a bridge from checking and cutting packets of IP, as it does where
// br_netfilter is loaded: captures behind it would not hold what a driver sent.
func plainBridge() []string {
	return []string{"sysctl", "-qew", "net.bridge.bridge-nf-call-iptables=0"}
}

// forward is said everywhere: a new namespace does as the machine's first one, which may
// well forward.
func forward(on bool) []string {
	if on {
		return []string{"sysctl", "-qw", "net.ipv4.ip_forward=1"}
	}
	return []string{"sysctl", "-qw", "net.ipv4.ip_forward=0"}
}

// ownAddresses keeps the kernel from answering for a port's address on its wire too.
func ownAddresses() []string { return []string{"sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"} }

// gateway is the address of the port that a place is behind.
func gateway(r images.Rig, place images.RigPlace) string {
	for _, p := range r.Ports {
		if p.Name == place.Port {
			return netip.MustParsePrefix(p.Address).Addr().String() // Load has parsed it
		}
	}
	return ""
}

// wholeChecksums has the kernel compute the checksums of what it sends by an interface
// of this thread's network, and cut no packets later. A driver on a packet socket would
// see unfinished ones.
func wholeChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	off := struct{ command, value uint32 }{command: unix.ETHTOOL_STXCSUM}
	request := struct { // the kernel's struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&off)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("have the kernel compute the checksums of %s: %w", name, errno)
	}
	return nil
}

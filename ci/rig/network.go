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

// The namespaces of a board have these names. p is a port, l a place:
//
//	p <-> esw-p ... wire-p <-> uplink, of the bridge br0 in namespace lan-p <-> eth0 in namespace l
//
// Between esw-p and wire-p there is nothing: that is the switch, which a driver of DPDK
// simulates.

// createNetwork creates the ports, the places behind them and the links between.
func (m *namespaces) createNetwork(ctx context.Context, r images.Rig) error {
	if err := m.runAll(ctx, [][]string{{"ip", "link", "set", "lo", "up"}, disableIPv6(), setForwarding(true), limitARP()}); err != nil {
		return err
	}
	for _, p := range r.Ports {
		if err := m.createPort(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range r.Places {
		if err := m.createPlace(ctx, p, gatewayOf(r, p)); err != nil {
			return err
		}
	}
	return nil
}

func (m *namespaces) createPort(ctx context.Context, p images.RigPort) error {
	lan, esw, wire := "lan-"+p.Name, "esw-"+p.Name, "wire-"+p.Name
	if err := m.runAll(ctx, [][]string{
		{"ip", "netns", "add", lan},
		inNamespace(lan, disableIPv6()...),
		inNamespace(lan, disableBridgeFilter()...),
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
		if err := m.enableLink(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (m *namespaces) createPlace(ctx context.Context, p images.RigPlace, gateway string) error {
	lan := "lan-" + p.Port
	if err := m.runAll(ctx, [][]string{
		{"ip", "netns", "add", p.Name},
		inNamespace(p.Name, disableIPv6()...),
		inNamespace(p.Name, setForwarding(false)...),
		{"ip", "link", "add", p.Name, "type", "veth", "peer", "name", "eth0"},
	}); err != nil {
		return err
	}
	if err := m.runOnThread(func() error { return disableOffload("eth0") }); err != nil {
		return err
	}
	return m.runAll(ctx, [][]string{
		{"ip", "link", "set", p.Name, "netns", lan},
		{"ip", "-n", lan, "link", "set", p.Name, "master", "br0", "up"},
		{"ip", "link", "set", "eth0", "netns", p.Name},
		{"ip", "-n", p.Name, "address", "add", p.Address, "dev", "eth0"},
		{"ip", "-n", p.Name, "link", "set", "lo", "up"},
		{"ip", "-n", p.Name, "link", "set", "eth0", "up"},
		{"ip", "-n", p.Name, "route", "add", "default", "via", gateway},
	})
}

// enableLink switches an interface on.
func (m *namespaces) enableLink(ctx context.Context, name string) error {
	if err := m.runOnThread(func() error { return disableOffload(name) }); err != nil {
		return err
	}
	return m.runProgram(ctx, run.Command{Argv: []string{"ip", "link", "set", name, "up"}})
}

func (m *namespaces) runAll(ctx context.Context, lines [][]string) error {
	for _, argv := range lines {
		if err := m.runProgram(ctx, run.Command{Argv: argv}); err != nil {
			return err
		}
	}
	return nil
}

func inNamespace(namespace string, argv ...string) []string {
	return append([]string{"ip", "netns", "exec", namespace}, argv...)
}

// disableIPv6 returns the command that keeps IPv6 from sending packets of its own,
// which captures would hold. A kernel without IPv6 has no such key.
func disableIPv6() []string {
	return []string{"sysctl", "-qew", "net.ipv6.conf.default.disable_ipv6=1"}
}

// disableBridgeFilter returns the command that keeps a bridge from checking and cutting
// IP packets, as it does if br_netfilter is loaded: captures behind it would not hold
// what a driver sent.
func disableBridgeFilter() []string {
	return []string{"sysctl", "-qew", "net.bridge.bridge-nf-call-iptables=0"}
}

// setForwarding returns the command for IPv4 forwarding. Every namespace needs it: a
// new one copies the machine's first one, which may forward.
func setForwarding(on bool) []string {
	if on {
		return []string{"sysctl", "-qw", "net.ipv4.ip_forward=1"}
	}
	return []string{"sysctl", "-qw", "net.ipv4.ip_forward=0"}
}

// limitARP returns the command that keeps the kernel from answering for a port's
// address on its wire too.
func limitARP() []string { return []string{"sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1"} }

// gatewayOf returns the address of the port that a place is behind.
func gatewayOf(r images.Rig, place images.RigPlace) string {
	for _, p := range r.Ports {
		if p.Name == place.Port {
			return netip.MustParsePrefix(p.Address).Addr().String() // Load has parsed it
		}
	}
	return ""
}

// disableOffload makes the kernel compute the checksums of what it sends on an
// interface of this thread's network, and cut no packets later. A driver on a packet
// socket would see unfinished packets.
func disableOffload(name string) error {
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

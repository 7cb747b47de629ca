package images

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"slipway/layers/plaintext"
)

// DPU describes how the offload checks reach a board's ports and the machines behind them. It does
// not say whether the ports are hardware: checks take that from the driver's name.
type DPU struct {
	// EAL are the arguments of the DPDK environment. FRR splits them at spaces, so an argument
	// cannot contain one. testpmd wants two logical cores: --lcores 0@0,1@0 makes them of one.
	EAL []string `yaml:"eal" json:"eal"`
	// DOCA are the arguments of zebra's plugin for DOCA Flow: the interface of the device,
	// those of its representors, and counters=NUMBER.
	DOCA []string `yaml:"doca" json:"doca,omitempty"`
	// Ports are the network interfaces of the DPDK ports, by their numbers: the representor that
	// packets come in by, and the one that they leave by.
	Ports []string `yaml:"ports" json:"ports"`

	// From sends packets to Other's address, where they arrive without a rule. Those that a rule
	// moves arrive at To. Without From and To, checks skip traffic, without Other the second rule.
	//
	// From needs python3, To python3 and tcpdump, Other tcpdump, each as root. From's gateway is
	// the first port. Some packets come from an address beside From's. To needs a route to From.
	From  *Peer `yaml:"from" json:"from,omitempty"`
	To    *Peer `yaml:"to" json:"to,omitempty"`
	Other *Peer `yaml:"other" json:"other,omitempty"`
}

// Peer is a machine or namespace beside the board that packets come from or go to.
type Peer struct {
	// Run is put before a command for the board, to run it in another place: [ip, netns, exec,
	// vf0], or [ssh, host0]. If it is empty, the command runs on the board itself.
	Run       []string `yaml:"run" json:"run,omitempty"`
	Interface string   `yaml:"interface" json:"interface"`
	Address   string   `yaml:"address" json:"address"` // of the interface, IPv4
}

const (
	maxWords = 64
	dpuPorts = 8
)

var (
	noSpace       = plaintext.Regexp(`^[!-~]{1,512}$`)
	interfaceName = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,14}$`)
)

// validateDPU returns the first error in dpu with its place, nil for a board without dpu.
func (s Spec) validateDPU() error {
	if s.DPU == nil {
		return nil
	}
	if err := s.DPU.validate(); err != nil {
		return fmt.Errorf("%s: dpu.%w", s.PlaceOf("dpu"), err)
	}
	return nil
}

// validate returns the first error in the dpu keys of a board.yml, without "dpu." before the key.
func (d DPU) validate() error {
	if err := cmp.Or(checkEALArguments("eal", d.EAL), checkEALArguments("doca", d.DOCA)); err != nil {
		return err
	}
	if n := len(d.Ports); n < 2 || n > dpuPorts {
		return fmt.Errorf("ports: %d interfaces; want 2 to %d: where packets come in and where they leave", n, dpuPorts)
	}
	for _, name := range d.Ports {
		if !interfaceName().MatchString(name) {
			return fmt.Errorf("ports: %q is no name of a network interface", name)
		}
	}
	if (d.From == nil) != (d.To == nil) || d.Other != nil && d.From == nil {
		return errors.New("from: packets need where they come from (from) and where they must arrive (to); other goes with both")
	}
	return cmp.Or(d.From.validate("from"), d.To.validate("to"), d.Other.validate("other"))
}

// checkEALArguments returns an error for more than 64 arguments, or for one that DPDK or FRR would
// split, or take for the end of the EAL arguments.
func checkEALArguments(key string, words []string) error {
	bad := func(word string) bool { return !noSpace().MatchString(word) || word == "--" }
	switch i := slices.IndexFunc(words, bad); {
	case len(words) > maxWords:
		return fmt.Errorf("%s: more than %d arguments", key, maxWords)
	case i >= 0:
		return fmt.Errorf("%s: %q is no argument: one word each, without spaces, and no --", key, words[i])
	}
	return nil
}

// validate returns the first error in a peer's keys, none for nil. key is its name in the error.
func (p *Peer) validate(key string) error {
	if p == nil {
		return nil
	}
	if i := slices.IndexFunc(p.Run, func(w string) bool { return !noSpace().MatchString(w) }); i >= 0 || len(p.Run) > maxWords {
		return fmt.Errorf("%s.run: want at most %d words without spaces, like [ip, netns, exec, vf0]", key, maxWords)
	}
	if !interfaceName().MatchString(p.Interface) {
		return fmt.Errorf("%s.interface: %q is no name of a network interface", key, p.Interface)
	}
	if a, err := netip.ParseAddr(p.Address); err != nil || !a.Is4() {
		return fmt.Errorf("%s.address: %q is no IPv4 address, like 192.0.2.1", key, p.Address)
	}
	return nil
}

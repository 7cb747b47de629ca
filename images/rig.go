package images

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"slipway/layers/plaintext"
)

// Rig describes a board made of network namespaces here, in a userland of Debian packages.
type Rig struct {
	// Source says how the programs are built that Debian has not, each as a layer over
	// the userland; a later one sees what the earlier ones made.
	Source []RigSource `yaml:"source" json:"source"`
	Ports  []RigPort   `yaml:"ports" json:"ports"`
	Places []RigPlace  `yaml:"places" json:"places"`
}

// RigSource is something that is built in the userland.
type RigSource struct {
	Name string `yaml:"name" json:"name"`
	// From are folders and files of the clone, by their base names in the script's /source.
	From   []string `yaml:"from" json:"from"`
	Script string   `yaml:"script" json:"script"` // a file of the board's folder, for sh; it puts what it made into /made
	// Given is a variable for a folder, /source/given, that the script would otherwise fetch.
	Given string `yaml:"given" json:"given,omitempty"`
	// Network says that the script fetches something.
	Network bool `yaml:"network" json:"network,omitempty"`
}

// RigPort is a representor, with ends for its switch, esw-NAME, and its places, wire-NAME.
type RigPort struct {
	Name    string `yaml:"name" json:"name"`
	Address string `yaml:"address" json:"address"` // with the network's length: 192.0.2.254/24
}

// RigPlace is a machine, a namespace with an eth0, in the network behind a port.
type RigPlace struct {
	Name    string `yaml:"name" json:"name"`
	Port    string `yaml:"port" json:"port"`
	Address string `yaml:"address" json:"address"` // in the port's network
}

const maxRigParts = 64 // of each kind

var givenName = plaintext.Regexp(`^SLIPWAY_[A-Z][A-Z_]{0,40}$`)

// maxPortName leaves space for wire- before it: the kernel takes 15 bytes.
const maxPortName = 10

// validateRig returns the first error in rig, or in keys that a rig excludes, nil without rig.
func (s Spec) validateRig() error {
	if s.Rig == nil {
		return nil
	}
	err := s.Rig.validate()
	switch {
	case s.Debian == nil || s.Disk != nil || s.Machine != nil || len(s.Flash.Kinds) > 0:
		err = errors.New("a rig has a userland (debian), and neither disk, machine nor flash.kinds")
	case err == nil:
		err = s.checkSources()
	}
	if err != nil {
		return fmt.Errorf("%s: rig: %w", s.PlaceOf("rig"), err)
	}
	return nil
}

// checkSources checks that each source's script is in the board's folder, that its variable begins
// with SLIPWAY_, and that its paths do not lead out of the clone.
func (s Spec) checkSources() error {
	for _, source := range s.Rig.Source {
		if _, err := s.File(source.Script); err != nil || filepath.IsAbs(source.Script) {
			return fmt.Errorf("source %q: script: %q is no file beside board.yml", source.Name, source.Script)
		}
		if source.Given != "" && !givenName().MatchString(source.Given) {
			return fmt.Errorf("source %q: given: %q is no variable of ours; want SLIPWAY_ and capital letters", source.Name, source.Given)
		}
		for _, from := range source.From {
			if !filepath.IsLocal(from) {
				return fmt.Errorf("source %q: from: %q leads out of the clone", source.Name, from)
			}
		}
	}
	return nil
}

// validate checks the names, addresses and number of sources, ports and places.
func (r Rig) validate() error {
	if max(len(r.Source), len(r.Ports), len(r.Places)) > maxRigParts {
		return fmt.Errorf("more than %d sources, ports or places", maxRigParts)
	}
	networks := map[string]netip.Prefix{}
	for _, p := range r.Ports {
		network, err := netip.ParsePrefix(p.Address)
		if err != nil || !network.Addr().Is4() || !interfaceName().MatchString(p.Name) || len(p.Name) > maxPortName {
			return fmt.Errorf("port %q: want a name of at most %d letters and an address like 192.0.2.254/24", p.Name, maxPortName)
		}
		networks[p.Name] = network
	}
	for _, p := range r.Places {
		a, err := netip.ParsePrefix(p.Address)
		if err != nil || !interfaceName().MatchString(p.Name) || !networks[p.Port].Contains(a.Addr()) || a.Bits() != networks[p.Port].Bits() {
			return fmt.Errorf("place %q: want an address of the network of its port %q, with the same length", p.Name, p.Port)
		}
	}
	var all []string
	for _, s := range r.Source {
		if !interfaceName().MatchString(s.Name) {
			return fmt.Errorf("source %q: want a name of at most 15 letters and digits", s.Name)
		}
		all = append(all, "source "+s.Name)
	}
	for _, p := range r.Places {
		all = append(all, "place "+p.Name)
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) || len(networks) != len(r.Ports) {
		return errors.New("two sources, ports or places have one name")
	}
	return nil
}

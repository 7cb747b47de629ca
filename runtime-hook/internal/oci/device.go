package oci

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// HasNode reports whether the runtime makes the character device.
func (c Config) HasNode(path string, major, minor int64) bool {
	for _, d := range c.nodes {
		if d.Path == path {
			return (d.Type == "c" || d.Type == "u") && d.Major == major && d.Minor == minor
		}
	}
	return false
}

// Allows reports whether the rules let the container read and write the character
// device. If no rule covers it, the runtime's own rules deny it.
func (c Config) Allows(major, minor int64) bool {
	var read, write bool
	for _, r := range c.rules {
		if !ruleCovers(r, major, minor) {
			continue
		}
		// A later rule goes over an earlier one, for what it names.
		if strings.Contains(r.Access, "r") {
			read = r.Allow
		}
		if strings.Contains(r.Access, "w") {
			write = r.Allow
		}
	}
	return read && write
}

func ruleCovers(r specs.LinuxDeviceCgroup, major, minor int64) bool {
	all := r.Type == "" || r.Type == "a"
	return (all || r.Type == "c") && coversNumber(r.Major, major) && coversNumber(r.Minor, minor)
}

// coversNumber reports whether a rule's number covers n. No number, or runc's -1,
// covers all.
func coversNumber(rule *int64, n int64) bool { return rule == nil || *rule == -1 || *rule == n }

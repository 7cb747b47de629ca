package oci

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// HasNode reports whether the spec has the character device, so that the runtime makes it.
func (c Config) HasNode(path string, major, minor int64) bool {
	i := slices.IndexFunc(c.nodes, func(d specs.LinuxDevice) bool { return d.Path == path })
	return i >= 0 && (c.nodes[i].Type == "c" || c.nodes[i].Type == "u") && c.nodes[i].Major == major && c.nodes[i].Minor == minor
}

// Allows reports whether the spec's device rules let the container read and write the character
// device. A later rule overrides the access that it names. Without a rule, the answer is no.
func (c Config) Allows(major, minor int64) bool {
	var read, write bool
	for _, r := range c.rules {
		if !ruleCovers(r, major, minor) {
			continue
		}
		// A rule changes only the access that it names.
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

// coversNumber reports whether a rule's number covers n. No number, or runc's -1, covers all.
func coversNumber(rule *int64, n int64) bool { return rule == nil || *rule == -1 || *rule == n }

// deviceMounts is the folder in a container below which mounts name devices. Kubernetes lets a user
// choose a container's environment, but not always its mounts.
const deviceMounts = "/var/run/nvidia-container-devices/"

// deviceMount returns the device that m names, if m mounts the board's /dev/null: its path below
// deviceMounts. cdi/vendor/class/device becomes a CDI name. imex/... names no device.
func deviceMount(m specs.Mount) (name string, ok bool) {
	name, ok = strings.CutPrefix(path.Clean(m.Destination), deviceMounts)
	if !ok || path.Clean(m.Source) != "/dev/null" || strings.HasPrefix(name, "imex/") {
		return "", false
	}
	name, isCDI := strings.CutPrefix(name, "cdi/")
	if isCDI && !strings.Contains(name, "=") {
		// vendor/class/device
		if at := strings.LastIndexByte(name, '/'); at > 0 {
			name = name[:at] + "=" + name[at+1:]
		}
	}
	return name, true
}

// MissingGroup returns the group, by its id in the container, that its first process has to join to
// have the rights of the board's group gid. ok is false if it is a member, or cannot become one.
func (c Config) MissingGroup(gid uint32) (inside uint32, ok bool) {
	inside, ok = c.groupInside(gid)
	if !ok || inside == c.user.GID || slices.Contains(c.user.AdditionalGids, inside) {
		return 0, false
	}
	return inside, true
}

// RunsAsRoot reports whether the container's first process is its root.
func (c Config) RunsAsRoot() bool { return c.user.UID == 0 }

// groupInside returns the id of the board's group gid in the container; false if the spec does not
// map it. A container that joins another's user namespace does not say how that maps groups.
func (c Config) groupInside(gid uint32) (uint32, bool) {
	if !c.UserNamespace {
		return gid, true
	}
	for _, m := range c.gids {
		if gid >= m.HostID && gid-m.HostID < m.Size {
			return m.ContainerID + gid - m.HostID, true
		}
	}
	return 0, false
}

package oci

import "slices"

// MissingGroup returns the group, by its id in the container, that the container's first process
// has to join to have the rights of the board's group gid. ok is false if the process is a member
// already, or cannot become one.
func (c Config) MissingGroup(gid uint32) (inside uint32, ok bool) {
	inside, ok = c.groupInside(gid)
	if !ok || inside == c.user.GID || slices.Contains(c.user.AdditionalGids, inside) {
		return 0, false
	}
	return inside, true
}

// RunsAsRoot reports whether the container's first process is its root.
func (c Config) RunsAsRoot() bool { return c.user.UID == 0 }

// groupInside returns the id of the board's group gid in the container. A container
// that joins another's user namespace does not say how that maps groups.
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

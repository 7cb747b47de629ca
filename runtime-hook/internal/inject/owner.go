package inject

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// owner is the root user of a container with its own user namespace. What the hook
// makes in such a container, it makes with that root's rights and no more:
//   - the container's own file systems (its /dev, an idmapped image) do not know
//     the board's root and take nothing from it (EOVERFLOW);
//   - a link of the image may lead into a folder of the board that is mounted in
//     the container, where its root must not be able to make things.
//
// Only the thread's fsuid, fsgid and capabilities change, and only while a name
// is made. All other ids stay the board's, so no process of the container may
// signal or trace the hook. All numbers are those of the hook's own namespace.
type owner struct{ uids, gids idMap }

// ownerOf returns the ID maps of pid's user namespace; nil if that is the hook's own.
func ownerOf(pid int) (*owner, error) {
	same, err := sameNamespace("user", pid)
	if err != nil || same {
		return nil, err
	}
	uids, err := readIDMap(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		return nil, err
	}
	gids, err := readIDMap(fmt.Sprintf("/proc/%d/gid_map", pid))
	if err != nil {
		return nil, err
	}
	return &owner{uids, gids}, nil
}

// runIn calls make, which makes, removes or opens a name in dir, with the owner's rights on dir, as
// assumeRights gives them. With a nil owner, make has the hook's rights.
func (o *owner) runIn(dir *os.File, make func() error) error {
	if o == nil {
		return make()
	}
	back, err := o.assumeRights(dir)
	if err != nil {
		return err
	}
	return errors.Join(make(), back())
}

// dropGroups removes this thread from the board's groups, which may have rights on a folder. A
// user's own namespace may forbid that, and its root is in the same groups: no error. A nil owner
// leaves the groups as they are.
func (o *owner) dropGroups() error {
	if o == nil {
		return nil
	}
	if err := unix.Setgroups(nil); err != nil && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("leave the board's groups: %w", err)
	}
	return nil
}

// fsCaps are the capabilities for files, which setfsuid removes when root becomes another user.
const fsCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_LINUX_IMMUTABLE | 1<<unix.CAP_MKNOD

// assumeRights gives this thread the owner's file ids and few capabilities: DAC_OVERRIDE if dir
// belongs to the namespace, otherwise none for files. The caller calls back to restore the hook's.
func (o *owner) assumeRights(dir *os.File) (back func() error, err error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return nil, err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var old [2]unix.CapUserData
	if err := unix.Capget(&header, &old[0]); err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	limited := old
	limited[0].Effective &^= fsCaps
	limited[1].Effective &^= 1 << (unix.CAP_MAC_OVERRIDE - 32)
	if o.uids.hasID(stat.Uid) && o.gids.hasID(stat.Gid) {
		limited[0].Effective |= old[0].Effective & (1 << unix.CAP_DAC_OVERRIDE)
	}
	uid, gid := unix.Geteuid(), unix.Getegid()
	back = func() error {
		return errors.Join(setFSIDs(uid, gid), unix.Capset(&header, &old[0]))
	}
	err = setFSIDs(int(o.uids.root), int(o.gids.root))
	if err == nil {
		err = unix.Capset(&header, &limited[0])
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("act as the container's root: %w", err), back())
	}
	return back, nil
}

// setFSIDs sets the thread's file ids and reads them back, as the calls report no error.
func setFSIDs(uid, gid int) error {
	unix.Setfsgid(gid)
	unix.Setfsuid(uid)
	haveGID, _ := unix.SetfsgidRetGid(-1)
	haveUID, _ := unix.SetfsuidRetUid(-1)
	if haveUID != uid || haveGID != gid {
		return fmt.Errorf("the thread's file ids are %d:%d; want %d:%d", haveUID, haveGID, uid, gid)
	}
	return nil
}

// idMap is a user namespace's map of user or group ids.
type idMap struct {
	root   uint32 // the id outside that is 0 inside
	ranges []idRange
}

type idRange struct{ inside, outside, count uint32 }

// readIDMap reads and parses a uid_map or gid_map of /proc.
func readIDMap(path string) (idMap, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return idMap{}, err
	}
	m, err := parseIDMap(string(data))
	if err != nil {
		return idMap{}, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

var errNoRoot = errors.New("the container's user namespace has no root (0) that the hook's knows")

// parseIDMap parses uid_map or gid_map. A map without a usable root (0) is an error.
func parseIDMap(text string) (idMap, error) {
	m, err := idMap{}, errNoRoot
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.count); err != nil {
			return idMap{}, fmt.Errorf("%q is no range of ids", line)
		}
		// The kernel shows -1 for ids that this namespace does not have.
		if r.outside == ^uint32(0) {
			continue
		}
		if r.inside == 0 {
			m.root, err = r.outside, nil
		}
		m.ranges = append(m.ranges, r)
	}
	return m, err
}

// hasID reports whether the namespace maps the id outside.
func (m idMap) hasID(outside uint32) bool {
	return slices.ContainsFunc(m.ranges, func(r idRange) bool { return outside >= r.outside && outside-r.outside < r.count })
}

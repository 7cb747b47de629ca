package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// speed is the speed limit of a device, in bytes a second.
type speed struct{ write, read int64 }

// card is the speed of a common card: it writes 40 MB/s and reads 90.
var card = speed{40e6, 90e6}

// throttle slows devices down for this process and its children, by the kernel's controller
// of block I/O.
type throttle struct {
	set  func(number string, s speed) error // the zero speed lifts the limit
	undo func() error
}

const cgroups = "/sys/fs/cgroup"

func newThrottle() (*throttle, error) {
	if _, err := os.Stat(filepath.Join(cgroups, "blkio/blkio.throttle.write_bps_device")); err == nil {
		return throttleV1(filepath.Join(cgroups, "blkio"))
	}
	controllers, err := os.ReadFile(filepath.Join(cgroups, "cgroup.controllers"))
	if err == nil && strings.Contains(" "+string(controllers)+" ", " io ") {
		return throttleV2(cgroups)
	}
	return nil, fmt.Errorf("this machine cannot slow a device down: neither %[1]s/blkio (cgroup v1) nor the io controller in %[1]s/cgroup.controllers (v2)", cgroups)
}

// throttleV1 limits the topmost group and moves this process there. In version 1 the
// kernel's own writes of cached data count there, and groups below have limits of their
// own.
func throttleV1(top string) (*throttle, error) {
	back, err := enterGroup(top, "blkio")
	if err != nil {
		return nil, err
	}
	set := func(number string, s speed) error {
		return errors.Join(
			writeControl(filepath.Join(top, "blkio.throttle.write_bps_device"), fmt.Sprintf("%s %d", number, s.write)),
			writeControl(filepath.Join(top, "blkio.throttle.read_bps_device"), fmt.Sprintf("%s %d", number, s.read)),
		)
	}
	return &throttle{set, back}, nil
}

// throttleV2 limits a group of its own, as the topmost one of version 2 has no limits.
func throttleV2(top string) (*throttle, error) {
	if err := writeControl(filepath.Join(top, "cgroup.subtree_control"), "+io"); err != nil {
		return nil, err
	}
	group := filepath.Join(top, fmt.Sprintf("slipway-bench-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	back, err := enterGroup(group, "")
	if err != nil {
		return nil, errors.Join(err, os.Remove(group))
	}
	set := func(number string, s speed) error {
		limits := fmt.Sprintf("%s wbps=%d rbps=%d", number, s.write, s.read)
		if s == (speed{}) {
			limits = number + " wbps=max rbps=max"
		}
		return writeControl(filepath.Join(group, "io.max"), limits)
	}
	return &throttle{set, func() error { return errors.Join(back(), os.Remove(group)) }}, nil
}

// enterGroup moves this process into a group of a controller's hierarchy. back moves it to
// its old group.
func enterGroup(group, controller string) (back func() error, err error) {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	top := cgroups
	if controller != "" {
		top = filepath.Join(cgroups, controller)
	}
	for line := range strings.Lines(string(memberships)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // 7:blkio:/user.slice
		if len(f) == 3 && f[1] == controller {
			old := filepath.Join(top, f[2], "cgroup.procs")
			return func() error { return writeControl(old, "0") }, writeControl(filepath.Join(group, "cgroup.procs"), "0")
		}
	}
	return nil, fmt.Errorf("/proc/self/cgroup names no group of %s", group)
}

func writeControl(file, text string) error { return os.WriteFile(file, []byte(text), 0o644) }

// deviceNumber returns a device's number in the controllers' format.
func deviceNumber(device string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

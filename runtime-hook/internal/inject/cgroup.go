package inject

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/runtime-hook/internal/plan"
)

// errDevicesInSpec means that no version 1 device cgroup was found. In version 2 the rules are a
// program that the runtime makes from the container's spec, and a hook cannot change it.
var errDevicesInSpec = errors.New("a hook cannot change this device cgroup")

// Allow lets the container use devices that its spec forbids. It writes rules into the container's
// device cgroup of version 1. With version 2 it returns an error. Call it before Enter.
func (p Process) Allow(devices []plan.Device) error {
	if len(devices) == 0 {
		return nil
	}
	group, err := p.deviceCgroup()
	if errors.Is(err, errDevicesInSpec) {
		return fmt.Errorf("%w, and the container's spec does not allow the first of %d devices, %s: slipway-runtime and CDI do", err, len(devices), devices[0].Path)
	}
	if err != nil {
		return err
	}
	rules, err := os.OpenFile(filepath.Join(group, "devices.allow"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer rules.Close()
	for _, d := range devices {
		// The kernel accepts one rule in each write.
		if _, err := fmt.Fprintf(rules, "c %d:%d rwm", d.Major, d.Minor); err != nil {
			return fmt.Errorf("%s: allow %s: %w", d.From, d.Path, err)
		}
	}
	return nil
}

// deviceCgroup returns the folder of the container's version 1 device cgroup. If the container is
// in the hook's own cgroup, it returns an error.
func (p Process) deviceCgroup() (string, error) {
	own, _ := deviceGroup("self")
	group, err := deviceGroup(fmt.Sprint(p.pid))
	if err == nil && group == own {
		err = errors.New("the container has no device cgroup of its own, and the engine's stays as it is")
	}
	return group, err
}

// deviceGroup returns the folder of the version 1 device cgroup of proc, a pid or "self". It
// returns errDevicesInSpec if the process is in none, or in "/".
func deviceGroup(proc string) (string, error) {
	groups, err := os.ReadFile("/proc/" + proc + "/cgroup")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(groups), "\n") {
		f := strings.SplitN(line, ":", 3)
		// "/" is the whole board, or a namespace that hides the container's cgroup.
		if len(f) == 3 && hasWord(f[1], "devices") && f[2] != "/" {
			root, err := deviceHierarchy()
			return filepath.Join(root, f[2]), err
		}
	}
	return "", errDevicesInSpec
}

// deviceHierarchy returns the mount point of the version 1 device cgroups, or errDevicesInSpec.
func deviceHierarchy() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(mounts), "\n") {
		before, after, _ := strings.Cut(line, " - ")
		at, kind := strings.Fields(before), strings.Fields(after)
		if len(at) > 4 && len(kind) > 2 && kind[0] == "cgroup" && hasWord(kind[2], "devices") && at[3] == "/" {
			return at[4], nil
		}
	}
	return "", errDevicesInSpec
}

func hasWord(list, word string) bool { return strings.Contains(","+list+",", ","+word+",") }

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"slipway/runtime-hook/internal/oci"
	"slipway/runtime-hook/internal/plan"
)

// hookEnv is the hook's whole environment. GOMAXPROCS=1: the hook uses one thread, and starts in
// four fifths of the time if Go's runtime knows that.
var hookEnv = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}

// editSpec returns data, the config.json of bundle, with the devices and the hook added; unchanged
// if asks is false, because the container requests nothing. name is the file's, for errors.
func editSpec(name string, data []byte, bundle string) (edited []byte, asks bool, err error) {
	config, err := oci.ParseConfig(data, bundle)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", name, err)
	}
	add, asks, err := findAdditions(config)
	if err != nil || !asks {
		return data, asks, err
	}
	if edited, err = oci.Edit(data, add); err != nil {
		return nil, true, fmt.Errorf("%s: %w", name, err)
	}
	return edited, true, nil
}

// findAdditions returns what the runtime must add to the spec because a hook cannot: device nodes,
// device rules, groups, and the hook unless the spec has it. asks is false without a request.
func findAdditions(config oci.Config) (add oci.Additions, asks bool, err error) {
	wanted, err := readRequest(config)
	if err != nil || !wanted.Wants() {
		return oci.Additions{}, false, err
	}
	looked := uptime()
	p, _, err := wanted.planShare()
	if err != nil {
		return oci.Additions{}, true, err
	}
	nodes, rules := missingDevices(config, p.Devices)
	for _, d := range nodes {
		if runtimeMakes(config, d) {
			add.Nodes = append(add.Nodes, deviceNode(d))
		}
	}
	for _, d := range rules {
		add.Rules = append(add.Rules, deviceRule(d))
	}
	add.GIDs = missingGroups(config, p.Devices)
	if config.Hooked {
		return add, true, nil
	}
	if add.Hook, err = ownHook(); err == nil {
		add.Hook.Args = append(add.Hook.Args, lookedArg(looked))
	}
	return add, true, err
}

// missingGroups returns the groups, by their ids in the container, that its process lacks to open
// the devices as any user.
func missingGroups(config oci.Config, devices []plan.Device) (gids []uint32) {
	for _, d := range devices {
		if gid, ok := config.MissingGroup(d.GID); ok && d.ForGroup() && !slices.Contains(gids, gid) {
			gids = append(gids, gid)
		}
	}
	slices.Sort(gids)
	return gids
}

// missingDevices returns the devices without a node in the container's spec, and those not allowed.
func missingDevices(config oci.Config, devices []plan.Device) (nodes, rules []plan.Device) {
	for _, d := range devices {
		major, minor := int64(d.Major), int64(d.Minor)
		if !config.HasNode(d.Path, major, minor) {
			nodes = append(nodes, d)
		}
		if !config.Allows(major, minor) {
			rules = append(rules, d)
		}
	}
	return nodes, rules
}

// runtimeMakes reports whether the runtime, and not the hook, should make the node. Outside of /dev
// the image may have files at the path, which the hook handles with more care. In a user namespace,
// runtimes mount the board's node of that path, maybe another, and crun (1.8) gives the bundle "/".
func runtimeMakes(config oci.Config, d plan.Device) bool {
	return strings.HasPrefix(d.Path, "/dev/") && !config.UserNamespace
}

func deviceNode(d plan.Device) specs.LinuxDevice {
	mode := os.FileMode(d.Mode)
	return specs.LinuxDevice{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor), FileMode: &mode, UID: &d.UID, GID: &d.GID}
}

func deviceRule(d plan.Device) specs.LinuxDeviceCgroup {
	major, minor := int64(d.Major), int64(d.Minor)
	return specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
}

// ownHook returns this program's command hook, as an OCI hook of a spec.
func ownHook() (*specs.Hook, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &specs.Hook{Path: self, Args: []string{oci.Program, "hook"}, Env: hookEnv}, nil
}

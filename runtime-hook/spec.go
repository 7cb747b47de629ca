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

// hookEnv is all that the hook gets of an environment. Without one, a
// createContainer hook has the image's. The hook works on one thread: where Go's
// runtime knows that, the hook starts in four fifths of the time.
var hookEnv = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=1"}

// edit adds to data, the config.json of bundle, what the container asks for. One that
// does not ask keeps its own. Errors call the config.json by name where it is at fault.
func edit(name string, data []byte, bundle string) (edited []byte, asks bool, err error) {
	config, err := oci.ParseConfig(data, bundle)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", name, err)
	}
	add, asks, err := additions(config)
	if err != nil || !asks {
		return data, asks, err
	}
	if edited, err = oci.Edit(data, add); err != nil {
		return nil, true, fmt.Errorf("%s: %w", name, err)
	}
	return edited, true, nil
}

// additions are what a hook alone cannot give: the devices, and the hook itself.
func additions(config oci.Config) (add oci.Additions, asks bool, err error) {
	wanted, err := readRequest(config)
	if err != nil || !wanted.Wants() {
		return oci.Additions{}, false, err
	}
	looked := uptime()
	p, err := wanted.share()
	if err != nil {
		return oci.Additions{}, true, err
	}
	nodes, rules := lacking(config, p.Devices)
	for _, d := range nodes {
		if runtimeMakes(config, d) {
			add.Nodes = append(add.Nodes, node(d))
		}
	}
	for _, d := range rules {
		add.Rules = append(add.Rules, rule(d))
	}
	add.GIDs = groups(config, p.Devices)
	add.Hook, err = missingHook(config)
	if add.Hook != nil {
		add.Hook.Args = append(add.Hook.Args, lookedArg(looked))
	}
	return add, true, err
}

// groups are those that the container's first process needs to open the devices as any
// user, and is no member of.
func groups(config oci.Config, devices []plan.Device) (gids []uint32) {
	for _, d := range devices {
		if gid, ok := config.MissingGroup(d.GID); ok && d.ForGroup() && !slices.Contains(gids, gid) {
			gids = append(gids, gid)
		}
	}
	slices.Sort(gids)
	return gids
}

// lacking is which of the devices the runtime does not make by itself, and which
// it does not let the container use.
func lacking(config oci.Config, devices []plan.Device) (nodes, rules []plan.Device) {
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

// runtimeMakes reports whether the node is one for the runtime to make. Outside of
// /dev the image has a say in what is there, which the hook takes more care of. In a
// user namespace runtimes mount the board's node of the same path, which another
// may have; and crun (1.8) then tells hooks that the bundle is "/".
func runtimeMakes(config oci.Config, d plan.Device) bool {
	return strings.HasPrefix(d.Path, "/dev/") && !config.UserNamespace
}

func node(d plan.Device) specs.LinuxDevice {
	mode := os.FileMode(d.Mode)
	return specs.LinuxDevice{Path: d.Path, Type: "c", Major: int64(d.Major), Minor: int64(d.Minor), FileMode: &mode, UID: &d.UID, GID: &d.GID}
}

func rule(d plan.Device) specs.LinuxDeviceCgroup {
	major, minor := int64(d.Major), int64(d.Minor)
	return specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"}
}

func ownHook() (*specs.Hook, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return &specs.Hook{Path: self, Args: []string{oci.Program, "hook"}, Env: hookEnv}, nil
}

// missingHook is our hook, nil where the container has it.
func missingHook(config oci.Config) (*specs.Hook, error) {
	if config.Hooked {
		return nil, nil
	}
	return ownHook()
}

package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"slipway/flash/boardssh"
)

// With containerd, the client (here: Slipway) adds the devices of CDI specs to a container. The
// specs and the device nodes that they name are on the board. The CDI library would look for the
// nodes on this machine.

// Limits on a board's CDI specs: one for all of a Jetson's files has some hundred KiB.
const (
	maxCDIFiles = 64
	maxCDIBytes = 8 << 20
	maxCDINodes = 4096
	maxCDIShown = 10 // devices and errors that a message names
)

// cdiDirs are the folders with CDI specs on boards. For one device, the last folder wins.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

// listCDI lists the CDI specs in the folders $@. statNodes prints a line for each device node on
// its input.
const (
	listCDI   = `for d; do for f in "$d"/*.json "$d"/*.yaml; do [ -f "$f" ] && echo "$f"; done; done; true`
	statNodes = `while IFS= read -r f; do stat -c '%f %t %T' -- "$f" 2>/dev/null || echo none; done`
)

// cdiDevices returns the CDI device names for a value of NVIDIA_VISIBLE_DEVICES.
func cdiDevices(which string) []string {
	names := strings.Split(which, ",")
	for i, name := range names {
		if !strings.Contains(name, "=") {
			names[i] = "nvidia.com/gpu=" + name
		}
	}
	return names
}

// cdiEdits reads the board's CDI specs and returns a function that adds these devices to a spec.
func (t *Containerd) cdiEdits(ctx context.Context, devices []string) (func(*specs.Spec) error, error) {
	dir, err := os.MkdirTemp("", "slipway-cdi")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	from, err := t.fetchCDI(ctx, dir)
	if err != nil {
		return nil, err
	}
	dirs := make([]string, len(t.cdi))
	for i := range dirs {
		dirs[i] = filepath.Join(dir, strconv.Itoa(i))
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	nodes, err := nodesOf(cache, devices)
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, describeSpecs(cache, from))
	}
	if err := t.resolveNodes(ctx, nodes); err != nil {
		return nil, err
	}
	return func(spec *specs.Spec) error {
		_, err := cache.InjectDevices(spec, devices...)
		return err
	}, nil
}

// fetchCDI copies the board's CDI specs into numbered folders below dir. It returns the name on the
// board for each local file.
func (t *Containerd) fetchCDI(ctx context.Context, dir string) (map[string]string, error) {
	list, err := t.conn.AskOutput(ctx, append([]string{"sh", "-c", listCDI, "sh"}, t.cdi...)...)
	if err != nil {
		return nil, err
	}
	names, err := cdiFiles(list, t.cdi)
	if err != nil {
		return nil, err
	}
	from, left := map[string]string{}, maxCDIBytes
	for i, name := range names {
		r, err := t.conn.AskUpTo(ctx, nil, left, "cat", "--", name)
		switch {
		case err != nil:
			return nil, err
		case r.Status != 0:
			return nil, boardssh.BoardError("read "+name, errors.New(string(r.Stderr)))
		case r.Truncated || len(r.Stdout) >= left:
			return nil, fmt.Errorf("the CDI specs in %s have more than %d MiB", strings.Join(t.cdi, ", "), maxCDIBytes>>20)
		}
		left -= len(r.Stdout)
		local := filepath.Join(dir, strconv.Itoa(slices.Index(t.cdi, path.Dir(name))), fmt.Sprintf("%03d%s", i, path.Ext(name)))
		from[local] = name
		if err := errors.Join(os.MkdirAll(filepath.Dir(local), 0o700), os.WriteFile(local, r.Stdout, 0o600)); err != nil {
			return nil, err
		}
	}
	return from, nil
}

// cdiFiles parses the output of listCDI, and refuses files outside these folders.
func cdiFiles(list string, dirs []string) ([]string, error) {
	var names []string
	for name := range strings.Lines(list) {
		name = strings.TrimSuffix(name, "\n")
		ext := path.Ext(name)
		if !slices.Contains(dirs, path.Dir(name)) || ext != ".json" && ext != ".yaml" {
			return nil, fmt.Errorf("%q is no CDI spec in %s", name, strings.Join(dirs, ", "))
		}
		if names = append(names, name); len(names) > maxCDIFiles {
			return nil, fmt.Errorf("there are more than %d CDI specs in %s", maxCDIFiles, strings.Join(dirs, ", "))
		}
	}
	return names, nil
}

// nodesOf returns the device nodes that a container would get with these devices.
func nodesOf(cache *cdi.Cache, devices []string) ([]*cdispecs.DeviceNode, error) {
	var nodes []*cdispecs.DeviceNode
	for _, name := range devices {
		d := cache.GetDevice(name)
		if d == nil {
			return nil, fmt.Errorf("no CDI spec of the board has a device %s", name)
		}
		nodes = append(nodes, d.GetSpec().ContainerEdits.DeviceNodes...)
		nodes = append(nodes, d.ContainerEdits.DeviceNodes...)
	}
	if len(nodes) > maxCDINodes {
		return nil, fmt.Errorf("the CDI specs of %s have more than %d device nodes", strings.Join(devices, ", "), maxCDINodes)
	}
	return nodes, nil
}

// describeSpecs returns text for an error: the board's CDI devices, and the errors in its specs.
func describeSpecs(cache *cdi.Cache, from map[string]string) string {
	there := cache.ListDevices()
	text := fmt.Sprintf("; it has %d specs", len(from))
	if len(there) > 0 {
		text += ", with " + strings.Join(there[:min(len(there), maxCDIShown)], ", ")
	}
	wrong := cache.GetErrors()
	for _, local := range slices.Sorted(maps.Keys(wrong))[:min(len(wrong), maxCDIShown)] {
		why := strings.ReplaceAll(errors.Join(wrong[local]...).Error(), local, from[local])
		text += "\n  " + boardssh.Printable(cmp.Or(from[local], "CDI")) + ": " + boardssh.Printable(why)
	}
	return text
}

// resolveNodes fills in the type, numbers and mode of the device nodes from the files on the board,
// where the CDI specs leave them out.
func (t *Containerd) resolveNodes(ctx context.Context, nodes []*cdispecs.DeviceNode) error {
	var names strings.Builder
	for _, n := range nodes {
		if n.HostPath = cmp.Or(n.HostPath, n.Path); !path.IsAbs(n.HostPath) || strings.ContainsAny(n.HostPath, "\n\x00") {
			return fmt.Errorf("device node %q in a CDI spec of the board: want an absolute path", n.HostPath)
		}
		names.WriteString(n.HostPath + "\n")
	}
	if len(nodes) == 0 {
		return nil
	}
	r, err := t.conn.AskUpTo(ctx, strings.NewReader(names.String()), boardssh.MaxOutputBytes, "sh", "-c", statNodes)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(r.Stdout)), "\n")
	if r.Status != 0 || len(lines) != len(nodes) {
		return fmt.Errorf("ask %s for %d device nodes (stat): status %d, %d answers", t.conn.Address(), len(nodes), r.Status, len(lines))
	}
	for i, n := range nodes {
		there, err := parseNode(lines[i])
		if err == nil {
			err = fillNode(n, there)
		}
		if err != nil {
			return fmt.Errorf("device node %q in a CDI spec of %s: %w", n.HostPath, t.conn.Address(), err)
		}
	}
	return nil
}

// parseNode parses a line of statNodes. It returns nil if the file does not exist.
func parseNode(line string) (*cdispecs.DeviceNode, error) {
	if line == "none" {
		return nil, nil
	}
	words := strings.Fields(line)
	if len(words) != 3 {
		return nil, fmt.Errorf("stat says %s of it", boardssh.Printable(line))
	}
	var number [3]uint64
	for i, word := range words {
		n, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("stat says %s of it", boardssh.Printable(line))
		}
		number[i] = n
	}
	mode := fs.FileMode(number[0] & 0o777)
	return &cdispecs.DeviceNode{Type: nodeTypes[number[0]&0o170000], Major: int64(number[1]), Minor: int64(number[2]), FileMode: &mode}, nil
}

// nodeTypes are the device types of CDI, by the file type bits of stat's mode.
var nodeTypes = map[uint64]string{0o020000: "c", 0o060000: "b", 0o010000: "p"}

// fillNode fills in all that n leaves out from there, the file on the board, so that the CDI
// library reads nothing from this machine. A node with type and number need not exist yet.
func fillNode(n, there *cdispecs.DeviceNode) error {
	if n.Type != "" && (n.Major != 0 || n.Type == "p") {
		usual := fs.FileMode(0o666)
		n.FileMode = cmp.Or(n.FileMode, modeOf(there), &usual)
		return nil
	}
	if there == nil {
		return errors.New("the board has no such file, or its stat says nothing of it")
	}
	if there.Type == "" || there.Type != "p" && there.Major == 0 || n.Type != "" && n.Type != there.Type && n.Type+there.Type != "uc" {
		return fmt.Errorf("it is no device of the type %q", n.Type)
	}
	n.Type, n.Major, n.Minor, n.FileMode = there.Type, there.Major, there.Minor, cmp.Or(n.FileMode, there.FileMode)
	return nil
}

func modeOf(n *cdispecs.DeviceNode) *fs.FileMode {
	if n == nil {
		return nil
	}
	return n.FileMode
}

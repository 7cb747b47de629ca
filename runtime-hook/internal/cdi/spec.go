// Package cdi turns a board's plan into a CDI spec, in which docker, podman, containerd and cri-o
// look up devices by name. It knows no container; see choose.
package cdi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/plan"
	"slipway/runtime-hook/internal/regular"
)

// Kind is the CDI kind of the devices, the same as in NVIDIA's own specs.
const Kind = "nvidia.com/gpu"

// Versions of the format. Since Oldest a device's name may begin with a digit, and a node may have
// another path on the board. Since Groups a container's process may become a member of groups.
const (
	Oldest = "0.5.0"
	Groups = "0.7.0"
)

// Spec is the content of a CDI spec file. Its types have only the fields that are used.
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []device `json:"devices"`
	Edits   edits    `json:"containerEdits"` // for each container that gets any device
}

type device struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

type edits struct {
	Env   []string `json:"env,omitempty"`
	Nodes []node   `json:"deviceNodes,omitempty"`
	Hooks []hook   `json:"hooks,omitempty"`
	GIDs  []uint32 `json:"additionalGids,omitempty"` // since the version Groups
}

// node is a device node. It has no number, because the engine reads that from the board when the
// container starts. It has no owner, because engines set the container's user.
type node struct {
	Path     string `json:"path"`
	HostPath string `json:"hostPath,omitempty"`
	Mode     uint32 `json:"fileMode"`
	GID      uint32 `json:"gid,omitempty"`
}

type hook struct {
	Stage string   `json:"hookName"`
	Path  string   `json:"path"`
	Args  []string `json:"args"`
	Env   []string `json:"env"`
}

// Board is the input of New.
type Board struct {
	Root    string // root of the board's file tree; not "/" for an image that is being built
	Devices []plan.Device
	GPUs    []choose.GPU
	Hook    specs.Hook
	// The version of the spec; "" for the oldest that has all needed fields.
	Version string
}

// New returns the CDI spec of b, with a device for each GPU under its number and its UUID, and
// "all". It leaves out GPUs whose nodes are in no list. Without a GPU, device 0 has no own nodes.
// The containers get NVIDIA_VISIBLE_DEVICES=void.
func New(b Board) Spec {
	s := Spec{Version: cmp.Or(b.Version, Oldest), Kind: Kind, Edits: b.deviceEdits(b.sharedPaths())}
	// "void": other hooks that read the variable must not add the files again.
	s.Edits.Env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
	gpus := b.GPUs
	if len(gpus) == 0 {
		gpus = []choose.GPU{{}}
	}
	var all []string
	for _, g := range gpus {
		if g.Lacks != "" {
			continue
		}
		all = append(all, g.Nodes...)
		s.addDevice(b, strconv.Itoa(g.Index), g.Nodes)
		if g.UUID != "" {
			s.addDevice(b, g.UUID, g.Nodes)
		}
	}
	s.addDevice(b, "all", all)
	if b.Version == "" && s.hasGroups() {
		s.Version = Groups
	}
	return s
}

func (s *Spec) hasGroups() bool {
	return len(s.Edits.GIDs) > 0 || slices.ContainsFunc(s.Devices, func(d device) bool { return len(d.Edits.GIDs) > 0 })
}

// addDevice adds a device with its nodes and the hook, which gets --devices=name.
func (s *Spec) addDevice(b Board, name string, nodes []string) {
	d := device{Name: name, Edits: b.deviceEdits(nodes)}
	args := append(slices.Clone(b.Hook.Args), "--devices="+name)
	d.Edits.Hooks = []hook{{"createRuntime", b.Hook.Path, args, b.Hook.Env}}
	s.Devices = append(s.Devices, d)
}

// sharedPaths returns the paths of the plan's device nodes that belong to no GPU.
func (b Board) sharedPaths() (paths []string) {
	for _, d := range b.Devices {
		if !slices.ContainsFunc(b.GPUs, func(g choose.GPU) bool { return slices.Contains(g.Nodes, d.Path) }) {
			paths = append(paths, d.Path)
		}
	}
	return paths
}

// deviceEdits returns edits that add the plan's device nodes with these paths, in the plan's order,
// and the groups that may open them (none in the version Oldest). It skips unknown paths.
func (b Board) deviceEdits(paths []string) (e edits) {
	for _, d := range b.Devices {
		if !slices.Contains(paths, d.Path) {
			continue
		}
		n := node{Path: d.Path, Mode: d.Mode, GID: d.GID}
		if source := b.boardPath(d.Source); source != d.Path {
			n.HostPath = source
		}
		e.Nodes = append(e.Nodes, n)
		if d.ForGroup() && b.Version != Oldest && !slices.Contains(e.GIDs, d.GID) {
			e.GIDs = append(e.GIDs, d.GID)
		}
	}
	slices.Sort(e.GIDs)
	return e
}

// boardPath returns the path on the board for p, a path below b.Root on this machine.
func (b Board) boardPath(p string) string {
	if rest, err := filepath.Rel(b.Root, p); err == nil {
		return filepath.Join("/", rest)
	}
	return p
}

// JSON returns the text of the spec file.
func (s Spec) JSON() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", "  ")
	err := e.Encode(s)
	return out.Bytes(), err
}

// Write writes the spec's text to a temporary file and renames it to path, because engines read the
// folder whenever it changes. They ignore names that do not end in json or yaml.
func Write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return regular.Replace(path, ".slipway-*", func(f *os.File) error {
		_, err := f.Write(text)
		return errors.Join(err, f.Chmod(0o644))
	})
}

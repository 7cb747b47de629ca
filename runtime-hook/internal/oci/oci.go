// Package oci parses a container runtime's input for a hook: the state on standard input and the
// bundle's config.json, which may be hostile. Edit adds devices and hooks to a config.json.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"slipway/runtime-hook/internal/regular"
)

// Limits far above real input. Kubernetes writes environments of some hundred KiB.
const (
	maxStateBytes  = 1 << 20
	maxConfigBytes = 32 << 20
	maxIDBytes     = 1024 // runtimes name a folder by it
	maxPathBytes   = 4095 // PATH_MAX without its NUL
)

// State is the container's state that the runtime writes to a hook.
type State struct {
	ID     string `json:"id"`
	Pid    int    `json:"pid"` // 0 or 1 if the hook runs in the container, at createContainer
	Bundle string `json:"bundle"`
}

// Config has the parts of config.json that the hook needs.
type Config struct {
	Rootfs         string   // absolute, as the runtime sees it
	Env            []string // of the container's first process
	MountNamespace bool     // the container has, or joins, a mount namespace
	UserNamespace  bool     // the container has, or joins, a user namespace
	ReadOnly       []string // read-only mount points in the container
	Shared         bool     // mounts in the container may propagate to the board
	Hooked         bool     // the runtime will call this program's hook
	Privileged     bool     // the bounding set has CAP_SYS_ADMIN, as in privileged containers
	DeviceMounts   []string // devices that the container names by mounts

	user  specs.User
	gids  []specs.LinuxIDMapping
	nodes []specs.LinuxDevice
	rules []specs.LinuxDeviceCgroup
}

// ReadState reads and checks the state that a runtime writes to a hook.
func ReadState(r io.Reader) (State, error) {
	var s State
	data, err := regular.Limited(r, maxStateBytes)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	switch {
	case err != nil:
	case s.ID == "":
		err = errors.New("no id; a container runtime writes it")
	case len(s.ID) > maxIDBytes || len(s.Bundle) > maxPathBytes:
		err = fmt.Errorf("an id of %d bytes, a bundle of %d", len(s.ID), len(s.Bundle))
	case !filepath.IsAbs(s.Bundle) || strings.ContainsRune(s.Bundle, 0):
		err = fmt.Errorf("bundle %.200q is not an absolute path", s.Bundle)
	case s.Pid < 0:
		err = fmt.Errorf("pid %d", s.Pid)
	}
	if err != nil {
		return State{}, fmt.Errorf("state on standard input: %w", err)
	}
	s.Bundle = filepath.Clean(s.Bundle)
	return s, nil
}

// ReadConfig reads the config.json of bundle.
func ReadConfig(bundle string) (Config, error) {
	path := filepath.Join(bundle, "config.json")
	data, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && bundle == "/" {
		return Config{}, fmt.Errorf("%w; crun 1.8 names / where a container with a user namespace has devices in its spec: use runc, or slipway-runtime without the devices", err)
	}
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(data, bundle)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// spec has the fields of config.json that ParseConfig reads.
type spec struct {
	Root    *specs.Root
	Process *struct {
		User         specs.User
		Env          []string
		Capabilities struct{ Bounding []string }
	}
	Mounts []specs.Mount
	Hooks  *struct{ Prestart, CreateRuntime []specs.Hook }
	Linux  *struct {
		Namespaces  []specs.LinuxNamespace
		GIDMappings []specs.LinuxIDMapping
		Devices     []specs.LinuxDevice
		Resources   *struct{ Devices []specs.LinuxDeviceCgroup }

		RootfsPropagation string
	}
}

// ParseConfig parses data, the config.json of bundle, into a Config.
func ParseConfig(data []byte, bundle string) (Config, error) {
	var s spec
	if err := json.Unmarshal(data, &s); err != nil {
		return Config{}, err
	}
	if s.Root == nil || s.Root.Path == "" || strings.ContainsRune(s.Root.Path, 0) {
		return Config{}, errors.New("no root.path")
	}
	if len(s.Root.Path) > maxPathBytes {
		return Config{}, fmt.Errorf("root.path has %d bytes", len(s.Root.Path))
	}
	c := Config{Rootfs: s.Root.Path, Hooked: s.hasOwnHook()}
	if !filepath.IsAbs(c.Rootfs) {
		c.Rootfs = filepath.Join(bundle, c.Rootfs)
	}
	if s.Process != nil {
		c.Env, c.user = s.Process.Env, s.Process.User
		c.Privileged = slices.Contains(s.Process.Capabilities.Bounding, "CAP_SYS_ADMIN")
	}
	if s.Linux != nil {
		c.MountNamespace = s.hasNamespace(specs.MountNamespace)
		c.UserNamespace = s.hasNamespace(specs.UserNamespace)
		c.nodes, c.gids = s.Linux.Devices, s.Linux.GIDMappings
		c.Shared = isShared(s.Linux.RootfsPropagation)
		if s.Linux.Resources != nil {
			c.rules = s.Linux.Resources.Devices
		}
	}
	for _, m := range s.Mounts {
		if isReadOnly(m.Options) {
			c.ReadOnly = append(c.ReadOnly, m.Destination)
		}
		c.Shared = c.Shared || slices.ContainsFunc(m.Options, isShared)
		if name, ok := deviceMount(m); ok && !slices.Contains(c.DeviceMounts, name) {
			c.DeviceMounts = append(c.DeviceMounts, name)
		}
	}
	return c, nil
}

func (s spec) hasNamespace(kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// Program is the file name of the hook's program.
const Program = "slipway-hook"

// hasOwnHook reports whether the spec calls this program's hook, at prestart or createRuntime.
func (s spec) hasOwnHook() bool {
	ours := func(h specs.Hook) bool {
		return filepath.Base(h.Path) == Program && len(h.Args) > 1 && h.Args[1] == "hook"
	}
	return s.Hooks != nil && (slices.ContainsFunc(s.Hooks.Prestart, ours) || slices.ContainsFunc(s.Hooks.CreateRuntime, ours))
}

func isShared(option string) bool { return option == "shared" || option == "rshared" }

// isReadOnly reports whether a mount with these options is read-only. The last option counts.
func isReadOnly(options []string) (ro bool) {
	for _, o := range options {
		switch o {
		case "ro", "rro":
			ro = true
		case "rw", "rrw":
			ro = false
		}
	}
	return ro
}

// ReadFile reads a config.json.
func ReadFile(path string) ([]byte, error) {
	data, _, err := regular.Read(path, maxConfigBytes)
	return data, err
}

// Replace replaces path, a config.json, by a new file with data and the old one's mode and owner.
func Replace(path string, data []byte) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	err = regular.Replace(path, ".config.json.*", func(f *os.File) error { return writeLike(f, data, info) })
	if err != nil {
		return fmt.Errorf("add the board's devices: %w; where a bundle cannot be written to, CDI or the hook give what they can", err)
	}
	return nil
}

// writeLike writes data to f, and gives f the owner and mode of the file like.
func writeLike(f *os.File, data []byte, like os.FileInfo) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	stat, ok := like.Sys().(*syscall.Stat_t)
	if ok && (int(stat.Uid) != os.Geteuid() || int(stat.Gid) != os.Getegid()) {
		if err := f.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(like.Mode().Perm())
}

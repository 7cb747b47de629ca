// Package oci reads what a container runtime tells a hook: the state on its
// standard input and the bundle's config.json. It takes from them only what the
// hook needs and trusts neither.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Kubernetes writes environments of some hundred KiB; nothing real comes near.
const (
	maxStateBytes  = 1 << 20
	maxConfigBytes = 32 << 20
)

// State is the container as the runtime names it.
type State struct {
	ID     string
	Pid    int // 0 or 1 where the hook runs inside
	Bundle string
}

// Config is what the hook needs of config.json.
type Config struct {
	Rootfs         string   // absolute, as the runtime sees it
	Env            []string // of the container's first process
	MountNamespace bool     // it has, or joins, a mount namespace
	ReadOnly       []string // where in the container something is mounted read-only
}

// ReadState reads the state that a runtime writes to a hook.
func ReadState(r io.Reader) (State, error) {
	data, err := limited(r, maxStateBytes)
	if err != nil {
		return State{}, fmt.Errorf("state on standard input: %w", err)
	}
	var s specs.State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("state on standard input: %w", err)
	}
	switch {
	case s.ID == "":
		return State{}, errors.New("state on standard input: no id; a container runtime writes it")
	case !filepath.IsAbs(s.Bundle) || strings.ContainsRune(s.Bundle, 0):
		return State{}, fmt.Errorf("state on standard input: bundle %q is not an absolute path", s.Bundle)
	case s.Pid < 0:
		return State{}, fmt.Errorf("state on standard input: pid %d", s.Pid)
	}
	return State{s.ID, s.Pid, filepath.Clean(s.Bundle)}, nil
}

// ReadConfig reads the config.json of bundle.
func ReadConfig(bundle string) (Config, error) {
	path := filepath.Join(bundle, "config.json")
	f, err := openRegular(path)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	c, err := parseConfig(f, bundle)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// openRegular does not wait at a FIFO.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func parseConfig(r io.Reader, bundle string) (Config, error) {
	data, err := limited(r, maxConfigBytes)
	if err != nil {
		return Config{}, err
	}
	var c struct {
		Root    *specs.Root
		Process *struct{ Env []string }
		Mounts  []specs.Mount
		Linux   *struct{ Namespaces []specs.LinuxNamespace }
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, err
	}
	if c.Root == nil || c.Root.Path == "" || strings.ContainsRune(c.Root.Path, 0) {
		return Config{}, errors.New("no root.path")
	}
	out := Config{Rootfs: c.Root.Path}
	if !filepath.IsAbs(out.Rootfs) {
		out.Rootfs = filepath.Join(bundle, out.Rootfs)
	}
	if c.Process != nil {
		out.Env = c.Process.Env
	}
	if c.Linux != nil {
		for _, n := range c.Linux.Namespaces {
			out.MountNamespace = out.MountNamespace || n.Type == specs.MountNamespace
		}
	}
	for _, m := range c.Mounts {
		if readOnly(m.Options) {
			out.ReadOnly = append(out.ReadOnly, m.Destination)
		}
	}
	return out, nil
}

func readOnly(options []string) (ro bool) {
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

func limited(r io.Reader, max int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(data)) > max {
		err = fmt.Errorf("larger than %d MiB", max>>20)
	}
	return data, err
}

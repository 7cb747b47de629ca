package bench

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"slipway/ci/dev/tinyboard"
	"slipway/layers/run"
)

// hookMethod is one way to give a container the board's files.
type hookMethod struct {
	key, name string
	ours      bool
	runtime   []string                         // runc, or what stands for it
	edit      func(*tinyboard.Container) error // what whoever writes the spec does; nil for nothing
	timed     bool                             // the edit is an engine's work for each container
	allFiles  bool                             // all of the board's files
	cache     bool                             // ld.so finds the libraries by their names
}

func (b *hookBench) listMethods(ctx context.Context) ([]hookMethod, error) {
	runc := []string{"runc"}
	peerCDI, err := b.peerCDI(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.board.Dir, "cdi")
	ownCDI, err := newCDIEdit(ctx, dir, b.ours, "cdi", "--output", filepath.Join(dir, "board.json"))
	if err != nil {
		return nil, err
	}
	peerRuntime := []string{filepath.Join(b.peers, "nvidia-container-runtime")}
	return []hookMethod{
		{key: "plain", name: "plain runc", runtime: runc},
		{key: "peer", name: "nvidia-container-runtime, csv", runtime: peerRuntime, edit: b.configurePeer(""), allFiles: true, cache: true},
		{key: "peer_nocache", name: "nvidia-container-runtime, csv, without update-ldcache", runtime: peerRuntime, edit: b.configurePeer(`"update-ldcache"`), allFiles: true},
		{key: "peer_cdi", name: "nvidia-ctk's CDI spec", runtime: runc, edit: peerCDI, timed: true, allFiles: true, cache: true},
		{key: "floor", name: "the floor: a hook that checks nothing", runtime: runc, edit: b.configureFloor, allFiles: true, cache: true},
		{key: "hook", name: "slipway-hook, createRuntime", ours: true, runtime: runc, edit: b.configureHook, allFiles: true, cache: true},
		{key: "cdi", name: "slipway-hook cdi's spec", ours: true, runtime: runc, edit: ownCDI, timed: true, allFiles: true, cache: true},
		{key: "wrapper", name: "slipway-hook runtime", ours: true, runtime: []string{b.ours, "runtime"}, edit: b.requestDevices, allFiles: true, cache: true},
		{key: "whole", name: "slipway-hook runtime, whole-folders", ours: true, runtime: []string{b.ours, "runtime"}, edit: b.configureWholeFolders, allFiles: true, cache: true},
	}, nil
}

// newCDIEdit calls a program that writes a CDI spec into dir, and edits containers by that
// as containerd 2 does, for which the specs are read already.
func newCDIEdit(ctx context.Context, dir string, argv ...string) (func(*tinyboard.Container) error, error) {
	if err := run.Run(ctx, run.Command{Argv: argv}); err != nil {
		return nil, err
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	return func(c *tinyboard.Container) error {
		_, err := cache.InjectDevices(c.Spec, "nvidia.com/gpu=all")
		return err
	}, nil
}

func (b *hookBench) requestDevices(c *tinyboard.Container) error {
	c.Ask()
	return nil
}

// settings are our hook's, which each container has its own of.
const settings = "/etc/slipway/hook.toml"

func (b *hookBench) configureWholeFolders(c *tinyboard.Container) error {
	c.Ask()
	return tinyboard.Write(settings, []byte("whole-folders = true\n"), 0o644)
}

func (b *hookBench) configureHook(c *tinyboard.Container) error {
	c.Ask()
	c.CreateRuntime(b.ours, "hook")
	return nil
}

// rest is for what the kernel does after a container has ended: it takes down a
// namespace's mounts when nobody waits for it.
const rest = 20 * time.Millisecond

// newVariant is the life of a container on a medium that gets the files in a way.
func (b *hookBench) newVariant(m *medium, way hookMethod) Variant {
	var c *tinyboard.Container
	return Variant{
		Name: m.name + ": " + way.name,
		Prepare: func(context.Context) (err error) {
			c, err = b.newContainer(m, way, tinyboard.Program)
			time.Sleep(rest)
			return err
		},
		Run: func(ctx context.Context) error { return b.runContainer(ctx, c, way, nil) },
	}
}

// newContainer makes a container of its own for each life: NVIDIA's runtime writes into
// config.json. What was written before reaches the disk now, not while it is measured.
func (b *hookBench) newContainer(m *medium, way hookMethod, argv ...string) (*tinyboard.Container, error) {
	if err := m.closeLast(); err != nil {
		return nil, err
	}
	c, err := b.board.NewContainer(m.image, argv...)
	if err != nil {
		return nil, err
	}
	m.last = c
	if err := os.RemoveAll(settings); err != nil {
		return nil, err
	}
	if way.edit != nil && !way.timed {
		if err := way.edit(c); err != nil {
			return nil, err
		}
	}
	if err := c.Configure(); err != nil {
		return nil, err
	}
	return c, m.syncDisk()
}

func (b *hookBench) runContainer(ctx context.Context, c *tinyboard.Container, way hookMethod, inside func(pid string) error) error {
	if way.timed {
		if err := way.edit(c); err != nil {
			return err
		}
		if err := c.Configure(); err != nil {
			return err
		}
	}
	return c.Live(ctx, way.runtime, inside)
}

package bench

import (
	"context"
	"path/filepath"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"slipway/ci/dev/tinyboard"
	"slipway/layers/run"
)

// hookMethod is one method to add the board's files to a container.
type hookMethod struct {
	key, name string
	ours      bool
	runtime   []string                         // runc, or a wrapper of it
	edit      func(*tinyboard.Container) error // edits the spec; nil for none
	timed     bool                             // the edit is measured, as an engine does it for each container
	allFiles  bool                             // the container has all of the board's files
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
		{key: "wrapper_floor", name: "the floor, and a runtime that only becomes runc", runtime: []string{b.floor, "runtime"}, edit: b.configureFloor, allFiles: true, cache: true},
		{key: "hook", name: "slipway-hook, createRuntime", ours: true, runtime: runc, edit: b.configureHook, allFiles: true, cache: true},
		{key: "cdi", name: "slipway-hook cdi's spec", ours: true, runtime: runc, edit: ownCDI, timed: true, allFiles: true, cache: true},
		{key: "wrapper", name: "slipway-hook runtime", ours: true, runtime: []string{b.ours, "runtime"}, edit: b.requestDevices, allFiles: true, cache: true},
	}, nil
}

// newCDIEdit runs a program that writes a CDI spec into dir. The returned edit applies that
// spec as containerd 2 does, which has parsed the specs already.
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
	c.RequestDevices()
	return nil
}

func (b *hookBench) configureHook(c *tinyboard.Container) error {
	c.RequestDevices()
	c.CreateRuntime(b.ours, "hook")
	return nil
}

// rest is the time for the kernel to remove the mounts of a container that has ended, which
// it does in the background.
const rest = 20 * time.Millisecond

// newVariant measures the life of a container on a medium that gets the files by a method.
func (b *hookBench) newVariant(m *medium, method hookMethod) Variant {
	var c *tinyboard.Container
	return Variant{
		Name: m.name + ": " + method.name,
		Prepare: func(context.Context) (err error) {
			c, err = b.newContainer(m, method, tinyboard.Program)
			time.Sleep(rest)
			return err
		},
		Run: func(ctx context.Context) error { return b.runContainer(ctx, c, method, nil) },
	}
}

// newContainer makes a new container for each life, as NVIDIA's runtime writes into
// config.json. It syncs earlier writes to the disk, so that they are not measured.
func (b *hookBench) newContainer(m *medium, method hookMethod, argv ...string) (*tinyboard.Container, error) {
	if err := m.closeLast(); err != nil {
		return nil, err
	}
	c, err := b.board.NewContainer(m.image, argv...)
	if err != nil {
		return nil, err
	}
	m.last = c
	if method.edit != nil && !method.timed {
		if err := method.edit(c); err != nil {
			return nil, err
		}
	}
	if err := c.Configure(); err != nil {
		return nil, err
	}
	return c, m.syncDisk()
}

func (b *hookBench) runContainer(ctx context.Context, c *tinyboard.Container, method hookMethod, inside func(pid string) error) error {
	if method.timed {
		if err := method.edit(c); err != nil {
			return err
		}
		if err := c.Configure(); err != nil {
			return err
		}
	}
	return c.Live(ctx, method.runtime, inside)
}

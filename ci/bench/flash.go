package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/engine"
	"slipway/layers/host"
)

const (
	flashImageBytes = 1 << 30
	flashRounds     = 5
)

// Flash measures how long a 1 GiB image, a third of it mapped, takes to a loop
// device: ours with everything read back, bmaptool and dd without.
func Flash(ctx context.Context, w io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("bench flash needs root, for a loop device")
	}
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "bmap-tools", "mount"); err != nil {
		return err
	}
	b, err := newFlashBench(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rows, err := Measure(
		ctx, flashRounds,
		Variant{Name: "ours, read back", Prepare: b.settle, Run: b.ours},
		Variant{Name: "bmaptool copy", Prepare: b.settle, Run: b.bmaptool},
		Variant{Name: "dd bs=4M conv=fsync", Prepare: b.settle, Run: b.dd},
	)
	if err != nil {
		return err
	}
	return Print(w, rows, Over("bmaptool_over_ours", rows[1], rows[0]), Over("dd_over_ours", rows[2], rows[0]))
}

// flashBench is a folder with an artifact, and a loop device of its image's size.
type flashBench struct {
	dir      string
	artifact images.Artifact
	image    string
	blockMap string
	device   string
}

func newFlashBench(ctx context.Context) (_ *flashBench, err error) {
	if err := os.MkdirAll("build", 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("build", "bench-flash-")
	if err != nil {
		return nil, err
	}
	b := &flashBench{dir: dir, image: filepath.Join(dir, "disk.img"), blockMap: filepath.Join(dir, "disk.bmap")}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := b.makeImage(ctx); err != nil {
		return nil, err
	}
	if err := b.makeArtifact(); err != nil {
		return nil, err
	}
	return b, b.attach(ctx)
}

// makeImage makes runs of data from 64 KiB to 16 MiB with holes of about twice
// their length between them, as file systems in an image lie.
func (b *flashBench) makeImage(ctx context.Context) error {
	f, err := os.Create(b.image)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(flashImageBytes); err != nil {
		return err
	}
	random, sizes := rand.NewChaCha8([32]byte{}), rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < flashImageBytes; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		run := min(int64(64<<10)<<sizes.IntN(9), flashImageBytes-at)
		p := make([]byte, run)
		random.Read(p)
		if _, err := f.WriteAt(p, at); err != nil {
			return err
		}
		at += run + (run*2)&^4095
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return b.makeMap(ctx, f)
}

func (b *flashBench) makeMap(ctx context.Context, f *os.File) error {
	m, err := bmap.Create(ctx, f)
	if err != nil {
		return err
	}
	out, err := os.Create(b.blockMap)
	if err != nil {
		return err
	}
	_, err = m.WriteTo(out)
	return errors.Join(err, out.Close())
}

func (b *flashBench) makeArtifact() error {
	data, err := os.ReadFile(b.blockMap)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	a := images.Artifact{Board: "bench", Files: []images.File{
		{Kind: images.DiskImage, Name: "disk.img", SizeBytes: flashImageBytes},
		{Kind: images.BlockMap, Name: "disk.bmap", SizeBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])},
	}}
	if err := a.Save(b.dir); err != nil {
		return err
	}
	b.artifact, err = images.OpenArtifact(b.dir)
	return err
}

// attach makes the loop device. Direct I/O to its file keeps this machine's
// memory from standing in for a disk.
func (b *flashBench) attach(ctx context.Context) error {
	file := filepath.Join(b.dir, "device")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, flashImageBytes); err != nil {
		return err
	}
	out, err := engine.Output(ctx, engine.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	b.device = strings.TrimSpace(string(out))
	return err
}

// close works also when the context has ended: nothing is left behind.
func (b *flashBench) close() error {
	var err error
	if b.device != "" {
		err = engine.Run(context.Background(), engine.Command{Argv: []string{"losetup", "--detach", b.device}})
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// settle empties the device and waits until that is on the disk, so that no
// variant allocates what the one before it freed, or writes into what it left.
// It goes through the device, whose cache would else keep the old content.
func (b *flashBench) settle(context.Context) error {
	f, err := os.OpenFile(b.device, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, flashImageBytes); err != nil {
		return fmt.Errorf("empty %s, whose file's system has to be able to free space: %w", b.device, err)
	}
	unix.Sync()
	return nil
}

func (b *flashBench) ours(ctx context.Context) error {
	spec := images.Spec{Board: "bench", Flash: images.Flash{Kinds: []string{flash.Block}}}
	_, err := flash.Write(ctx, spec, b.artifact, b.device, flash.Options{Yes: []string{b.device}})
	return err
}

func (b *flashBench) bmaptool(ctx context.Context) error {
	return engine.Run(ctx, engine.Command{Argv: []string{"bmaptool", "copy", "--bmap", b.blockMap, b.image, b.device}})
}

func (b *flashBench) dd(ctx context.Context) error {
	return engine.Run(ctx, engine.Command{Argv: []string{"dd", "if=" + b.image, "of=" + b.device, "bs=4M", "conv=fsync"}})
}

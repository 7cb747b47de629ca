package bench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images/bmap"
	"slipway/layers/run"
)

// loop is a loop device with its backing file.
type loop struct {
	path, file string
	number     string // the kernel's, major:minor
	sizeBytes  int64
}

// attachLoop makes a loop device. Direct I/O to its file keeps this machine's memory from
// serving as the disk.
func attachLoop(ctx context.Context, file string, sizeBytes int64) (*loop, error) {
	l := &loop{file: file, sizeBytes: sizeBytes}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(file, sizeBytes); err != nil {
		return nil, err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	l.path = strings.TrimSpace(string(out))
	if err != nil {
		return nil, errors.Join(err, os.Remove(file))
	}
	if l.number, err = deviceNumber(l.path); err != nil {
		return nil, errors.Join(err, l.detach())
	}
	return l, nil
}

// detach also works after the context has ended, so that nothing is left behind.
func (l *loop) detach() error {
	err := run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", l.path}})
	return errors.Join(err, os.Remove(l.file))
}

// makeUsed makes the device look used: other data where the image's will be, nothing
// elsewhere, and all of that on the disk. So no variant finds the data of the one before
// it, and the file's blocks are allocated, as those of a real device are.
func (l *loop) makeUsed(blocks bmap.Map) error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // the cache would else keep what is punched here
		return err
	}
	for off, length := range blocks.Holes {
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length); err != nil {
			return fmt.Errorf("empty %s, whose file's system has to be able to free space: %w", l.path, err)
		}
	}
	if err := writeUsedData(f, blocks); err != nil {
		return err
	}
	unix.Sync()
	return nil
}

// usedData is the data of a device that was in use before.
var usedData = sync.OnceValue(func() []byte {
	p := source.Buffer(1 << 20)
	_, _ = rand.NewChaCha8([32]byte{'u'}).Read(p) // which never fails
	return p
})

// writeUsedData writes usedData to all mapped blocks.
func writeUsedData(f *os.File, blocks bmap.Map) error {
	d, err := write.OpenDisk(f)
	if err != nil {
		return err
	}
	defer d.Close()
	return errors.Join(eachPart(blocks, func(off int64, n int) error {
		_, err := d.WriteAt(usedData()[:n], off)
		return err
	}), d.Sync())
}

// eachPart calls work for each part of the mapped blocks that is read or written at once,
// two at a time.
func eachPart(blocks bmap.Map, work func(off int64, n int) error) error {
	var g errgroup.Group
	g.SetLimit(2)
	for _, r := range blocks.Ranges {
		first, length := blocks.Span(r)
		for off := first; off < first+length; off += int64(len(usedData())) {
			g.Go(func() error { return work(off, int(min(first+length-off, int64(len(usedData()))))) })
		}
	}
	return g.Wait()
}

// writeAlone writes the mapped bytes, and reads them back, without an image. No program
// that writes all of them can be faster.
func (l *loop) writeAlone(blocks bmap.Map, readBack bool) error {
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := writeUsedData(f, blocks); err != nil || !readBack {
		return err
	}
	free := make(chan []byte, 2)
	free <- source.Buffer(len(usedData()))
	free <- source.Buffer(len(usedData()))
	return eachPart(blocks, func(off int64, n int) error {
		p := <-free
		defer func() { free <- p }()
		_, err := f.ReadAt(p[:n], off)
		return err
	})
}

// copyImage writes an image to the device and drops it from the page cache.
func (l *loop) copyImage(ctx context.Context, image string, blocks bmap.Map) error {
	from, err := os.Open(image)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(l.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, r := range blocks.Ranges {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		off, length := blocks.Span(r)
		if _, err := io.Copy(io.NewOffsetWriter(to, off), io.NewSectionReader(from, off, length)); err != nil {
			return err
		}
	}
	return errors.Join(to.Sync(), dropCache(to))
}

// cacheFile loads a file into the page cache, where it would be if it had just been made or
// fetched. On some machines the host takes that memory back within a minute.
func cacheFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(struct{ io.Writer }{io.Discard}, f)
	return err
}

// dropCache drops the cached pages of a file or device.
func dropCache(f *os.File) error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// checkImage compares a program's result with the image's map, so that no program is fast
// because it does not do its work.
func checkImage(ctx context.Context, path string, blocks bmap.Map) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range 2 {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(blocks.Ranges) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				r, h := blocks.Ranges[i], blocks.Hash()
				off, length := blocks.Span(r)
				if _, err := io.Copy(h, io.NewSectionReader(f, off, length)); err != nil {
					return err
				}
				if got := hex.EncodeToString(h.Sum(nil)); got != r.Sum {
					return fmt.Errorf("%s does not hold the image: blocks %d to %d have %s, not %s", path, r.First, r.Last, got, r.Sum)
				}
			}
			return context.Cause(ctx)
		})
	}
	return errors.Join(g.Wait(), dropCache(f))
}

// programs are the programs that the bench runs.
type programs struct{ stopwatch, slipway string }

func buildPrograms(ctx context.Context, dir string) (programs, error) {
	p := programs{filepath.Join(dir, "stopwatch"), filepath.Join(dir, "slipway")}
	return p, errors.Join(
		run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", p.stopwatch, "./ci/dev/bench/stopwatch"}}),
		run.Run(ctx, run.Command{Argv: []string{"go", "tool", "mage", "-compile", p.slipway}}),
	)
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// inputs is one image in two forms, raw and zst. Each lies in a folder in which the command
// flash can be run, with an artifact in build/<board>.
type inputs struct {
	dir    string
	board  string // the board that the artifacts name
	blocks bmap.Map
}

func (in inputs) formDir(form string) string { return filepath.Join(in.dir, form) }
func (in inputs) artifactDir(form string) string {
	return filepath.Join(in.formDir(form), "build", in.board)
}

func (in inputs) imagePath(form string) string {
	return filepath.Join(in.artifactDir(form), map[string]string{"raw": "disk.img", "zst": "disk.img.zst"}[form])
}
func (in inputs) mapPath() string { return filepath.Join(in.artifactDir("raw"), "disk.bmap") }

// makeInputs makes the image, its map and its packed form.
func makeInputs(ctx context.Context, dir string, sizeBytes int64) (inputs, error) {
	spec, err := images.First("is flashed by a card, and as a file", func(spec images.Spec) bool {
		kinds := spec.Flash.Kinds
		return spec.Machine == nil && spec.Arch == runtime.GOARCH && slices.Contains(kinds, device.Block) && slices.Contains(kinds, device.File)
	})
	if err != nil {
		return inputs{}, err
	}
	in := inputs{dir: dir, board: spec.Board}
	image, packed, packedMap := in.imagePath("raw"), in.imagePath("zst"), filepath.Join(in.artifactDir("zst"), "disk.bmap")
	err = errors.Join(os.MkdirAll(in.artifactDir("raw"), 0o755), os.MkdirAll(in.artifactDir("zst"), 0o755), makeImage(ctx, image, sizeBytes))
	for _, argv := range [][]string{
		{"bmaptool", "create", "-o", in.mapPath(), image},
		{"cp", in.mapPath(), packedMap},
		{"zstd", "-3", "-T0", "-q", "-o", packed, image}, // Yocto's settings
	} {
		if err == nil {
			err = run.Run(ctx, run.Command{Argv: argv})
		}
	}
	for _, file := range []string{image, packed} {
		if err == nil {
			err = saveArtifact(ctx, images.Artifact{Board: in.board}, filepath.Dir(file),
				images.File{Kind: images.DiskImage, Name: filepath.Base(file)}, images.File{Kind: images.BlockMap, Name: "disk.bmap"})
		}
	}
	if err != nil {
		return in, err
	}
	f, err := os.Open(in.mapPath())
	if err != nil {
		return in, err
	}
	defer f.Close()
	in.blocks, err = bmap.Read(f)
	return in, err
}

// saveArtifact writes an artifact of files in dir.
func saveArtifact(ctx context.Context, a images.Artifact, dir string, files ...images.File) error {
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name))
		if err != nil {
			return err
		}
		file.SHA256, err = localfile.Digest(ctx, f, func(n int64) { file.SizeBytes += n })
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		a.Files = append(a.Files, file)
	}
	return a.Save(dir)
}

// makeImage makes runs of data from 64 KiB to 16 MiB with holes of about twice their length
// between them, like file systems in an image: 4 GiB hold 1.34 GB. Two sevenths of the data are
// random, like packed files. The rest are this machine's programs and libraries. zstd -3 halves
// it.
func makeImage(ctx context.Context, path string, sizeBytes int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	system := systemFiles()
	defer system.Close()
	random, sizes := rand.NewChaCha8([32]byte{1}), rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < sizeBytes; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		length := min(int64(64<<10)<<sizes.IntN(9), sizeBytes-at)
		to := io.NewOffsetWriter(f, at)
		for left := length; left > 0; {
			n, from := min(left, 4<<10<<(random.Uint64()%5)), io.Reader(system)
			if random.Uint64()%7 < 2 {
				from = random
			}
			if _, err := io.CopyN(to, from, n); err != nil {
				return err
			}
			left -= n
		}
		at += length + (length*11/5)&^4095
	}
	return errors.Join(f.Truncate(sizeBytes), f.Sync())
}

// systemFiles returns the files of this machine's programs and libraries, one after the other,
// again and again.
func systemFiles() io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			err = filepath.WalkDir([]string{"/usr/bin", "/usr/lib"}[i%2], func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				f, err := os.Open(path)
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = io.Copy(w, f)
				return err
			})
		}
		w.CloseWithError(err) // that of the closed pipe, at the end
	}()
	return r
}

// makeUsed makes the device look used: other data where the image's will be, nothing elsewhere,
// and all of that on the disk. So no variant finds the data of the one before it, and the file's
// blocks are allocated, as those of a real device are.
func (l *loop) makeUsed() error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // the cache would else keep what is punched here
		return err
	}
	for off, length := range l.blocks.Holes {
		if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length); err != nil {
			return fmt.Errorf("empty %s, whose file's system has to be able to free space: %w", l.path, err)
		}
	}
	err = l.writeUsedData()
	unix.Sync()
	return err
}

// usedData is the data of a device that was in use before.
var usedData = sync.OnceValue(func() []byte {
	p := source.Buffer(1 << 20)
	_, _ = rand.NewChaCha8([32]byte{'u'}).Read(p) // which never fails
	return p
})

// writeUsedData writes usedData to all mapped blocks, two parts at a time. No program that
// writes all of them can be faster.
func (l *loop) writeUsedData() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := write.OpenDisk(f)
	if err != nil {
		return err
	}
	defer d.Close()
	var g errgroup.Group
	g.SetLimit(2)
	for _, r := range l.blocks.Ranges {
		first, length := l.blocks.Span(r)
		for off := first; off < first+length; off += int64(len(usedData())) {
			g.Go(func() error {
				_, err := d.WriteAt(usedData()[:min(first+length-off, int64(len(usedData())))], off)
				return err
			})
		}
	}
	return errors.Join(g.Wait(), d.Sync())
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

// checkImage compares a program's result with the image, so that no program is fast because it
// does not do its work. It leaves nothing of it in the page cache.
func (l *loop) checkImage(ctx context.Context, image string) error {
	err := run.Run(ctx, run.Command{Argv: []string{"cmp", image, l.path}})
	return errors.Join(err, run.Run(ctx, run.Command{Argv: []string{"blockdev", "--flushbufs", l.path}}))
}

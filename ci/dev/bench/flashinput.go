package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// form is a file format of the bench's image.
type form struct {
	key  string
	file string
	pack func(ctx context.Context, image, to string) error // nil: the raw image itself
	own  bool                                              // has a map of its own
}

// The compressors have Yocto's settings.
var forms = []form{
	{key: "raw", file: rawImage, own: true},
	{key: "zst", file: rawImage + ".zst", pack: byProgram("zstd", "-3", "-T0", "-q")},
	{key: "gz", file: rawImage + ".gz", pack: byProgram("gzip")},
	{key: "xz", file: rawImage + ".xz", pack: byProgram("xz", "-T0")},
	{key: "changed", file: rawImage, pack: changeImage, own: true},
}

const (
	rawImage = "disk.img"
	mapName  = "disk.bmap"
	// contentVersion is part of the folder's name, so that images of older versions of
	// this file are not used.
	contentVersion = 2
)

// byProgram compresses with a program that writes to its standard output.
func byProgram(argv ...string) func(ctx context.Context, image, to string) error {
	return func(ctx context.Context, image, to string) error {
		out, err := os.Create(to)
		if err != nil {
			return err
		}
		cmd := run.Prepare(ctx, run.Command{Argv: append(argv, "-c", image)})
		cmd.Stdout, cmd.Stderr = out, os.Stderr
		if err := cmd.Run(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", argv[0], err), out.Close())
		}
		return errors.Join(out.Sync(), out.Close())
	}
}

// inputs is one image in all its forms. Each lies in a folder in which the command flash
// can be run, with an artifact in build/<board>, where flash leaves its receipt.
type inputs struct {
	board     string // the board that the artifact names
	dir       string
	sizeBytes int64
	blocks    map[string]bmap.Map // of the images, by their forms' keys
}

func (in inputs) formDir(key string) string { return filepath.Join(in.dir, key) }
func (in inputs) artifactDir(key string) string {
	return filepath.Join(in.formDir(key), "build", in.board)
}

func (in inputs) imagePath(key string) string {
	i := slices.IndexFunc(forms, func(f form) bool { return f.key == key })
	return filepath.Join(in.artifactDir(key), forms[i].file)
}
func (in inputs) mapPath(key string) string { return filepath.Join(in.artifactDir(key), mapName) }

// makeInputs makes the missing ones of the wanted forms, and the raw image that the others
// are made from. A folder gets its name when it is complete.
func makeInputs(ctx context.Context, dir string, sizeBytes int64, wanted func(key string) bool) (inputs, error) {
	board, err := cardBoard()
	if err != nil {
		return inputs{}, err
	}
	in := inputs{
		board: board, dir: filepath.Join(dir, fmt.Sprintf("%d-mib-%d", sizeBytes>>20, contentVersion)), sizeBytes: sizeBytes,
		blocks: map[string]bmap.Map{},
	}
	for _, f := range forms {
		if f.key != "raw" && !wanted(f.key) {
			continue
		}
		if err := in.ensureForm(ctx, f); err != nil {
			return in, fmt.Errorf("make the bench's image, %s: %w", f.key, err)
		}
	}
	return in, nil
}

// cardBoard returns a board whose image is written to cards and files unchanged. The bench's
// image holds programs of this machine.
func cardBoard() (string, error) {
	spec, err := images.First("is flashed by a card, and as a file", func(spec images.Spec) bool {
		kinds := spec.Flash.Kinds
		return spec.Machine == nil && spec.Arch == runtime.GOARCH && slices.Contains(kinds, device.Block) && slices.Contains(kinds, device.File)
	})
	return spec.Board, err
}

func (in inputs) ensureForm(ctx context.Context, f form) error {
	if _, err := images.OpenArtifact(in.artifactDir(f.key)); err != nil {
		err := progress.Run(ctx, "make the image, "+f.key, func(*progress.Step) (string, error) { return "", in.makeForm(ctx, f) })
		if err != nil {
			return err
		}
	}
	blocks, err := os.Open(in.mapPath(f.key))
	if err != nil {
		return err
	}
	defer blocks.Close()
	in.blocks[f.key], err = bmap.Read(blocks) // of a packed one, a link to that of the raw one
	return err
}

func (in inputs) makeForm(ctx context.Context, f form) error {
	part := in.formDir(f.key) + ".part"
	dir := filepath.Join(part, "build", in.board)
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(in.formDir(f.key)), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	file, blocks := filepath.Join(dir, f.file), filepath.Join(dir, mapName)
	pack := f.pack
	if pack == nil {
		pack = func(ctx context.Context, _, to string) error { return makeImage(ctx, to, in.sizeBytes) }
	}
	if err := pack(ctx, in.imagePath("raw"), file); err != nil {
		return err
	}
	if err := in.ensureMap(ctx, f, file, blocks); err != nil {
		return err
	}
	if err := in.writeArtifact(dir, f.file); err != nil {
		return err
	}
	return os.Rename(part, in.formDir(f.key))
}

// writeArtifact writes the artifact of an image and its map.
func (in inputs) writeArtifact(dir, image string) error {
	a := images.Artifact{Board: in.board}
	for kind, name := range map[string]string{images.DiskImage: image, images.BlockMap: mapName} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		h := sha256.New()
		n, err := io.Copy(h, f)
		f.Close()
		if err != nil {
			return err
		}
		a.Files = append(a.Files, images.File{Kind: kind, Name: name, SizeBytes: n, SHA256: hex.EncodeToString(h.Sum(nil))})
	}
	return a.Save(dir)
}

func (in inputs) ensureMap(ctx context.Context, f form, image, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if f.own {
		return makeMap(ctx, image, to)
	}
	return os.Link(in.mapPath("raw"), to)
}

func makeMap(ctx context.Context, image, to string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := bmap.Create(ctx, f)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = m.WriteTo(out)
	return errors.Join(err, out.Close())
}

// makeImage makes runs of data from 64 KiB to 16 MiB with holes of about twice their length
// between them, like file systems in an image: 4 GiB hold 1.34 GB.
func makeImage(ctx context.Context, path string, sizeBytes int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(sizeBytes); err != nil {
		return err
	}
	c, err := newContent(1)
	if err != nil {
		return err
	}
	defer c.close()
	sizes := rand.New(rand.NewPCG(1, 2))
	for at := int64(0); at < sizeBytes; {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		run := min(int64(64<<10)<<sizes.IntN(9), sizeBytes-at)
		p := make([]byte, run)
		if err := c.fill(p); err != nil {
			return err
		}
		if _, err := f.WriteAt(p, at); err != nil {
			return err
		}
		at += run + holeAfter(run)
	}
	return f.Sync()
}

// changeImage copies an image and replaces a twentieth of its data, in runs from 64 KiB to
// 4 MiB, like an update that brings some new files.
func changeImage(ctx context.Context, image, to string) error {
	if err := run.Run(ctx, run.Command{Argv: []string{"cp", "--sparse=always", image, to}}); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	blocks, err := bmap.Create(ctx, f)
	if err != nil {
		return err
	}
	c, err := newContent(2)
	if err != nil {
		return err
	}
	defer c.close()
	sizes := rand.New(rand.NewPCG(3, 4))
	size, passed := int64(0), int64(0)
	for _, r := range blocks.Ranges {
		off, length := blocks.Span(r)
		for end := off + length; off < end; {
			if passed == 20*size {
				size, passed = int64(64<<10)<<sizes.IntN(7), 0
			}
			n := min(end-off, size-passed%size)
			if passed/size == 10 {
				p := make([]byte, n)
				if err := c.fill(p); err != nil {
					return err
				}
				if _, err := f.WriteAt(p, off); err != nil {
					return err
				}
			}
			off, passed = off+n, passed+n
		}
	}
	return f.Sync()
}

func holeAfter(run int64) int64 { return (run * 11 / 5) &^ 4095 }

// content is the data of the files: two sevenths random, like packed files, the rest from
// this machine's programs and libraries, one after the other, as an image has them. zstd -3
// halves it.
type content struct {
	random *rand.ChaCha8
	files  []string
	next   int
	open   io.ReadCloser // nil: the next one must be opened
}

// systemFolders hold most programs of every Debian machine.
var systemFolders = []string{"/usr/bin", "/usr/lib"}

// newContent returns other content for each seed.
func newContent(seed byte) (*content, error) {
	c := &content{random: rand.NewChaCha8([32]byte{seed})}
	for _, dir := range systemFolders {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Size() > 0 {
				c.files = append(c.files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(c.files) == 0 {
		return nil, fmt.Errorf("there is no file in %s to make an image of", strings.Join(systemFolders, " and "))
	}
	c.next = int(seed-1) * len(c.files) / 2
	return c, nil
}

func (c *content) close() {
	if c.open != nil {
		c.open.Close()
	}
}

func (c *content) fill(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), 4<<10<<(c.random.Uint64()%5))
		if c.random.Uint64()%7 < 2 {
			_, _ = c.random.Read(p[:n]) // which never fails
		} else if err := c.readSystemFiles(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (c *content) readSystemFiles(p []byte) error {
	for len(p) > 0 {
		if c.open == nil {
			f, err := os.Open(c.files[c.next%len(c.files)])
			if err != nil {
				return err
			}
			c.open, c.next = f, c.next+1
		}
		n, err := c.open.Read(p)
		p = p[n:]
		if errors.Is(err, io.EOF) {
			err = c.open.Close()
			c.open = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// Made is the result of MapFile and PackFile.
type Made struct {
	Image       string `json:"image"`
	Form        string `json:"form"`
	ImageBytes  int64  `json:"imageBytes"`
	MappedBytes int64  `json:"mappedBytes"`
	Ranges      int    `json:"ranges"`
	Map         string `json:"map"`
	Packed      string `json:"packed,omitempty"`
	PackedBytes int64  `json:"packedBytes,omitempty"`
}

// MapFile writes the block map of an image in any form beside it, as IMAGE.bmap.
func MapFile(ctx context.Context, path, version string) (Made, error) {
	algorithm, err := bmap.AlgorithmOf(version)
	if err != nil {
		return Made{}, fmt.Errorf("map %s: %w", path, err)
	}
	made, m, err := packFile(ctx, path, nil, 1, algorithm)
	if err != nil {
		return Made{}, err
	}
	made.Map = path + ".bmap"
	return made, writeMap(made.Map, m, version)
}

// PackFile writes an image in any form as frames of zstd to a file, with its block map
// beside it. An empty to is the image's name with the ending .zst.
func PackFile(ctx context.Context, path, to string, level int) (Made, error) {
	if to == "" {
		to = trimForm(path) + ".zst"
	}
	if err := checkTarget(path, to); err != nil {
		return Made{}, fmt.Errorf("pack: %w", err)
	}
	f, err := renameio.NewPendingFile(to, renameio.WithPermissions(0o644), renameio.WithTempDir(filepath.Dir(to)))
	if err != nil {
		return Made{}, err
	}
	defer f.Cleanup()
	made, m, err := packFile(ctx, path, f, level, bmap.SHA256)
	if err != nil {
		return Made{}, err
	}
	if made.PackedBytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return Made{}, err
	}
	made.Packed, made.Map = to, to+".bmap"
	// An old map must not stay beside a new image, so the map is written last.
	if err := os.Remove(made.Map); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Made{}, err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return Made{}, err
	}
	return made, writeMap(made.Map, m, bmap.Latest)
}

// trimForm removes the ending of a form from a name.
func trimForm(path string) string {
	ending := strings.ToLower(filepath.Ext(path))
	for _, k := range forms {
		if slices.Contains(k.ends, ending) {
			return path[:len(path)-len(ending)]
		}
	}
	return path
}

// checkTarget refuses targets that packing must not replace: the image, also as the
// map's name, or devices, whose nodes would become files.
func checkTarget(path, to string) error {
	image, err := os.Stat(path)
	if err != nil {
		return localfile.NotHere(path, err)
	}
	for _, name := range []string{to, to + ".bmap"} {
		old, err := os.Stat(name)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return err
		case os.SameFile(image, old):
			return fmt.Errorf("%s would be replaced itself; name another file with --to", path)
		case !old.Mode().IsRegular():
			return fmt.Errorf("%s is no file; name one with --to", name)
		}
	}
	return nil
}

func packFile(ctx context.Context, path string, to io.Writer, level int, algorithm string) (Made, bmap.Map, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return Made{}, bmap.Map{}, localfile.NotHere(path, err)
	}
	defer f.Close()
	m, err := Open(f, path)
	if err != nil {
		return Made{}, bmap.Map{}, err
	}
	defer m.Close()
	step := progress.Start(ctx, "pack", max(0, m.SizeBytes()), progress.Bytes)
	p, err := newPacker(to, level, algorithm, step.Add)
	var blocks bmap.Map
	if err == nil {
		blocks, err = p.packImage(ctx, m)
	}
	step.End(fmt.Sprintf("%d of %d MiB are data", blocks.Mapped()>>20, blocks.ImageSize>>20), err)
	return Made{
		Image: path, Form: m.Form(), ImageBytes: blocks.ImageSize,
		MappedBytes: blocks.Mapped(), Ranges: len(blocks.Ranges),
	}, blocks, err
}

func writeMap(path string, m bmap.Map, version string) error {
	var b bytes.Buffer
	if _, err := m.WriteVersion(&b, version); err != nil {
		return err
	}
	return renameio.WriteFile(path, b.Bytes(), 0o644)
}

// Show prints the result as text.
func (m Made) Show(w io.Writer) {
	fmt.Fprintf(w, "%s (%s): %d MiB, of which %d MiB are data in %d ranges\n", m.Image, m.Form, m.ImageBytes>>20, m.MappedBytes>>20, m.Ranges)
	if m.Packed != "" {
		fmt.Fprintf(w, "%s: %d MiB\n", m.Packed, m.PackedBytes>>20)
	}
	fmt.Fprintln(w, m.Map)
}

package flash

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"slipway/flash/probe"
	"slipway/flash/source"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// MapImage writes the block map of the image at path beside it. It refuses a file with neither a
// partition table nor a file system, and one whose map belongs to an artifact.
func MapImage(ctx context.Context, path string) (source.Made, error) {
	head, err := readHead(ctx, path)
	if err == nil {
		err = refuseListed(path + ".bmap")
	}
	if err != nil {
		return source.Made{}, err
	}
	holds, _ := probe.Read(bytes.NewReader(head), int64(len(head)), 0) // no disk that could fail
	if holds.Type == "" && holds.Table == nil {
		err = probe.CheckImage(bytes.NewReader(head), int64(len(head)), 0)
	}
	if err != nil {
		return source.Made{}, nameImage(path, fmt.Errorf("%s is no disk image: %w", path, err))
	}
	return source.MapFile(ctx, path)
}

// refuseListed returns an error if the artifact.json in path's folder lists the file. Slipway must
// not change a file whose digest may be signed. An unreadable artifact.json lists nothing.
func refuseListed(path string) error {
	a, err := images.OpenArtifact(filepath.Dir(path))
	if err == nil && slices.ContainsFunc(a.Files, func(f images.File) bool { return f.Name == filepath.Base(path) }) {
		return fmt.Errorf("%s belongs to the artifact of board %s, whose artifact.json has its digest\nnext: ls -l %s  # copy the image to another folder, and map it there", path, a.Board, plaintext.Quote(filepath.Dir(path)))
	}
	return nil
}

// readHead returns up to checkedBytes from the beginning of the image at path, unpacked.
func readHead(ctx context.Context, path string) ([]byte, error) {
	f, err := localfile.Open(path)
	if err != nil {
		return nil, localfile.ExplainUnreadable(path, err)
	}
	defer f.Close()
	m, err := source.Open(f, path)
	if err != nil {
		return nil, err
	}
	h := m.Head(ctx, checkedBytes)
	defer h.Close()
	head := make([]byte, checkedBytes)
	n, _ := h.ReadAt(head, 0)
	return head[:n], h.Err()
}

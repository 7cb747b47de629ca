package bfb

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"slipway/layers/localfile"
)

// Trailing is the name of the data after the images.
const Trailing = "trailing"

// Extract checks the whole stream, then writes the named images, or all and the trailing data, to
// files called prefix and the image's name, each whole or not at all. It returns the names of those
// written, even with an error. Only the user can read the trailing data.
func (s Stream) Extract(ctx context.Context, r io.ReaderAt, prefix string, names []string) ([]string, error) {
	spans, err := s.selectSpans(names)
	if err != nil {
		return nil, err
	}
	if err := s.Check(ctx, r, nil); err != nil {
		return nil, err
	}
	var written []string
	for _, sp := range spans {
		file := prefix + sp.name
		mode := os.FileMode(0o644)
		if sp.name == Trailing {
			mode = 0o600 // a bf.cfg holds hashes of passwords
		}
		if err := extractSpan(ctx, io.NewSectionReader(r, sp.off, sp.size), file, mode); err != nil {
			return written, fmt.Errorf("write %s: %w", file, err)
		}
		written = append(written, file)
	}
	return written, nil
}

type span struct {
	name      string
	off, size int64
}

// selectSpans returns the places of the named images, in the stream's order; no names select all
// and the trailing data. It returns an error for an unknown name, or for two images of one name.
func (s Stream) selectSpans(names []string) ([]span, error) {
	var all []span
	var held []string
	for _, i := range s.Images {
		if slices.Contains(held, i.Name) {
			return nil, fmt.Errorf("two images would be files called %s", i.Name)
		}
		all, held = append(all, span{i.Name, i.OffsetBytes, i.SizeBytes}), append(held, i.Name)
	}
	if s.TrailingBytes > 0 {
		all, held = append(all, span{Trailing, s.StreamBytes, s.TrailingBytes}), append(held, Trailing)
	}
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.Contains(held, name) {
			return nil, fmt.Errorf("it holds no %q; it holds %s", name, strings.Join(held, " "))
		}
	}
	return slices.DeleteFunc(all, func(sp span) bool { return !slices.Contains(names, sp.name) }), nil
}

// extractSpan writes all of from to file, which appears when complete and replaces only a file.
func extractSpan(ctx context.Context, from io.Reader, file string, mode os.FileMode) error {
	if err := checkReplaceable(file); err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(file, renameio.WithPermissions(mode))
	if err != nil {
		return err
	}
	defer f.Cleanup()
	if _, err := io.Copy(f, localfile.WithContext(ctx, from, nil)); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

// checkReplaceable refuses a path that exists but is no regular file: a rename destroys a device.
func checkReplaceable(path string) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists and is no file", path)
	}
	return nil
}

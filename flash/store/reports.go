package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"

	"slipway/images"
	"slipway/layers/localfile"
)

// FetchReports copies report.json and artifact.json of a store's newest artifacts with a report,
// each into a folder below into, unless it exists. It returns up to last folders, from old to new.
func FetchReports(ctx context.Context, reference string, last int, into string) ([]string, error) {
	s, place, err := openWhole(reference, toPull)
	if err != nil {
		return nil, err
	}
	defer s.close()
	all, err := list(ctx, s)
	if err != nil {
		return nil, listError(place, err)
	}
	all = slices.DeleteFunc(all, func(e Entry) bool {
		_, ok := layerNamed(e.manifest, reportName)
		return !ok
	})
	all = all[:max(min(last, len(all)), 0)]
	slices.Reverse(all)
	folders := []string{}
	for _, e := range all {
		dir := filepath.Join(into, e.Built.UTC().Format("20060102T150405Z")+"-"+digest.Digest(e.Digest).Encoded()[:12])
		if err := fetchReport(ctx, s, e, dir); err != nil {
			return folders, explainStoreError(place, fmt.Errorf("%s@%s: %w", place, e.Digest, err))
		}
		folders = append(folders, dir)
	}
	return folders, nil
}

// fetchReport copies report.json and artifact.json of an artifact. The folder gets its name when
// both are complete. It does nothing if the folder exists.
func fetchReport(ctx context.Context, s Store, e Entry, dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := localfile.MkdirAll(filepath.Dir(dir)); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	whole := filepath.Join(part, "whole")
	if err := os.Mkdir(whole, 0o755); err != nil {
		return err
	}
	for _, name := range []string{images.ArtifactName, reportName} {
		l, _ := layerNamed(e.manifest, name)
		path, err := s.get(ctx, l, name, filepath.Join(part, "blobs"))
		if err == nil {
			err = os.Rename(path, filepath.Join(whole, name))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return os.Rename(whole, dir)
}

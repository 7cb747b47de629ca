package tegra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"slipway/layers/run"
)

// CopyTo copies the package to the new folder dir for one board, because its scripts write into
// their folder. Files that they only read become hard links and others share blocks, if possible.
func (p *Package) CopyTo(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := p.copyEntries(ctx, dir); err != nil {
		return errors.Join(fmt.Errorf("copy the package: %w", err), os.RemoveAll(dir))
	}
	return nil
}

// copyEntries puts the package's entries into dir: the images that its variables ROOTFS_IMAGE and
// DATAFILE name as hard links if possible, and all others as copies by cp.
func (p *Package) copyEntries(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	shared := []string{p.vars["ROOTFS_IMAGE"], p.vars["DATAFILE"]} // large, and the scripts only read them
	argv := []string{"cp", "-a", "--reflink=auto", "-t", dir, "--"}
	for _, e := range entries {
		from := filepath.Join(p.Dir, e.Name())
		if slices.Contains(shared, e.Name()) && os.Link(from, filepath.Join(dir, e.Name())) == nil {
			continue
		}
		argv = append(argv, from)
	}
	return run.Run(ctx, run.Command{Argv: argv})
}

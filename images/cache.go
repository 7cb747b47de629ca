package images

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"slipway/images/cache"
)

// ServeCache serves what builds on this machine made, until ctx ends: the build
// folder, or another one. The servers are those of the board's bitbake; without a
// board, of the newest that is checked out.
func ServeCache(ctx context.Context, opt Options, board string, serve cache.ServeOptions) error {
	if serve.Dir == "" {
		serve.Dir = opt.Dir
	}
	var err error
	if serve.Bitbake, err = checkedOutBitbake(opt, board); err != nil {
		return err
	}
	return cache.Serve(ctx, serve)
}

// checkedOutBitbake is the folder of a board's bitbake; for "" the newest of all boards'.
func checkedOutBitbake(opt Options, board string) (string, error) {
	of := board
	if board == "" {
		of = "*"
	} else if _, err := Load(board); err != nil {
		return "", err
	}
	var best string
	var newest cache.Version
	for _, below := range []string{"layers/*/bitbake", "layers/*"} {
		found, err := filepath.Glob(filepath.Join(opt.Dir, of, below, "bin/bitbake-hashserv"))
		if err != nil {
			return "", err
		}
		for _, program := range found {
			dir := filepath.Dir(filepath.Dir(program))
			if v, err := cache.VersionOf(dir); err == nil && (best == "" || slices.Compare(newest[:], v[:]) < 0) {
				best, newest = dir, v
			}
		}
	}
	if best == "" {
		return "", fmt.Errorf("no bitbake is checked out in %s, whose servers could run; run layers:checkout BOARD first", filepath.Join(opt.Dir, of))
	}
	return filepath.Abs(best)
}

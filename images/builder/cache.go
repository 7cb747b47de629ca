package builder

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// useCache checks the cache of the setting, writes its cache.conf, and makes bitbake use that. It
// warns of the file in which earlier versions had the setting.
func useCache(ctx context.Context, spec images.Spec, tree *bitbake.Tree) error {
	setting, err := cache.Choose(spec.Cache)
	if err != nil {
		return err
	}
	if dir, err := os.UserConfigDir(); err == nil && setting == (cache.Setting{}) && localfile.Exists(filepath.Join(dir, "slipway/config.yml")) {
		progress.Warn(ctx, filepath.Join(dir, "slipway/config.yml")+" is not read any more; set "+cache.Environment+", or write cache: into board.yml")
	}
	given, err := cache.Prepare(ctx, cache.Request{Setting: setting, Bitbake: filepath.Dir(tree.Programs), File: filepath.Join(tree.Dir, "cache.conf"), Env: tree.Env})
	tree.Pre, tree.Shared = given.Pre, given.Shared
	return err
}

// ServeCache serves shared state and downloads of serve.Dir, by default the build folder, until ctx
// ends. It runs the servers of the newest bitbake checked out for board, or for any if it is "".
func ServeCache(ctx context.Context, opt images.Options, board string, serve cache.ServeOptions) error {
	serve.Dir = cmp.Or(serve.Dir, opt.Dir)
	var err error
	if serve.Bitbake, err = checkedOutBitbake(ctx, opt, board); err != nil {
		return err
	}
	return cache.Serve(ctx, serve)
}

// checkedOutBitbake returns the folder of the newest bitbake with a hash server among a board's
// checkouts, or among those of all boards if board is "".
func checkedOutBitbake(ctx context.Context, opt images.Options, board string) (string, error) {
	checkouts, err := checkoutsOf(ctx, opt, board)
	if err != nil {
		return "", err
	}
	var best string
	var newest cache.Version
	for _, checkout := range checkouts {
		for _, dir := range []string{filepath.Join(checkout, "bitbake"), checkout} {
			if v, err := cache.VersionOf(dir); err == nil && localfile.Exists(filepath.Join(dir, "bin/bitbake-hashserv")) && (best == "" || slices.Compare(newest[:], v[:]) < 0) {
				best, newest = dir, v
			}
		}
	}
	if best == "" {
		return "", fmt.Errorf("no bitbake is checked out in %s, whose servers could run\nnext: layers checkout BOARD", filepath.Join(opt.Dir, cmp.Or(board, "*")))
	}
	return filepath.Abs(best)
}

// checkoutsOf returns the folders of a board's repositories, or those of all boards if board is "".
// For local folders it loads the board and its project. It ignores only errors of the project.
func checkoutsOf(ctx context.Context, opt images.Options, board string) (dirs []string, err error) {
	found, err := fs.Glob(os.DirFS(opt.Dir), path.Join(cmp.Or(board, "*"), images.CheckoutsName, "*"))
	for _, f := range found {
		dirs = append(dirs, filepath.Join(opt.Dir, f))
	}
	if board == "" || err != nil {
		return dirs, err
	}
	spec, err := images.Load(board)
	if err != nil {
		return nil, err
	}
	opt.Offline = true
	if p, ws, err := images.Project(ctx, spec, opt); err == nil { // its repositories may be elsewhere (SLIPWAY_LOCAL)
		for _, r := range p.Repos {
			dirs = append(dirs, p.Dir(ws, r))
		}
	}
	return dirs, nil
}

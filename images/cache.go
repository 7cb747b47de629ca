package images

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"slipway/images/cache"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// cacheFor finds out what bitbake is to know of the cache that holds for a board.
// programs is bitbake's bin folder, dir the board's folder, and build its TOPDIR.
func cacheFor(ctx context.Context, spec Spec, project layers.Project, programs, dir, build string) (cache.BitbakeOptions, error) {
	setting, err := cache.Choose(spec.Cache)
	if err != nil {
		return cache.BitbakeOptions{}, err
	}
	return cache.Prepare(ctx, cache.Request{
		Setting: setting, Bitbake: filepath.Dir(programs), Build: build, File: filepath.Join(dir, "cache.conf"), Env: bitbakeEnvironment(project),
	})
}

// bitbakeEnvironment returns the variables that the user or the project set.
func bitbakeEnvironment(project layers.Project) map[string]string {
	taken := map[string]string{}
	for name, value := range project.Env {
		if value != nil {
			taken[name] = *value
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(project.Env)), []string{"DL_DIR", "SSTATE_DIR", "BB_NO_NETWORK"}) {
		if value, set := os.LookupEnv(name); set {
			taken[name] = value
		}
	}
	return taken
}

// CacheReport writes what a board's last build found in shared state, and what not.
func CacheReport(ctx context.Context, w io.Writer, spec Spec, opt Options, asJSON bool) error {
	if spec.Debian != nil {
		return fmt.Errorf("board %s is made of Debian packages: it has no shared state\nnext: cache report BOARD, with one that bitbake builds", spec.Board)
	}
	setting, err := cache.Choose(spec.Cache)
	if err != nil {
		return err
	}
	report, err := cache.ReportOf(ctx, spec.Board, opt.BoardDir(spec), setting)
	if err != nil {
		return err
	}
	if !asJSON {
		return report.Write(w)
	}
	return plaintext.WriteJSON(w, report)
}

// ServeCache serves what builds on this machine made, until ctx ends: the build
// folder, or another one. The servers are those of the board's bitbake; without a
// board, of the newest that is checked out.
func ServeCache(ctx context.Context, opt Options, board string, serve cache.ServeOptions) error {
	if serve.Dir == "" {
		serve.Dir = opt.Dir
	}
	var err error
	if serve.Bitbake, err = checkedOutBitbake(ctx, opt, board); err != nil {
		return err
	}
	return cache.Serve(ctx, serve)
}

// checkedOutBitbake is the folder of a board's bitbake; for "" the newest of all boards'.
func checkedOutBitbake(ctx context.Context, opt Options, board string) (string, error) {
	checkouts := []string{filepath.Join(opt.Dir, cmp.Or(board, "*"), checkoutsName, "*")}
	if board != "" {
		spec, err := Load(board)
		if err != nil {
			return "", err
		}
		if p, ws, err := Project(ctx, spec, opt); err == nil { // its repositories may be folders elsewhere
			for _, r := range p.Repos {
				checkouts = append(checkouts, p.Dir(ws, r))
			}
		}
	}
	var best string
	var newest cache.Version
	for _, checkout := range checkouts {
		for _, below := range []string{"bitbake", ""} {
			found, _ := filepath.Glob(filepath.Join(checkout, below, "bin/bitbake-hashserv"))
			for _, program := range found {
				dir := filepath.Join(program, "../..")
				if v, err := cache.VersionOf(dir); err == nil && (best == "" || slices.Compare(newest[:], v[:]) < 0) {
					best, newest = dir, v
				}
			}
		}
	}
	if best == "" {
		return "", fmt.Errorf("no bitbake is checked out in %s, whose servers could run\nnext: layers checkout BOARD", filepath.Join(opt.Dir, cmp.Or(board, "*")))
	}
	return filepath.Abs(best)
}

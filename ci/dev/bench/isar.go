package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/dev/tinyclone"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/run"
)

// Isar builds the image of isar-amd64 four times, each time in a new build folder: without a
// cache, with an empty cache that it fills, with the folder of that cache, and from the
// cache's servers as another machine does. Then it measures a build that finds all tasks
// done, as Build does.
func Isar(ctx context.Context, w io.Writer) error {
	spec, err := images.Load("isar-amd64")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return keepOnFailure(ctx, "bench-isar-", func(dir string) (err error) {
		b := isarBench{self: self, dir: dir, spec: spec}
		defer func() { err = errors.Join(err, b.removeBuilt(context.WithoutCancel(ctx))) }()
		if err := b.prepare(ctx); err != nil {
			return err
		}
		rows, ratios, err := b.measureCache(ctx, w)
		if err != nil {
			return err
		}
		done, err := b.measureDone(ctx)
		if err != nil {
			return err
		}
		return PrintTable(w, append(rows, done...), append(ratios, buildRatios(done)...)...)
	})
}

type isarBench struct {
	self, dir string
	spec      images.Spec
	clones    []tinyclone.Clone
	env       []string // of all builds
}

// prepare makes the folders, a key that all builds sign with, and the downloads of each.
func (b *isarBench) prepare(ctx context.Context) (err error) {
	if b.env, err = tinyclone.Key(ctx, filepath.Join(b.dir, "keys")); err != nil {
		return err
	}
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return err
	}
	for _, name := range []string{"alone", "filling", "folder", "servers"} {
		clone, err := tinyclone.Isar(filepath.Join(b.dir, name), b.spec)
		if err != nil {
			return err
		}
		b.clones = append(b.clones, clone)
	}
	for clone := range b.clones {
		if err := b.build(ctx, clone, cache.Environment+"=off", "--task=fetch"); err != nil {
			return err
		}
	}
	return nil
}

// build runs slipway build in a clone, with one more variable.
func (b *isarBench) build(ctx context.Context, clone int, variable string, flags ...string) error {
	argv := append([]string{b.self, "build", b.spec.Board}, flags...)
	return run.Run(ctx, run.Command{Argv: argv, Dir: b.clones[clone].Dir, Env: append(b.env, variable), Log: filepath.Join(b.dir, "build.log")})
}

func (b *isarBench) removeBuilt(ctx context.Context) (err error) {
	for _, c := range b.clones {
		err = errors.Join(err, c.RemoveBuilt(ctx))
	}
	return err
}

// measureCache times one build of each kind: each takes minutes.
func (b *isarBench) measureCache(ctx context.Context, w io.Writer) (rows []Row, ratios []Ratio, err error) {
	served, stop, err := b.serve(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	remote := fmt.Sprintf("{sstate: %[1]s/sstate, downloads: %[1]s/downloads, hashserv: '%[2]s', prserv: '%[3]s'}", served.Cache, served.Hashserv, served.PRServ)
	for i, v := range []struct{ name, setting string }{
		{"build without a cache", "off"},
		{"build that fills an empty cache", served.Cache},
		{"build with the cache's folder", served.Cache},
		{"build with the cache's servers", remote},
	} {
		began := time.Now()
		if err := b.build(ctx, i, cache.Environment+"="+v.setting); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", v.name, err)
		}
		rows = append(rows, Row{Name: v.name, Times: []time.Duration{time.Since(began)}})
		record, err := bitbake.Open(b.clones[i].Built)
		if err != nil {
			return nil, nil, err
		}
		fmt.Fprintf(w, "%s: %.1f s, %d tasks ran, %d were taken from shared state\n", v.name, rows[i].Median().Seconds(), record.Counts.Ran, record.Setscene.Hits)
	}
	saved := func(row Row) float64 { return (rows[0].Median() - row.Median()).Seconds() }
	return rows, []Ratio{
		TimeRatio("filling_over_alone", rows[1], rows[0]),
		TimeRatio("alone_over_folder", rows[0], rows[2]), TimeRatio("alone_over_servers", rows[0], rows[3]),
		{"folder_saves_s", saved(rows[2])},
		{"servers_save_s", saved(rows[3])},
	}, nil
}

// serve starts slipway cache serve for an empty folder, with the bitbake of the clone that fills it.
func (b *isarBench) serve(ctx context.Context) (served cache.Status, stop func() error, err error) {
	cmd := exec.CommandContext(ctx, b.self, "cache", "serve", filepath.Join(b.dir, "cache"), "--board="+b.spec.Board, "--listen=127.0.0.1:0", "--json")
	cmd.Dir, cmd.Env = b.clones[1].Dir, append(os.Environ(), b.env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return cache.Status{}, nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return cache.Status{}, nil, err
	}
	stop = func() error { return errors.Join(cmd.Cancel(), cmd.Wait()) }
	if err := json.NewDecoder(out).Decode(&served); err != nil {
		return cache.Status{}, nil, fmt.Errorf("cache serve did not say where: %w\n%s", errors.Join(err, stop()), said.String())
	}
	go io.Copy(io.Discard, out)
	return served, stop, nil
}

// measureDone measures a build of the first clone that finds all tasks done.
func (b *isarBench) measureDone(ctx context.Context) ([]Row, error) {
	clone := b.clones[0]
	for _, variable := range b.env { // the bitbake that is measured beside ours has the same
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return nil, err
		}
	}
	back, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if err := os.Chdir(clone.Dir); err != nil { // where the project file is
		return nil, err
	}
	defer func() { _ = os.Chdir(back) }()
	opt := images.Options{Dir: filepath.Join(clone.Dir, "build"), Offline: true}
	project, ws, err := images.Project(ctx, b.spec, opt)
	if err != nil {
		return nil, err
	}
	tree, err := bitbake.Find(ctx, project, ws, clone.Built, opt.BitbakeDir(b.spec))
	if err != nil {
		return nil, err
	}
	return measureBuild(ctx, clone, tree, project.Targets[0], b.self)
}

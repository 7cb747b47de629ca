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

	"golang.org/x/sys/unix"

	"slipway/ci/dev/tinyclone"
	"slipway/images"
	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers/plaintext"
)

var isarRatios = []ratio{
	{name: "filling_over_alone", over: "build that fills an empty cache", under: "build without a cache"},
	{name: "alone_over_folder", over: "build without a cache", under: "build with the cache's folder"},
	{name: "alone_over_servers", over: "build without a cache", under: "build with the cache's servers"},
	{name: "ours_over_bitbake", over: "slipway build", under: "bitbake in it"},
}

type isarBench struct {
	*session
	spec   images.Spec
	clones []tinyclone.Clone
	env    []string // of all builds
}

// measureIsar builds the image of isar-amd64 four times, each time in a new build folder:
// without a cache, with an empty cache that it fills, with the folder of that cache, and from
// the cache's servers as another machine does. Then it measures a build that finds all tasks
// done.
func measureIsar(ctx context.Context, s *session) (err error) {
	b := &isarBench{session: s}
	if b.spec, err = images.Load("isar-amd64"); err != nil {
		return err
	}
	if err := s.buildProgram(ctx, ".", "./magefiles/slipway"); err != nil {
		return err
	}
	if b.env, err = tinyclone.Key(ctx, filepath.Join(b.dir, "keys")); err != nil { // that all builds sign with
		return err
	}
	defer func() {
		for _, c := range b.clones {
			err = errors.Join(err, c.RemoveBuilt(context.WithoutCancel(ctx)))
		}
	}()
	for i, name := range []string{"alone", "filling", "folder", "servers"} {
		clone, err := tinyclone.Isar(filepath.Join(b.dir, name), b.spec)
		if err != nil {
			return err
		}
		b.clones = append(b.clones, clone)
		fetch := b.build(i, "off")
		fetch.command += " --task=fetch"
		if _, _, err := timeCommand(ctx, fetch); err != nil {
			return err
		}
	}
	rows, err := b.measureCache(ctx)
	if err != nil {
		return err
	}
	done, err := b.measureDone(ctx)
	if err != nil {
		return err
	}
	outside := 100 * (1 - median(done[1].wall).Seconds()/median(done[0].wall).Seconds())
	return s.print(append(rows, done...), isarRatios, figure{"outside_of_bitbake_percent", outside})
}

// build is slipway build in a clone, with a setting of the cache.
func (b *isarBench) build(clone int, setting string) variant {
	return variant{command: plaintext.Quote(b.program) + " build " + b.spec.Board, dir: b.clones[clone].Dir, env: append(b.env[:len(b.env):len(b.env)], cache.Environment+"="+setting)}
}

// measureCache times one build of each kind: each takes minutes.
func (b *isarBench) measureCache(ctx context.Context) (rows []row, err error) {
	served, stop, err := b.serve(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	remote := fmt.Sprintf("{sstate: %[1]s/sstate, downloads: %[1]s/downloads, hashserv: '%[2]s', prserv: '%[3]s'}", served.Cache, served.Hashserv, served.PRServ)
	for i, v := range []struct{ name, setting string }{
		{"build without a cache", "off"},
		{"build that fills an empty cache", served.Cache},
		{"build with the cache's folder", served.Cache},
		{"build with the cache's servers", remote},
	} {
		r := row{name: v.name}
		if err := r.measureOnce(ctx, b.build(i, v.setting), false); err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		rows = append(rows, r)
		record, err := bitbake.Open(b.clones[i].Built)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(b.w, "%s: %.1f s, %d tasks ran, %d were taken from shared state\n", v.name, r.wall[0].Seconds(), record.Counts.Ran, record.Setscene.Hits)
	}
	return rows, nil
}

// serve starts slipway cache serve for an empty folder, with the bitbake of the clone that fills it.
func (b *isarBench) serve(ctx context.Context) (served cache.Status, stop func() error, err error) {
	cmd := exec.CommandContext(ctx, b.program, "cache", "serve", filepath.Join(b.dir, "cache"), "--board="+b.spec.Board, "--listen=127.0.0.1:0", "--json")
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

// measureDone measures a build of the first clone that finds all tasks done, and how much of it
// bitbake's own record holds.
func (b *isarBench) measureDone(ctx context.Context) ([]row, error) {
	all, peer := row{name: "slipway build"}, row{name: "bitbake in it"}
	for round := range b.Rounds + 1 {
		if err := all.measureOnce(ctx, b.build(0, "off"), round == 0); err != nil {
			return nil, err
		}
		record, err := bitbake.Open(b.clones[0].Built)
		if err != nil {
			return nil, err
		}
		if round > 0 {
			peer.wall, peer.cpu = append(peer.wall, record.Took()), append(peer.cpu, 0)
		}
	}
	return []row{all, peer}, nil
}

package soak

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/renameio/v2"
	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sync/errgroup"

	"slipway/layers/host"
	"slipway/layers/run"
)

// together is how many containers run at a time, in the phases with a twentieth of all.
const together = 8

// boardScript makes a board in its mount namespace.
//
//go:embed board.sh
var boardScript string

// containerScript runs container $2 of the board in $1 to its end, and removes it.
const containerScript = `mkdir "$1/bundles/$2" && cd "$1/bundles/$2" && cp -a "$1/image" rootfs && cp "$1/config.json" . &&
runc --root "$1/state" run "$2" && cd / && rm -rf --one-file-system "$1/bundles/$2"`

// remainsScript lists mounts, files, cgroups of containers that begin with $2, and processes of
// the hook $3.
const remainsScript = `cd "$1"
grep -h -e "$1" -e /run/slipway /proc/self/mountinfo /proc/1/mountinfo
ls -A bundles state /run/slipway | grep -vx plan
find /sys/fs/cgroup -ignore_readdir_race -name "$2*"
for process in /proc/[0-9]*; do readlink "$process/exe"; done | grep -Fx "$3" || true`

// Hook starts containers that get a board's files from our hook. A part of them run 8 at a
// time, also while the board's list changes, then the rest one after another. All must
// succeed, and leave nothing. It needs root and runc.
func Hook(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	if os.Getuid() != 0 {
		return errors.New("it mounts and runs containers: it needs root")
	}
	if err := host.Ensure(ctx, w, filepath.Join(dir, "apt.log"), "runc", "busybox-static"); err != nil {
		return err
	}
	s := &soakedHook{dir: filepath.Join(dir, "board"), hook: filepath.Join(dir, "slipway-hook"), prefix: fmt.Sprintf("slipway-soak-%d-", os.Getpid())}
	build := run.Command{Argv: []string{"go", "build", "-C", "runtime-hook", "-trimpath", "-o", s.hook, "."}, Env: []string{"CGO_ENABLED=0"}}
	if err := errors.Join(run.Run(ctx, build), os.Mkdir(s.dir, 0o755)); err != nil {
		return err
	}
	board := exec.CommandContext(ctx, "unshare", "--mount", "--propagation=private", "sh", "-eu", "-c", boardScript, "sh", s.dir, s.hook)
	ready, err := board.StdoutPipe()
	if err != nil {
		return err
	}
	board.Stderr = w
	if err := board.Start(); err != nil {
		return err
	}
	defer func() { _ = board.Process.Kill(); _ = board.Wait() }()
	if _, err := io.ReadFull(ready, make([]byte, len("ready\n"))); err != nil {
		return fmt.Errorf("make a board: %w", err)
	}
	s.pid = strconv.Itoa(board.Process.Pid)
	return s.runPhases(ctx, w, opt.Containers)
}

type soakedHook struct {
	dir    string // in the board's namespace, a tmpfs
	hook   string
	prefix string // of the containers' names
	pid    string // of the process that keeps the namespace
	begun  atomic.Int64
}

// inBoard returns the run of a script in the board's namespace.
func (s *soakedHook) inBoard(script string, args ...string) run.Command {
	return run.Command{Argv: append([]string{"nsenter", "--mount", "--target=" + s.pid, "sh", "-c", script, "sh", s.dir}, args...)}
}

func (s *soakedHook) runPhases(ctx context.Context, w io.Writer, containers int) error {
	if err := s.startMany(ctx, 1, 1); err != nil { // it begins the log
		return err
	}
	before, err := s.describeRemains()
	if err != nil {
		return err
	}
	few := max(together, containers/20)
	for _, p := range []struct {
		name string
		run  func() error
	}{
		{fmt.Sprintf("%d containers, %d at a time", few, together), func() error { return s.startMany(ctx, few, together) }},
		{"as many while the board's list changes", func() error { return s.startManyWhileChanging(ctx, few) }},
		{fmt.Sprintf("%d containers, one after another", containers), func() error { return s.startMany(ctx, containers, 1) }},
	} {
		began := time.Now()
		if err := p.run(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(w, "%s: %.1f s\n", p.name, time.Since(began).Seconds())
		after, err := s.describeRemains()
		if err == nil && after != before {
			err = fmt.Errorf("%s left\n%s", p.name, diff.Diff("before", []byte(before), "after", []byte(after)))
		}
		if err != nil {
			return err
		}
	}
	// Without a plan the hook read the lists each time.
	return run.Run(ctx, s.inBoard("test -s /run/slipway/plan"))
}

// startMany runs n containers, atOnce of them at a time. They are never stopped half-way: a create
// that does not end leaves cgroups that no delete knows of.
func (s *soakedHook) startMany(ctx context.Context, n, atOnce int) error {
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(atOnce)
	for range n {
		work.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return run.Run(context.WithoutCancel(ctx), s.inBoard(containerScript, fmt.Sprint(s.prefix, s.begun.Add(1))))
		})
	}
	return work.Wait()
}

// startManyWhileChanging runs n containers, and keeps changing the board's list, by rename:
// its lines come in another order each time. The list then is as before.
func (s *soakedHook) startManyWhileChanging(ctx context.Context, n int) error {
	list := "/proc/" + s.pid + "/root/etc/nvidia-container-runtime/host-files-for-container.d/l4t.csv"
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.startMany(ctx, n, together) }()
	lines := strings.SplitAfter(strings.TrimSuffix(string(text), "\n"), "\n")
	for version := 1; ; version++ {
		select {
		case failed := <-ended:
			return errors.Join(err, failed, renameio.WriteFile(list, text, 0o644))
		case <-time.After(50 * time.Millisecond):
		}
		first := version % len(lines)
		changed := fmt.Sprintf("# version %d\n%s\n%s", version, strings.Join(lines[first:], ""), strings.Join(lines[:first], ""))
		err = errors.Join(err, renameio.WriteFile(list, []byte(changed), 0o644))
	}
}

// describeRemains lists what containers and the hook can leave behind. The result must be
// the same before and after.
func (s *soakedHook) describeRemains() (string, error) {
	out, err := run.Output(context.Background(), s.inBoard(remainsScript, s.prefix, s.hook))
	return string(out), err
}

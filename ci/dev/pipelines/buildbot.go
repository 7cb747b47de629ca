package pipelines

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// buildbot is a real master with a worker, on loopback.
type buildbot struct {
	*site
	env []string
}

// runBuildbot starts both, and waits for the build of the event's commit, which the master's
// poller finds.
func runBuildbot(ctx context.Context, s *site, ev event) (out outcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b := &buildbot{site: s}
	// The poller builds what comes after the state at its launch.
	if err := s.run(ctx, s.path("origin"), "git", "branch", "-q", "-f", "next", ev.commit); err != nil {
		return out, err
	}
	launch := ev.before
	if launch == noCommit {
		launch = "HEAD~1"
	}
	if err := s.run(ctx, s.path("origin"), "git", "reset", "-q", "--hard", launch); err != nil {
		return out, err
	}
	if err := b.prepare(ctx, ev); err != nil {
		return out, err
	}
	master, err := b.start(ctx, "master", "/usr/bin/buildbot")
	if err != nil {
		return out, err
	}
	defer master()
	worker, err := b.start(ctx, "worker", "/usr/bin/buildbot-worker")
	if err != nil {
		return out, err
	}
	defer worker()
	if err := b.waitFor(ctx, time.Minute, func() bool { st, err := b.state(ctx); return err == nil && st.Polled && st.Connected }); err != nil {
		return out, fmt.Errorf("the master did not start: %w", err)
	}
	if err := s.run(ctx, s.path("origin"), "git", "reset", "-q", "--hard", "next"); err != nil {
		return out, err
	}
	return b.watch(ctx)
}

// prepare makes the folders of master and worker once, and the configuration each time.
func (b *buildbot) prepare(ctx context.Context, ev event) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		return err
	}
	b.env = append(slices.Clone(b.site.env),
		"SLIPWAY_WORKER_PASSWORD=trial", "SLIPWAY_REPOSITORY="+b.path("origin"), "SLIPWAY_ARTIFACTS="+b.path("artifacts"), "SLIPWAY_SIGNING_KEY="+ev.key,
		"SLIPWAY_WORKER_PORT=tcp:"+port+":interface=127.0.0.1")
	// A master of its own for each end: what it saw before does not matter. The worker stays.
	if err := errors.Join(os.RemoveAll(b.path("master")), os.RemoveAll(b.path("worker/buildbot.tac"))); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"buildbot", "create-master", "-q", b.path("master")},
		{"buildbot-worker", "create-worker", "-q", b.path("worker"), "127.0.0.1:" + port, "builder", "trial"},
	} {
		if err := b.run(ctx, b.dir, argv...); err != nil {
			return err
		}
	}
	text, err := b.pipelineFile(0)
	if err != nil {
		return err
	}
	soon := strings.NewReplacer("pollInterval=60", "pollInterval=2", "treeStableTimer=10", "treeStableTimer=1").Replace(string(text))
	return os.WriteFile(b.path("master/master.cfg"), []byte(soon+"del c['www']\nc['logCompressionMethod'] = 'raw'\n"), 0o644)
}

func (b *buildbot) start(ctx context.Context, folder, program string) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, program, "start", "--nodaemon", b.path(folder))
	cmd.Env, cmd.Dir = b.env, b.dir
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, time.Minute
	log, err := os.OpenFile(b.path(folder+"-"+b.end+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its end is not what is looked at
		_ = log.Close()
	}, nil
}

func (b *buildbot) waitFor(ctx context.Context, limit time.Duration, there func() bool) error {
	for end := time.Now().Add(limit); !there(); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
		}
		if time.Now().After(end) {
			return fmt.Errorf("nothing in %s", limit)
		}
	}
	return nil
}

// state is what the master's database has. Debian has no buildbot-www, which would tell it.
type state struct {
	Polled, Connected bool
	Builds            []struct {
		ID       int
		Builder  string
		Complete int
	}
	Steps []struct {
		ID, Build      int
		Name           string
		Results        *int
		Started, Ended int64
	}
	Summaries []struct {
		Step int
		Text string
	}
}

//go:embed buildbot_state.py
var readState string

func (b *buildbot) state(ctx context.Context) (st state, err error) {
	out, err := exec.CommandContext(ctx, "python3", "-c", readState, b.path("master/state.sqlite")).Output()
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(out, &st)
}

const buildbotLimit = 90 * time.Minute

// watch waits until the first build, of check, is complete, and reads all builds.
func (b *buildbot) watch(ctx context.Context) (out outcome, err error) {
	var st state
	done := func() bool {
		st, err = b.state(ctx)
		return err == nil && len(st.Builds) > 0 && st.Builds[0].Complete != 0
	}
	if err := b.waitFor(ctx, buildbotLimit, done); err != nil {
		return out, err
	}
	names := map[int]string{}
	for _, build := range slices.Backward(st.Builds) { // those that were triggered are later
		for _, step := range st.Steps {
			if step.Build != build.ID {
				continue
			}
			names[step.ID] = build.Builder + "/" + step.Name
			b.add(&out, names[step.ID], step.Results, step.Ended-step.Started)
		}
	}
	seen := map[string]bool{}
	for _, s := range st.Summaries {
		if !seen[s.Text] { // each later step of a build shows the file again
			out.summary += s.Text
		}
		seen[s.Text] = true
	}
	return out, nil
}

func (b *buildbot) add(out *outcome, name string, results *int, seconds int64) {
	const success, skipped = 0, 3
	red := results == nil || *results != success && *results != skipped
	fmt.Fprintf(b.w, "  %-40s %6d s%s\n", name, seconds, map[bool]string{true: "  red"}[red])
	if red && out.failed == "" {
		out.failed = name
	} else if !red && *results == success {
		out.steps = append(out.steps, name)
	}
}

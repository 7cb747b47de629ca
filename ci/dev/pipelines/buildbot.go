package pipelines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// buildbot is a real master with a worker, on loopback.
type buildbot struct {
	*site
	address string
	env     []string
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
	if err := b.waitFor(ctx, time.Minute, func() bool { return b.polled() }); err != nil {
		return out, fmt.Errorf("the master did not start: %w", err)
	}
	if err := s.run(ctx, s.path("origin"), "git", "reset", "-q", "--hard", "next"); err != nil {
		return out, err
	}
	return b.watch(ctx)
}

// prepare makes the folders of master and worker once, and the configuration each time.
func (b *buildbot) prepare(ctx context.Context, ev event) error {
	ports := [2]string{}
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		ports[i] = fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
		l.Close()
	}
	b.address = "http://127.0.0.1:" + ports[1] + "/api/v2"
	b.env = append(slices.Clone(b.site.env),
		"SLIPWAY_WORKER_PASSWORD=trial", "SLIPWAY_REPOSITORY="+b.path("origin"), "SLIPWAY_ARTIFACTS="+b.path("artifacts"), "SLIPWAY_SIGNING_KEY="+ev.key,
		"SLIPWAY_WORKER_PORT=tcp:"+ports[0]+":interface=127.0.0.1", "SLIPWAY_WWW_PORT=tcp:"+ports[1]+":interface=127.0.0.1")
	// A master of its own for each end: what it saw before does not matter. The worker stays.
	if err := errors.Join(os.RemoveAll(b.path("master")), os.RemoveAll(b.path("worker/buildbot.tac"))); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"buildbot", "create-master", "-q", b.path("master")},
		{"buildbot-worker", "create-worker", "-q", b.path("worker"), "127.0.0.1:" + ports[0], "builder", "trial"},
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
	return os.WriteFile(b.path("master/master.cfg"), []byte(soon), 0o644)
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

// polled reports whether the master has seen the repository once, and the worker is there.
func (b *buildbot) polled() bool {
	found, _ := filepath.Glob(b.path("master/gitpoller-work/HEAD"))
	var workers struct {
		Workers []struct {
			Connected []any `json:"connected_to"`
		}
	}
	if b.get("/workers", &workers) != nil || len(found) == 0 {
		return false
	}
	log, _ := os.ReadFile(b.path("master/twistd.log"))
	own, _ := os.ReadFile(b.path("master-" + b.end + ".log"))
	return len(workers.Workers) > 0 && len(workers.Workers[0].Connected) > 0 && strings.Contains(string(log)+string(own), "gitpoller: processing changes")
}

func (b *buildbot) get(path string, into any) error {
	text, err := b.raw(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (b *buildbot) raw(path string) ([]byte, error) {
	r, err := http.Get(b.address + path)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	return io.ReadAll(io.LimitReader(r.Body, 16<<20))
}

const buildbotLimit = 90 * time.Minute

// watch waits until the first build of check is complete, and reads all builds.
func (b *buildbot) watch(ctx context.Context) (out outcome, err error) {
	type build struct {
		ID       int `json:"buildid"`
		Builder  int `json:"builderid"`
		Complete bool
	}
	var all struct{ Builds []build }
	done := func() bool {
		return b.get("/builds", &all) == nil && len(all.Builds) > 0 && all.Builds[0].Complete
	}
	if err := b.waitFor(ctx, buildbotLimit, done); err != nil {
		return out, err
	}
	for _, one := range slices.Backward(all.Builds) { // those that were triggered are later
		if err := b.readBuild(&out, one.ID, one.Builder); err != nil {
			return out, err
		}
	}
	return out, nil
}

// readBuild reads the steps of a build, and their summaries.
func (b *buildbot) readBuild(out *outcome, id, builder int) error {
	var builders struct{ Builders []struct{ Name string } }
	var steps struct {
		Steps []struct {
			ID      int `json:"stepid"`
			Name    string
			Results *int
			Started int64 `json:"started_at"`
			Ended   int64 `json:"complete_at"`
		}
	}
	if err := errors.Join(b.get(fmt.Sprintf("/builders/%d", builder), &builders), b.get(fmt.Sprintf("/builds/%d/steps", id), &steps)); err != nil {
		return err
	}
	for _, step := range steps.Steps {
		name := builders.Builders[0].Name + "/" + step.Name
		const success, skipped = 0, 3
		red := step.Results == nil || *step.Results != success && *step.Results != skipped
		fmt.Fprintf(b.w, "  %-40s %6d s%s\n", name, step.Ended-step.Started, map[bool]string{true: "  red"}[red])
		if red && out.failed == "" {
			out.failed = name
		} else if !red && *step.Results == success {
			out.steps = append(out.steps, name)
		}
		var logs struct {
			Logs []struct {
				ID   int `json:"logid"`
				Name string
			}
		}
		if err := b.get(fmt.Sprintf("/steps/%d/logs", step.ID), &logs); err != nil {
			return err
		}
		for _, log := range logs.Logs {
			text, err := b.raw(fmt.Sprintf("/logs/%d/raw", log.ID))
			if err != nil {
				return err
			}
			if log.Name == "summary" {
				out.summary += string(text)
			}
		}
	}
	return nil
}

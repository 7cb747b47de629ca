package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/flash/boardssh/container"
	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// containerEngine runs containers on the board: *container.Containerd.
type containerEngine interface {
	Version(ctx context.Context) (string, error)
	Run(ctx context.Context, c container.Spec) (container.Exit, error)
	Close() error
}

// connectContainerd returns the session's connection to containerd, which the first call opens.
func (s *Session) connectContainerd(ctx context.Context) (containerEngine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		opened, err := s.open(ctx)
		if err != nil {
			return nil, err
		}
		s.opened = opened
	}
	return s.opened, nil
}

// containerd checks that the board's containerd answers.
type containerd struct{ version match.Matcher }

func readContainerd(e *Entry) Probe { return containerd{version: e.Matcher("version", match.String)} }

// Inspect asks containerd for its version, and compares that with the check.
func (c containerd) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	engine, err := s.connectContainerd(ctx)
	if err != nil {
		return f, err
	}
	version, err := engine.Version(ctx)
	if err != nil {
		return f, err
	}
	f.ExpectMatch("version", c.version, strings.TrimPrefix(version, "v"), "version "+version)
	f.AddFact("containerd " + plaintext.Clean(version, 100) + " answers")
	return f, nil
}

func (c containerd) Next() string {
	return "on the board: systemctl status containerd; journalctl -b -u containerd"
}

// containerProgram is a program that runs in a container on the board.
type containerProgram struct {
	spec               container.Spec
	exitStatus, output match.Matcher
	figures            figures // in the output
}

// readContainer parses a check of the section container, which needs an image.
func readContainer(e *Entry) Probe {
	c := containerProgram{
		spec: container.Spec{
			Image: e.Text("image", ""), Argv: e.List("argv"), Env: e.List("env"),
			Hook: e.Text("hook", ""), GPUs: e.Text("gpus", ""), Timeout: e.readTimeout(),
		},
		exitStatus: e.readExitStatus(),
		output:     e.Matcher("output", match.Text),
		figures:    e.readFigures(),
	}
	if c.spec.Image == "" {
		e.Fail(e.Key, "a container needs an image")
	}
	if c.spec.Hook != "" && !strings.HasPrefix(c.spec.Hook, "/") {
		e.Fail(e.Fields["hook"], "hook must be an absolute path, not %q", c.spec.Hook)
	}
	for _, v := range c.spec.Env {
		if !strings.Contains(v, "=") {
			e.Fail(e.Fields["env"], "env must be NAME=value, not %q", v)
		}
	}
	return c
}

// Inspect runs the container and checks its exit. A missing image is an error, with a Finding.Next.
func (c containerProgram) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	engine, err := s.connectContainerd(ctx)
	if err != nil {
		return Finding{Next: containerd{}.Next()}, err
	}
	exit, err := engine.Run(ctx, c.spec)
	if errors.Is(err, container.ErrNoImage) {
		f.Next = fmt.Sprintf("bring the image, then run smoke again: %[1]s deploy BOARD HOST for the container of a build, %[1]s deploy container for another", host.ProgramName())
		saw, _ := report.SplitNext(err, "")
		return f, errors.New(saw)
	}
	if err != nil {
		return f, err
	}
	return c.judgeExit(exit), nil
}

// judgeExit compares a container's exit status, output and metrics with the check.
func (c containerProgram) judgeExit(exit container.Exit) Finding {
	var f Finding
	status := fmt.Sprintf("exit status %d", exit.Status)
	f.ExpectMatch("exit status", c.exitStatus, int(exit.Status), status)
	f.expectWhole("output", c.output, exit.Truncated)
	f.ExpectMatch("output", c.output, string(exit.Output), "output: "+quoteOutput(exit.Output))
	if exit.Truncated {
		status += ", output: " + moreThan(len(exit.Output))
	}
	if !f.OK() {
		f.saw = []string{status + "\noutput: " + quoteOutput(exit.Output)}
	}
	c.figures.check(&f, string(exit.Output), exit.Truncated)
	return f
}

func (c containerProgram) Next() string {
	return "on the board: ctr --namespace slipway images ls (deploy brings slipway/probe to boards made of Debian packages; of another image: docker save, then ctr --namespace slipway images import); journalctl -b -u containerd"
}

// Package pipelines runs the pipelines that init writes, without their servers: each one's own
// steps in order, from an empty folder to a green end, then to red ends.
package pipelines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"slipway/ci/dev/tinyclone"
	"slipway/images"
	"slipway/images/starter"
	"slipway/layers/run"
)

// site is one project with its server: a repository, a release of Slipway, and keys.
type site struct {
	w      io.Writer
	dir    string
	like   images.Spec
	self   string // the program that is released
	server string
	end    string
	board  string
	env    []string
	runs   int
}

// outcome is how a run of a pipeline ended.
type outcome struct {
	steps   []string // that ran well, as JOB/STEP
	failed  string   // the first step that failed
	summary string   // all that steps wrote for people
}

// event is what starts a pipeline.
type event struct {
	before, commit string // commits; before is zeros for a new branch
	key            string // the file of the key that signs
}

// servers run a pipeline.
var servers = map[string]func(context.Context, *site, event) (outcome, error){"github": runGitHub, "gitlab": runGitLab, "jenkins": runJenkins, "buildbot": runBuildbot}

// end is how a pipeline must end after an edit of the project.
type end struct {
	name   string
	edit   func(s *site) error
	failed string // the step, as its name ends
	says   string // in the summary
}

var ends = []end{
	{name: "green"},
	{name: "recipe", edit: breakRecipe, failed: "build", says: "no-such-"},
	{name: "suite", edit: breakSuite, failed: "prove", says: "/etc/no-such-file"},
	{name: "signature", edit: distrustKey, failed: "evidence", says: "artifact.json"},
}

const noCommit = "0000000000000000000000000000000000000000"

// Run takes each server's pipeline to each end. only is a pattern of "SERVER END".
func Run(ctx context.Context, w io.Writer, dir, self, board, only string) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	like, err := images.LoadSource(board)
	if err != nil {
		return err
	}
	var wrong []error
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		if !slices.ContainsFunc(ends, func(e end) bool { return pattern.MatchString(server + " " + e.name) }) {
			continue
		}
		s := &site{w: w, dir: filepath.Join(dir, server), like: like, self: self, server: server, board: board + "-lab"}
		if err := s.begin(ctx); err != nil {
			return fmt.Errorf("%s: %w", server, err)
		}
		defer s.removeRoots()
		for _, e := range ends {
			if !pattern.MatchString(server + " " + e.name) {
				continue
			}
			if err := s.takeTo(ctx, e); err != nil {
				wrong = append(wrong, fmt.Errorf("%s, %s: %w", server, e.name, err))
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return errors.Join(wrong...)
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// begin makes a release, keys, and a project out of an empty folder.
func (s *site) begin(ctx context.Context) error {
	s.env = append(os.Environ(), "SLIPWAY_URL=file://"+s.path("release"), "CI=true", "GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C.UTF-8")
	if err := os.MkdirAll(s.path("origin"), 0o755); err != nil {
		return err
	}
	for _, key := range []string{"release", "artifacts", "theirs"} {
		if err := s.run(ctx, s.dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key-"+key); err != nil {
			return err
		}
	}
	if err := s.makeRelease(ctx); err != nil {
		return err
	}
	origin := s.path("origin")
	for _, argv := range [][]string{
		{s.self, "init", "--like=" + s.like.Board, "--ci=" + s.server},
		{"git", "init", "-q", "-b", "main", "."},
		{"git", "config", "user.name", "Trial"},
		{"git", "config", "user.email", "trial@example.com"},
	} {
		if err := s.run(ctx, origin, argv...); err != nil {
			return err
		}
	}
	for file, key := range map[string]string{"allowed_signers": "release", "artifact_signers": "artifacts"} {
		public, err := os.ReadFile(s.path("key-" + key + ".pub"))
		if err != nil {
			return err
		}
		if err := s.replace("ci/"+file, "ssh-ed25519 AAAA...", strings.TrimSpace(string(public)), "\n# ", "\n"); err != nil {
			return err
		}
	}
	_, err := s.commit(ctx, "begin")
	return err
}

// removeRoots removes what bitbake built as root for Isar, which the trial's user cannot.
func (s *site) removeRoots() {
	built, _ := filepath.Glob(filepath.Join(s.dir, "*/*/build/*/bitbake/tmp"))
	if len(built) == 0 || s.like.Debian != nil {
		return
	}
	argv := append([]string{"sudo", "-n", "rm", "-rf", "--one-file-system", "--"}, built...)
	_ = run.Run(context.Background(), run.Command{Argv: argv}) // what is left, the removal of the folder names
}

// replace replaces texts in a file of the project, in pairs.
func (s *site) replace(name string, pairs ...string) error {
	path := filepath.Join(s.path("origin"), name)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for pair := range slices.Chunk(pairs, 2) {
		if !strings.Contains(string(text), pair[0]) {
			return fmt.Errorf("%s has no %q", path, pair[0])
		}
		text = []byte(strings.Replace(string(text), pair[0], pair[1], 1))
	}
	return os.WriteFile(path, text, 0o644)
}

func (s *site) commit(ctx context.Context, subject string) (string, error) {
	origin := s.path("origin")
	for _, argv := range [][]string{{"git", "add", "-A"}, {"git", "commit", "-q", "--allow-empty", "-m", subject}} {
		if err := s.run(ctx, origin, argv...); err != nil {
			return "", err
		}
	}
	out, err := exec.CommandContext(ctx, "git", "-C", origin, "rev-parse", "HEAD").Output()
	return strings.TrimSpace(string(out)), err
}

// makeRelease makes what ci/install.sh fetches: an archive, a list and a signature.
func (s *site) makeRelease(ctx context.Context) error {
	base := "slipway_0.0.1_linux_" + runtime.GOARCH
	folder := filepath.Join(s.path("release"), base)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := s.run(ctx, folder, "cp", s.self, "slipway"); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"tar", "-czf", base + ".tar.gz", base},
		{"sh", "-c", "sha256sum *.tar.gz >SHA256SUMS"},
		{"ssh-keygen", "-q", "-Y", "sign", "-f", s.path("key-release"), "-n", "file", "SHA256SUMS"},
	} {
		if err := s.run(ctx, s.path("release"), argv...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a program of the trial itself.
func (s *site) run(ctx context.Context, dir string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, s.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}

// takeTo edits the project, runs the pipeline of that commit, and takes the edit back.
func (s *site) takeTo(ctx context.Context, e end) error {
	before, err := s.head(ctx)
	if err != nil {
		return err
	}
	ev := event{before: before, key: s.path("key-artifacts")}
	if e.edit == nil {
		ev.before = noCommit
	} else if err := e.edit(s); err != nil {
		return err
	}
	if ev.commit, err = s.commit(ctx, e.name); err != nil {
		return err
	}
	s.end = e.name
	began := time.Now()
	out, err := servers[s.server](ctx, s, ev)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.w, "%s, %s: %d steps, %.0f s, red at %q\n", s.server, e.name, len(out.steps), time.Since(began).Seconds(), out.failed)
	if err := os.WriteFile(s.path("summary-"+e.name+".md"), []byte(out.summary), 0o644); err != nil {
		return err
	}
	back := s.run(ctx, s.path("origin"), "git", "reset", "-q", "--hard", before)
	return errors.Join(e.judge(out), back)
}

func (s *site) head(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "-C", s.path("origin"), "rev-parse", "HEAD").Output()
	return strings.TrimSpace(string(out)), err
}

func (e end) judge(out outcome) error {
	last := out.failed[strings.LastIndex(out.failed, "/")+1:]
	if last != e.failed {
		return fmt.Errorf("red at %q; want %q\n%s", out.failed, e.failed, out.summary)
	}
	if !strings.Contains(out.summary, e.says) {
		return fmt.Errorf("the summary does not say %q\n%s", e.says, out.summary)
	}
	return nil
}

// breakRecipe has a recipe fail, or Debian lack a package.
func breakRecipe(s *site) error {
	if s.like.Debian != nil {
		return s.replace("boards/"+s.board+"/board.yml", "debian:\n", "debian:\n  packages: [no-such-package]\n")
	}
	line := tinyclone.Only("do_install:append", "slipway-board", " echo no-such-register; exit 7")
	return s.replace("boards/"+s.board+"/kas.yml", "local_conf_header:\n", "local_conf_header:\n  trial: |\n    "+line+"\n")
}

func breakSuite(s *site) error {
	return s.replace("suites/product.yml", "file:\n", "file:\n  /etc/no-such-file:\n    exists: true\n")
}

// distrustKey lists another signer than the one whose key signs.
func distrustKey(s *site) error {
	ours, err := os.ReadFile(s.path("key-artifacts.pub"))
	if err != nil {
		return err
	}
	theirs, err := os.ReadFile(s.path("key-theirs.pub"))
	if err != nil {
		return err
	}
	return s.replace("ci/artifact_signers", strings.TrimSpace(string(ours)), strings.TrimSpace(string(theirs)))
}

// step runs a step of a pipeline, and prints how long it took.
func (s *site) step(ctx context.Context, dir, name, script string, env []string) (out []byte, err error) {
	file := s.path(fmt.Sprintf("step-%d.sh", s.runs))
	s.runs++
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", file)
	cmd.Dir, cmd.Env = dir, append(slices.Clone(s.env), env...)
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, 2*time.Minute
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	began := time.Now()
	err = cmd.Run()
	fmt.Fprintf(s.w, "  %-40s %6.1f s%s\n", name, time.Since(began).Seconds(), map[bool]string{true: "  red"}[err != nil])
	return log.Bytes(), errors.Join(err, os.WriteFile(s.path(fmt.Sprintf("log-%s-%d.txt", s.end, s.runs)), log.Bytes(), 0o644))
}

// pipelineFile reads a file of the project's pipeline.
func (s *site) pipelineFile(n int) ([]byte, error) {
	return os.ReadFile(filepath.Join(s.path("origin"), starter.Pipelines[s.server][n].Path))
}

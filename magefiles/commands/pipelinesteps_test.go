package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"slipway/ci/plan"
	"slipway/images/starter"
	"slipway/layers/run"
)

// The steps of the pipelines that init writes for GitHub and GitLab run to their end, in
// order. Each server has a new Debian root, and its steps run by its shell. No condition is
// evaluated: the jobs are those that need neither a lab nor a registry.
func TestPipelineSteps(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" || os.Geteuid() != 0 {
		t.Skip("takes 15 minutes and root: SLIPWAY_LONG=1 go test ./magefiles/commands -run PipelineSteps -timeout=1h -v")
	}
	program, dir := compileProgram(t), t.TempDir()
	for at := dir; at != os.TempDir(); at = filepath.Dir(at) { // the user runner has to get through
		if err := os.Chmod(at, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*pipelineSite{
		{server: "github", user: "runner", home: "/home/runner", run: (*pipelineSite).runGitHub},
		{server: "gitlab", user: "root", home: "/root", run: (*pipelineSite).runGitLab},
	} {
		t.Run(s.server, func(t *testing.T) {
			s.w, s.root = t.Output(), filepath.Join(dir, s.server)
			if err := s.prepare(t.Context(), program); err != nil {
				t.Fatal(err)
			}
			if err := s.run(s, t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(s.root, projectFolder, "build/reports", pipelineBoard, "report.json")); err != nil {
				t.Errorf("its steps left no report: %v", err)
			}
		})
	}
}

const (
	pipelineBoard = "virt-lab"
	newBranch     = "0000000000000000000000000000000000000000" // the commit before it
	projectFolder = "/srv/product"                             // in the root, as those below
	releaseFolder = "/srv/release"
	signingKey    = "/srv/key"
	stepFile      = "/srv/step.sh"
)

// pipelineSite is a project with its server.
type pipelineSite struct {
	w          io.Writer
	server     string
	root       string // the folder of its Debian root
	user, home string // of the steps
	run        func(*pipelineSite, context.Context) error
}

// prepare makes the root, a release of this program, and a project in one commit.
func (s *pipelineSite) prepare(ctx context.Context, self string) error {
	makeRoot := []string{"mmdebstrap", "--quiet", "--variant=minbase", "bookworm", s.root}
	if s.user != "root" { // GitHub's machines have these programs, and a user with sudo
		makeRoot = slices.Insert(makeRoot, 3, "--include=ca-certificates,curl,git,openssh-client,sudo",
			`--customize-hook=chroot "$1" useradd --create-home `+s.user, `--customize-hook=echo "`+s.user+` ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/ci"`)
	}
	if err := run.Run(ctx, run.Command{Argv: makeRoot}); err != nil {
		return err
	}
	key, release, project := filepath.Join(s.root, signingKey), filepath.Join(s.root, releaseFolder), filepath.Join(s.root, projectFolder)
	files := "slipway_0.0.1_linux_" + runtime.GOARCH
	if err := errors.Join(os.MkdirAll(filepath.Join(release, files), 0o755), os.Mkdir(project, 0o755)); err != nil {
		return err
	}
	if err := runAll(ctx, release,
		[]string{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key},
		[]string{"cp", self, files + "/slipway"},
		[]string{"tar", "-czf", files + ".tar.gz", files},
		[]string{"sh", "-c", "sha256sum *.tar.gz >SHA256SUMS"},
		[]string{"ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "file", "SHA256SUMS"}); err != nil {
		return err
	}
	public, err := os.ReadFile(key + ".pub")
	return errors.Join(err, runAll(ctx, project,
		[]string{self, "init", "--like=virt", "--name=" + pipelineBoard, "--ci=" + s.server},
		[]string{"sed", "-i", "s|^# \\(.*\\) ssh-ed25519 AAAA.*|\\1 " + strings.TrimSpace(string(public)) + "|", "ci/allowed_signers", "ci/artifact_signers"},
		[]string{"sed", "-i", "s/^version=''/version=0.0.1/", "ci/install.sh"},
		[]string{"git", "init", "-q", "-b", "main"}, []string{"git", "add", "-A"},
		[]string{"git", "-c", "user.name=Trial", "-c", "user.email=trial@example.com", "commit", "-q", "-m", "begin"},
		[]string{"chroot", s.root, "chown", "-R", s.user + ":", projectFolder, signingKey}))
}

func runAll(ctx context.Context, dir string, commands ...[]string) error {
	for _, argv := range commands {
		if err := run.Run(ctx, run.Command{Argv: argv, Dir: dir}); err != nil {
			return err
		}
	}
	return nil
}

// enterRoot runs a program in a root. Its mounts and all that it starts end with it. The kernel
// makes no user namespaces, which builds need, behind a chroot alone.
const enterRoot = `mount --bind "$1" "$1" && cd "$1" && mount -t proc proc proc && mount --rbind /dev dev && mount --rbind /sys sys &&
pivot_root . mnt && umount -l /mnt && user=$2 folder=$3 && shift 3 && exec chroot --userspec="$user" / env -i --chdir="$folder" "$@"`

func (s *pipelineSite) runStep(ctx context.Context, name, script string, variables map[string]string) error {
	if err := os.WriteFile(filepath.Join(s.root, stepFile), []byte(script), 0o644); err != nil {
		return err
	}
	argv := []string{
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enterRoot, "sh", s.root, s.user, projectFolder,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "CI=true", "HOME=" + s.home,
	}
	for name, value := range variables {
		argv = append(argv, name+"="+value)
	}
	began := time.Now()
	if err := run.Run(ctx, run.Command{Argv: append(argv, "bash", "-e", stepFile), Log: s.root + ".log", Keep: true}); err != nil {
		return fmt.Errorf("step %s: %w", name, err)
	}
	fmt.Fprintf(s.w, "%s  %-40s %6.1f s\n", s.server, name, time.Since(began).Seconds())
	return nil
}

// load reads a file of YAML in the project.
func (s *pipelineSite) load(name string, into any) error {
	text, err := os.ReadFile(filepath.Join(s.root, projectFolder, name))
	if err := errors.Join(err, yaml.Load(text, into)); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// runGitHub runs each step that has a script. All jobs share a workspace in place of artifacts.
func (s *pipelineSite) runGitHub(ctx context.Context) error {
	key, keyErr := os.ReadFile(filepath.Join(s.root, signingKey))
	expressions := map[string]string{ // their values in this run, by the variables that they are for
		"SLIPWAY_URL": "file://" + releaseFolder, "SLIPWAY_CACHE": "", "BOARD": pipelineBoard, "FROM": newBranch, "KEY": string(key), "SIGNERS": "ci/artifact_signers",
	}
	type step struct {
		Name, Run string
		Env       map[string]string
	}
	var flow struct {
		Env  map[string]string
		Jobs map[string]struct {
			Env   map[string]string
			Steps []step
		}
	}
	if err := errors.Join(keyErr, s.load(starter.Pipelines["github"][0].Path, &flow)); err != nil {
		return err
	}
	for _, name := range []string{"check", "board", "report"} {
		job, known := flow.Jobs[name]
		if !known {
			return fmt.Errorf("the file has no job %s", name)
		}
		for _, step := range slices.DeleteFunc(job.Steps, func(s step) bool { return s.Run == "" }) {
			variables := map[string]string{"GITHUB_ACTIONS": "true", "RUNNER_TEMP": "/tmp", "GITHUB_OUTPUT": "/tmp/output", "GITHUB_STEP_SUMMARY": "/tmp/summary"}
			for _, env := range []map[string]string{flow.Env, job.Env, step.Env} {
				maps.Copy(variables, env)
			}
			for variable, value := range variables {
				if strings.Contains(value, "${{") {
					known, ok := expressions[variable]
					if !ok {
						return fmt.Errorf("job %s: no value is known for %s: %s", name, variable, value)
					}
					variables[variable] = known
				}
			}
			if err := s.runStep(ctx, name+"/"+cmp.Or(step.Name, step.Run), step.Run, variables); err != nil {
				return err
			}
		}
	}
	return nil
}

// gitLabJob is what a run needs of a job.
type gitLabJob struct {
	Variables map[string]string
	Before    []string `yaml:"before_script"`
	Script    []string
	After     []string `yaml:"after_script"`
}

// runGitLab runs the job check, then the boards' jobs of the child pipeline that it wrote.
func (s *pipelineSite) runGitLab(ctx context.Context) error {
	var parent, shared, child map[string]yaml.Node
	if err := s.load(starter.Pipelines["gitlab"][0].Path, &parent); err != nil {
		return err
	}
	if err := s.runGitLabJob(ctx, "check", parent); err != nil {
		return err
	}
	if err := errors.Join(s.load(plan.GitLabJobs, &shared), s.load("build/boards.yml", &child)); err != nil {
		return err
	}
	maps.Copy(shared, child)
	return s.runGitLabJob(ctx, "board "+pipelineBoard, shared)
}

// runGitLabJob runs a job's scripts: those before and its own in one shell, those after in another one.
func (s *pipelineSite) runGitLabJob(ctx context.Context, name string, jobs map[string]yaml.Node) error {
	var job gitLabJob
	global := jobs["variables"]
	if err := errors.Join(global.Decode(&job.Variables), resolveJob(name, jobs, &job)); err != nil {
		return fmt.Errorf("job %s: %w", name, err)
	}
	maps.Copy(job.Variables, map[string]string{"SLIPWAY_URL": "file://" + releaseFolder, "CI_COMMIT_BEFORE_SHA": newBranch, "SLIPWAY_SIGNING_KEY": signingKey})
	err := s.runStep(ctx, name, "set -o pipefail\n"+strings.Join(append(job.Before, job.Script...), "\n"), job.Variables)
	return errors.Join(err, s.runStep(ctx, name+"/after_script", "set -o pipefail\n"+strings.Join(job.After, "\n"), job.Variables))
}

// resolveJob reads a job over those that it extends. The keys of a later one replace those before.
func resolveJob(name string, jobs map[string]yaml.Node, job *gitLabJob) error {
	node, known := jobs[name]
	if !known {
		return fmt.Errorf("the file has no %s", name)
	}
	var inherits struct{ Extends yaml.Node }
	if err := node.Decode(&inherits); err != nil {
		return err
	}
	parents := inherits.Extends.Content
	if inherits.Extends.Kind == yaml.ScalarNode {
		parents = []*yaml.Node{&inherits.Extends}
	}
	for _, parent := range parents {
		if err := resolveJob(parent.Value, jobs, job); err != nil {
			return err
		}
	}
	return node.Decode(job)
}

// A job of GitLab has the keys of what it extends, and a later one's replace those before.
func TestJobThatExtends(t *testing.T) {
	var jobs map[string]yaml.Node
	const text = "a: {stage: one, variables: {X: 1, Y: 1}, before_script: [a], script: [a]}\nb: {before_script: [b]}\nc: {extends: [a, b], variables: {Y: 2}}\nd: {extends: c, script: [d, e]}\nbad: {extends: none}\n"
	if err := yaml.Load([]byte(text), &jobs); err != nil {
		t.Fatal(err)
	}
	var job gitLabJob
	want := gitLabJob{Variables: map[string]string{"X": "1", "Y": "2"}, Before: []string{"b"}, Script: []string{"d", "e"}}
	if err := resolveJob("d", jobs, &job); err != nil || !reflect.DeepEqual(job, want) {
		t.Errorf("job d = %+v, %v; want %+v", job, err, want)
	}
	if err := resolveJob("bad", jobs, &job); err == nil || err.Error() != "the file has no none" {
		t.Errorf("a job that extends none: %v", err)
	}
}

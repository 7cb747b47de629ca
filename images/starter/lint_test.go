package starter

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// writtenPipelines writes a project with all pipelines, and returns its folder.
func writtenPipelines(t *testing.T, like string) string {
	t.Helper()
	folder := t.TempDir()
	if err := Write(t.Context(), folder, planProject(t, like).Files); err != nil {
		t.Fatal(err)
	}
	return folder
}

func runHere(t *testing.T, dir string, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "SLIPWAY_WORKER_PASSWORD=x")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", argv, err, out)
	}
}

// Each server's own programs, or those of linters, read the pipelines.
func TestLintPipelines(t *testing.T) {
	modfile, err := filepath.Abs("../../ci/tools/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	folder := writtenPipelines(t, "isar-amd64")
	at := func(server string) string { return filepath.Join(folder, Pipelines[server][0].Path) }
	t.Run("github", func(t *testing.T) {
		needPrograms(t, map[string]string{"shellcheck": "shellcheck"})
		runHere(t, ".", "go", "tool", "-modfile="+modfile, "actionlint", "-shellcheck=shellcheck", at("github"))
	})
	t.Run("install.sh", func(t *testing.T) {
		needPrograms(t, map[string]string{"shellcheck": "shellcheck"})
		runHere(t, folder, "shellcheck", "ci/install.sh")
	})
	t.Run("jenkins", func(t *testing.T) {
		needPrograms(t, map[string]string{"groovy": "groovy"})
		runHere(t, folder, "groovy", "-e", "new GroovyShell().parse(new File('Jenkinsfile'))")
	})
	t.Run("buildbot", func(t *testing.T) {
		needPrograms(t, map[string]string{"buildbot": "buildbot"})
		runHere(t, folder, "buildbot", "checkconfig", at("buildbot"))
	})
	t.Run("gitlab", func(t *testing.T) {
		needPrograms(t, map[string]string{"shellcheck": "shellcheck"})
		for i, script := range gitLabScripts(t, folder) {
			if err := os.WriteFile(filepath.Join(folder, "script.sh"), []byte("#!/bin/bash\n"+script), 0o644); err != nil {
				t.Fatal(err)
			}
			t.Logf("script %d", i)
			runHere(t, folder, "shellcheck", "script.sh")
		}
	})
}

// gitLabScripts returns the scripts of all jobs.
func gitLabScripts(t *testing.T, folder string) (all []string) {
	t.Helper()
	for _, f := range Pipelines["gitlab"] {
		text, err := os.ReadFile(filepath.Join(folder, f.Path))
		if err != nil {
			t.Fatal(err)
		}
		var jobs map[string]yaml.Node
		if err := yaml.Load(text, &jobs); err != nil {
			t.Fatal(err)
		}
		for name, node := range jobs {
			var job struct {
				Before, Script, After []string
			}
			if node.Kind == yaml.MappingNode && name != "variables" && name != "workflow" {
				if err := node.Decode(&job); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if lines := slices.Concat(job.Before, job.Script, job.After); len(lines) > 0 {
				all = append(all, strings.Join(lines, "\n")+"\n")
			}
		}
	}
	return all
}

var (
	uses   = regexp.MustCompile(`(?m)^\s*- uses: (\S+)(.*)$`)
	pinned = regexp.MustCompile(`^[a-z-]+/[a-z/-]+@[0-9a-f]{40}$`)
)

// What the pipelines promise, and a linter does not know.
func TestPipelinesKeepTheirPromises(t *testing.T) {
	folder := writtenPipelines(t, "isar-amd64")
	read := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	github := read(".github/workflows/slipway.yml")
	for _, m := range uses.FindAllStringSubmatch(github, -1) {
		if !pinned.MatchString(m[1]) || !strings.HasPrefix(m[2], " # v") {
			t.Errorf("%s%s: want a commit, and its version behind it", m[1], m[2])
		}
	}
	var flow struct {
		On          map[string]any
		Permissions map[string]string
		Jobs        map[string]struct {
			Timeout     any `yaml:"timeout-minutes"`
			Permissions map[string]string
			If          string
		}
	}
	if err := yaml.Load([]byte(github), &flow); err != nil {
		t.Fatal(err)
	}
	if _, target := flow.On["pull_request_target"]; target || len(flow.Permissions) != 1 || flow.Permissions["contents"] != "read" {
		t.Errorf("events %v, permissions %v; want no pull_request_target, and contents alone", flow.On, flow.Permissions)
	}
	for name, job := range flow.Jobs {
		if job.Timeout == nil || (job.Permissions != nil) != (name == "release") {
			t.Errorf("job %s: timeout %v, permissions %v; want a timeout, and more rights for the release alone", name, job.Timeout, job.Permissions)
		}
	}
	if !strings.Contains(flow.Jobs["lab"].If, "head.repo.full_name == github.repository") || !strings.Contains(github, "matrix.bitbake && (github.event_name != 'pull_request' || github.event.pull_request.head.repo.full_name == github.repository)") {
		t.Error("a fork's pull request reaches a machine of yours")
	}
	if strings.Count(github, "secrets.") != 2 || strings.Count(github, "secrets.SLIPWAY_SIGNING_KEY") != 1 || strings.Count(github, "secrets.SLIPWAY_REGISTRY_TOKEN") != 1 {
		t.Error("another step than sign and login gets a secret")
	}
	// Each server does the same, and its lab is empty.
	for path, lab := range map[string]string{".github/workflows/slipway.yml": `LAB: ""`, "ci/gitlab-jobs.yml": "", ".gitlab-ci.yml": `LAB: ""`, "Jenkinsfile": "env.LAB = ''", "ci/buildbot.cfg.py": "LAB = {}"} {
		if !strings.Contains(read(path), lab) {
			t.Errorf("%s: want %q, so that no board is flashed by default", path, lab)
		}
	}
	for server, files := range Pipelines {
		text := ""
		for _, f := range files {
			text += strings.NewReplacer(`", "`, " ", `"`, " ").Replace(read(f.Path))
		}
		for _, want := range []string{"board check", "plan", "build ", "evidence ", "up ", "flash ", "smoke ", "push "} {
			if !regexp.MustCompile(`slipway(\( \S+)? +(ci +)?` + want).MatchString(text) {
				t.Errorf("%s: no step %s", server, want)
			}
		}
		if !strings.Contains(text, "ssh-keygen -Y sign -n file ") {
			t.Errorf("%s: nothing is signed", server)
		}
		if !strings.Contains(text, "ci/install.sh build/bin") {
			t.Errorf("%s: Slipway is not proved before it runs", server)
		}
	}
	if !strings.Contains(read("ci/gitlab-jobs.yml"), "\n.bitbake:") {
		t.Error("the child pipeline has no job for bitbake to extend")
	}
}

// Without the signing key nothing is signed, proved or pushed, and the job fails.
func TestMissingKeyStopsPipelines(t *testing.T) {
	folder := writtenPipelines(t, "isar-amd64")
	read := func(path string) []byte {
		text, err := os.ReadFile(filepath.Join(folder, path))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	bin := filepath.Join(folder, "build/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"slipway", "ssh-keygen"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\necho \"$*\" >>calls\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "build/b"), 0o755), os.WriteFile(filepath.Join(folder, "build/b/artifact.json"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "key"), []byte("a key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var flow struct {
		Jobs map[string]struct{ Steps []struct{ Name, Run string } }
	}
	var jobs struct {
		Board struct{ Script []string } `yaml:".board"`
	}
	if err := errors.Join(yaml.Load(read(".github/workflows/slipway.yml"), &flow), yaml.Load(read("ci/gitlab-jobs.yml"), &jobs)); err != nil {
		t.Fatal(err)
	}
	sign := ""
	for _, step := range flow.Jobs["board"].Steps {
		if step.Name == "sign" {
			sign = step.Run
		}
	}
	gitLab := strings.Join(jobs.Board.Script, "\n")
	for _, tt := range []struct{ name, script, env, want string }{
		{"GitHub", sign, "KEY=a key", "evidence b\n-Y sign -n file -f T/key\n"},
		{"GitHub, empty", sign, "KEY=", ""},
		{"GitHub, missing", sign, "X=", ""},
		{"GitLab", gitLab, "SLIPWAY_SIGNING_KEY=key", "build b\nevidence b\n-Y sign -n file -f build/key\nevidence b --signers=ci/artifact_signers\n"},
		{"GitLab, a merge request", gitLab, "CI_MERGE_REQUEST_IID=7", "build b\nevidence b\n"},
		{"GitLab, empty", gitLab, "SLIPWAY_SIGNING_KEY=", "build b\n"},
		{"GitLab, missing", gitLab, "X=", "build b\n"},
		{"GitLab, misspelt", gitLab, "SLIPWAY_SIGNING_KEYS=key", "build b\n"},
		{"GitLab, no file", gitLab, "SLIPWAY_SIGNING_KEY=a secret", "build b\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			temp := t.TempDir()
			if err := os.WriteFile(filepath.Join(folder, "calls"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-eo", "pipefail", "-c", tt.script)
			cmd.Dir, cmd.Env = folder, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "BOARD=b", "COMMAND=build", "RUNNER_TEMP=" + temp, tt.env}
			out, err := cmd.CombinedOutput()
			calls := strings.ReplaceAll(string(read("calls")), temp, "T")
			if calls != tt.want {
				t.Errorf("it ran %q; want %q", calls, tt.want)
			}
			if stops := strings.Contains(tt.name, ", ") && !strings.HasSuffix(tt.name, "request"); stops != (err != nil) || stops && !strings.Contains(string(out), "\nnext: ") || strings.Contains(string(out), "a secret") {
				t.Errorf("%v: %s; want an error with the next step: %v", err, out, stops)
			}
		})
	}
	for server, files := range Pipelines {
		text := string(read(files[len(files)-1].Path))
		if server == "gitlab" {
			text = string(read("ci/gitlab-jobs.yml"))
		}
		_, release, _ := strings.Cut(text, map[string]string{"github": "\n  release:", "gitlab": "\n.release:", "jenkins": "stage('release')", "buildbot": "\nrelease = "}[server])
		evidence, push := strings.Index(release, "--signers=ci/artifact_signers"), regexp.MustCompile(`slipway(\("push"| push)`).FindStringIndex(release)
		if evidence < 0 || push == nil || evidence > push[0] {
			t.Errorf("%s: the release does not prove who signed before it pushes:\n%s", server, release)
		}
		if regexp.MustCompile(`doStepIf=bool|signs =`).MatchString(text) {
			t.Errorf("%s: it can be told not to sign", server)
		}
	}
}

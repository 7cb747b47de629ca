//go:build mage

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/magefile/mage/parse"

	"slipway/magefiles/commands"
)

func TestSplitLine(t *testing.T) {
	for line, want := range map[string]string{
		"":                        " | ",
		"-l":                      "-l | ",
		"-v up":                   "-v up | up",
		"UP --keep":               "up | UP --keep",
		"deploy files b h f d":    "deploy | deploy files b h f d",
		"fleet list i":            "slipway | fleet list i",
		"slipway fleet list i":    "slipway | fleet list i",
		"slipway":                 "slipway | ",
		"SLIPWAY boards":          "slipway | boards",
		"slipway flash virt d -l": "flash | flash virt d -l",
		"--help":                  "slipway | --help",
		"flash virt d typo --x":   "flash | flash virt d typo --x",
	} {
		mages, rest, err := splitLine(strings.Fields(line))
		if got := strings.Join(mages, " ") + " | " + strings.Join(rest, " "); got != want || err != nil {
			t.Errorf("splitLine(%s) = %s, %v; want %s", line, got, err, want)
		}
	}
	for line, want := range map[string]string{"-t 5s up": "ends a command half-way", "-l up": `"up" is one word too many`} {
		if _, _, err := splitLine(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("splitLine(%s) = %v; want %s", line, err, want)
		}
	}
}

// Mage's targets are those of the list, and each is a command.
func TestTargets(t *testing.T) {
	info, err := parse.PrimaryPackage("go", ".", magefileNames, false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range info.Funcs {
		got = append(got, strings.ToLower(f.TargetName()))
		if len(f.Args) > 0 {
			t.Errorf("%s takes arguments from Mage", f.Name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(slices.Sorted(slices.Values(targets)), got); diff != "" {
		t.Error(diff)
	}
	for _, name := range targets {
		if err := commands.Parse(t.Context(), root(), []string{name, "--help"}); name != "slipway" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// magefileNames are the files that Mage compiles. Tests do not list the folder, which each
// "go tool mage" changes: Go would never take these tests from its cache.
var magefileNames = []string{"quality.go", "targets.go"}

// copyMagefiles copies these files, because Mage writes beside the files that it compiles.
func copyMagefiles(t *testing.T) (dir string) {
	t.Helper()
	if err := os.MkdirAll("../build/test", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("../build/test", "line-") // no test has this folder as its input
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range magefileNames {
		text, err := os.ReadFile(name)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Mage starts nothing that was not asked for either.
func TestMage(t *testing.T) {
	dir := copyMagefiles(t)
	program := filepath.Join(t.TempDir(), "compiled")
	if out, err := exec.CommandContext(t.Context(), "go", "tool", "mage", "-d", dir, "-compile", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	mage := []string{"go", "tool", "mage", "-d", dir}
	for _, tt := range []struct {
		argv   []string
		line   string
		env    string
		status int
		want   string
	}{
		{mage, "boards stray --json", "", 2, "next: go tool mage boards --help"},
		{mage, "flash virt d typo --dry-run", "", 2, `"typo" is one word too many`},
		{mage, "layers chekout", "", 2, "did you mean layers checkout?"},
		{mage, "-t 5s boards", "", 2, "MAGEFILE_TIMEOUT"},
		{mage, "boards", "", 0, "virt-arm64"},
		{mage, "slipway", "", 0, "Slipway's source:"},
		{mage, "-l", "", 0, "takes a virtual board from nothing to a report"},
		{mage, "test --help", "", 0, "--only=PATTERN"},
		{mage, "bench nosuch", "", 2, `AREA "nosuch": want deploy, flash`},
		{mage, "soak", "", 2, "AREA is missing: want build, flash"},
		{[]string{program}, "boards", "MAGEFILE_TIMEOUT=5s", 2, "-t"},
		{[]string{program}, "boards --json", "MAGEFILE_LIST=1", 0, `"board"`},
		{[]string{program}, "boards --json", "MAGEFILE_HELP=1", 0, `"board"`},
		{[]string{program}, "build nosuch", "", 5, "unknown board"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, tt.argv[0], append(slices.Clone(tt.argv[1:]), strings.Fields(tt.line)...)...)
		var out bytes.Buffer
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), tt.env), &out, &out
		err := cmd.Run()
		cancel()
		if status := cmd.ProcessState.ExitCode(); status != tt.status || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%q %s: %v, status %d; want %d and %q\n%.600s", tt.line, tt.env, err, status, tt.status, tt.want, out.String())
		}
	}
}

// A program that Mage compiled has the commit of its own clone, never that of a project around.
func TestDescribeFolder(t *testing.T) {
	project := t.TempDir()
	git := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	unpacked, clone := filepath.Join(project, "unpacked"), filepath.Join(project, "clone")
	for _, dir := range []string{unpacked, clone} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{project, clone} {
		git(dir, "init", "-q")
		git(dir, "commit", "-q", "--allow-empty", "-m", dir)
	}
	git(clone, "worktree", "add", "-q", filepath.Join(project, "tree"))
	head := git(clone, "rev-parse", "HEAD")
	for _, variable := range []string{"", filepath.Join(project, ".git")} { // as in a hook of the project
		if variable != "" {
			t.Setenv("GIT_DIR", variable)
			t.Setenv("GIT_WORK_TREE", project)
		}
		for dir, want := range map[string]string{clone: head, filepath.Join(project, "tree"): head, unpacked: "", filepath.Join(clone, ".."): git(project, "rev-parse", "HEAD")} {
			if got := strings.TrimSuffix(strings.TrimSpace(describeFolder(dir)), "-dirty"); got != want {
				t.Errorf("GIT_DIR=%s: %s: %q; want %q", variable, dir, got, want)
			}
		}
	}
}

package plan

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/images"
)

const (
	tegraVariable = "SLIPWAY_TEGRA_DEMO"
	tegraBegin    = "<!-- commits: SLIPWAY_TEGRA_DEMO=CLONE go test ./ci/plan -run TegraDemo -update -->\n"
	tegraEnd      = "<!-- end of commits -->\n"
)

// tegraBoards are boards over the layers of tegra-demo-distro, which are links to submodules.
var tegraBoards = map[string]string{
	"orin-nano/board.yml": "extends: jetson-orin-nano-devkit\n",
	"orin-nano/kas.yml":   tegraProject("jetson-orin-nano-devkit", "tegrademo", "demo-image-full", "meta-oe", "meta-python", "meta-networking", "meta-filesystems", "meta-virtualization", "meta-tegra", "meta-tegra-community", "meta-tegra-support", "meta-tegrademo"),
	"agx-thor/board.yml":  "extends: orin-nano\n",
	"agx-thor/kas.yml":    "header: {version: 14, includes: [boards/orin-nano/kas.yml]}\nmachine: jetson-agx-thor-devkit\n",
	"minimal/board.yml":   "extends: jetson-orin-nano-devkit\n",
	"minimal/kas.yml":     tegraProject("jetson-orin-nano-devkit", "nodistro", "core-image-minimal", "meta-tegra"),
	"qemu/board.yml":      "extends: jetson-orin-nano-devkit\n",
	"qemu/kas.yml":        tegraProject("qemuarm64", "nodistro", "core-image-minimal", "meta-oe"),
}

func tegraProject(machine, distro, target string, layers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "header: {version: 14}\nmachine: %s\ndistro: %s\ntarget: %s\nrepos:\n  bitbake: {path: repos/bitbake, layers: {.: disabled}}\n  here:\n    layers:\n", machine, distro, target)
	for _, layer := range append([]string{"meta"}, layers...) {
		fmt.Fprintf(&b, "      layers/%s:\n", layer)
	}
	return b.String()
}

// Twenty commits of a public repository, each with the boards above beside its files.
func TestTegraDemo(t *testing.T) {
	source := os.Getenv(tegraVariable)
	if source == "" {
		t.Skipf("set %s to a clone of OE4T/tegra-demo-distro", tegraVariable)
	}
	t.Setenv("SLIPWAY_LOCAL", "")
	c := clone{t, t.TempDir()}
	if out, err := exec.Command("git", "clone", "-q", "--shared", "--no-checkout", source, c.dir).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v\n%s", err, out)
	}
	commits := strings.Fields(c.git("rev-list", "--first-parent", "-n", "21", "HEAD"))
	slices.Reverse(commits)
	states := c.withBoards(commits)
	c.git("checkout", "-q", "-f", states[0])
	var rows strings.Builder
	fmt.Fprintf(&rows, "| commit | subject | boards | why |\n|---|---|---|---|\n")
	builds, possible := 0, 0
	for i := range commits[1:] {
		p, err := Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: states[i], To: states[i+1], Images: images.Options{Dir: t.TempDir()}})
		if err != nil {
			t.Fatal(err)
		}
		n, _ := p.count()
		builds, possible = builds+n, possible+len(p.Boards)
		rows.WriteString(tegraRow(commits[i+1], c.git("log", "-1", "--format=%s", commits[i+1]), p))
	}
	fmt.Fprintf(&rows, "\nThe plan builds %d times. All boards at each commit are %d builds.\n", builds, possible)
	t.Log("\n" + rows.String())
	replaceInPage(t, tegraBegin, tegraEnd, rows.String())
}

// withBoards returns commits with the files of others and the boards.
func (c clone) withBoards(commits []string) (states []string) {
	c.t.Helper()
	c.t.Setenv("GIT_INDEX_FILE", filepath.Join(c.t.TempDir(), "index"))
	defer os.Unsetenv("GIT_INDEX_FILE")
	blobs := map[string]string{}
	for name, text := range tegraBoards {
		file := filepath.Join(c.t.TempDir(), "blob")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			c.t.Fatal(err)
		}
		blobs[name] = c.git("hash-object", "-w", file)
	}
	for _, commit := range commits {
		c.git("read-tree", commit)
		for name, blob := range blobs {
			c.git("update-index", "--add", "--cacheinfo", "100644,"+blob+",boards/"+name)
		}
		args := []string{"commit-tree", "-m", "with boards", c.git("write-tree")}
		if len(states) > 0 {
			args = append(args, "-p", states[len(states)-1])
		}
		states = append(states, c.git(args...))
	}
	return states
}

func tegraRow(commit, subject string, p Plan) string {
	var boards []string
	reasons := map[string]bool{}
	var why []string
	for _, b := range p.Boards {
		if !b.Build {
			continue
		}
		boards = append(boards, b.Board)
		for _, w := range b.Why {
			w, _, _ = strings.Cut(w, " (no build on this machine")
			if !reasons[w] {
				reasons[w], why = true, append(why, w)
			}
		}
	}
	text := strings.Join(boards, ", ")
	switch len(boards) {
	case 0:
		text = "nothing"
	case len(p.Boards):
		text = "all"
	}
	reason := shorten(why)
	return strings.ReplaceAll(fmt.Sprintf("| %.10s | %s | %s | %s |", commit, strings.ReplaceAll(subject, "|", `\|`), text, reason), "\n", " ") + "\n"
}

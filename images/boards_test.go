package images

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// bitbakeBoards are the boards with a project file, and those files.
func bitbakeBoards(t *testing.T) map[string]layers.Project {
	t.Helper()
	names, err := Boards()
	if err != nil {
		t.Fatal(err)
	}
	projects := map[string]layers.Project{}
	for _, name := range names {
		spec, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Debian != nil {
			continue
		}
		if projects[name], _, err = Project(t.Context(), spec, Options{Dir: t.TempDir()}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Contains(spec.Suites, "base") {
			t.Errorf("%s: suites are %q; want base among them", name, spec.Suites)
		}
	}
	return projects
}

var wholeCommit = plaintext.Regexp(`^[0-9a-f]{40}$`)

// The table "The boards" of their page has each board.
func TestBoardsPage(t *testing.T) {
	page, err := os.ReadFile("boards/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## The boards\n")
	table, _, _ = strings.Cut(table, "\n- ")
	inTable := strings.FieldsFunc(table, func(r rune) bool { return strings.ContainsRune(" ,|\n", r) })
	names, err := Boards()
	if err != nil || len(names) == 0 {
		t.Fatalf("Boards = %d names, %v", len(names), err)
	}
	for _, name := range names {
		if !slices.Contains(inTable, name) {
			t.Errorf("images/boards/README.md: the table has no %s", name)
		}
	}
}

// A board is built from the same layers next year.
func TestBoardsAreLocked(t *testing.T) {
	projects := bitbakeBoards(t)
	for board, p := range projects {
		if p.Machine == "" || p.Distro == "" || len(p.Targets) == 0 {
			t.Errorf("%s: machine %q, distro %q, targets %q; want all three", board, p.Machine, p.Distro, p.Targets)
		}
		for _, warning := range p.Warnings {
			t.Errorf("%s: %s", board, warning)
		}
		for _, r := range p.Repos {
			if r.URL != "" && (!wholeCommit().MatchString(r.Commit) || r.Branch == "") {
				t.Errorf("%s: repository %s has commit %q of branch %q; want a whole commit and the branch it is on", board, r.ID, r.Commit, r.Branch)
			}
		}
	}
	for _, name := range []string{
		"jetson-nano-devkit", "jetson-tx2-devkit", "jetson-agx-xavier-devkit", "jetson-xavier-nx-devkit-emmc",
		"jetson-orin-nano-devkit", "jetson-orin-nano-devkit-nvme", "jetson-agx-orin-devkit",
		"jetson-orin-nano-devkit-wrynose", "jetson-orin-nano-devkit-nvme-wrynose", "jetson-agx-orin-devkit-wrynose",
		"jetson-agx-thor-devkit",
	} {
		board, machine, _ := strings.Cut(name, ": ")
		if machine = cmp.Or(machine, strings.TrimSuffix(board, "-wrynose")); projects[board].Machine != machine {
			t.Errorf("%s: machine is %q; want %q", board, projects[board].Machine, machine)
		}
	}
}

// What boards are locked to is looked up in copies of the layers' repositories.
func TestLocksAreOnTheirBranches(t *testing.T) {
	config := os.Getenv("SLIPWAY_MIRRORS")
	if config == "" {
		t.Skip(`SLIPWAY_MIRRORS is not set: name a git configuration file whose url.<folder>.insteadOf lead from the layers' URLs to bare clones of them`)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	m := mirrors{locks: map[string]bool{}}
	for board, p := range bitbakeBoards(t) {
		machine := false
		for _, r := range p.Repos {
			at := ".." // the clone
			if r.URL != "" {
				at = m.lookUp(t, board, r)
			}
			machine = machine || at != "" && hasMachine(at, r, p.Machine)
		}
		if !machine {
			t.Errorf("%s: none of its layers has conf/machine/%s.conf", board, p.Machine)
		}
	}
}

type mirrors struct {
	locks map[string]bool // that were looked up already
}

// lookUp returns the copy of a repository, "" if there is none.
func (m mirrors) lookUp(t *testing.T, board string, r layers.Repo) string {
	out, err := exec.Command("git", "ls-remote", "--get-url", r.URL).Output()
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimSpace(string(out))
	if !filepath.IsAbs(at) {
		t.Errorf("%s: no copy of %s is named", board, r.URL)
		return ""
	}
	if lock := r.URL + r.Branch + r.Commit; !m.locks[lock] {
		m.locks[lock] = true
		if out, err := exec.Command("git", "-C", at, "merge-base", "--is-ancestor", r.Commit, "refs/heads/"+r.Branch).CombinedOutput(); err != nil {
			t.Errorf("%s: repository %s: commit %s is not on branch %s: %v\n%s", board, r.ID, r.Commit, r.Branch, err, out)
		}
	}
	return at
}

func hasMachine(at string, r layers.Repo, machine string) bool {
	for _, layer := range r.Layers {
		conf := filepath.Join(layer.Name, "conf/machine", machine+".conf")
		if r.URL == "" {
			if localfile.Exists(filepath.Join(at, conf)) {
				return true
			}
		} else if exec.Command("git", "-C", at, "cat-file", "-e", r.Commit+":"+conf).Run() == nil {
			return true
		}
	}
	return false
}

package layers

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/localfile"

	"github.com/google/go-cmp/cmp"
)

// patchedRepo is a project with a repository r, at the server's first commit, and
// patches in the repository of the project file.
type patchedRepo struct {
	url, first, second string
	dir, r             string
}

func patchedProject(t *testing.T) patchedRepo {
	t.Helper()
	p := patchedRepo{dir: t.TempDir()}
	p.url, p.first, p.second = server(t)
	p.r = filepath.Join(p.dir, "r")
	return p
}

// changeLine is a patch of conf/layer.conf, and newFile one that adds a file.
func changeLine(from, to string) string {
	return "--- a/conf/layer.conf\n+++ b/conf/layer.conf\n@@ -1 +1 @@\n-" + from + "\n\\ No newline at end of file\n+" + to + "\n\\ No newline at end of file\n"
}

func newFile(name, content string) string {
	return "diff --git a/" + name + " b/" + name + "\nnew file mode 100644\n--- /dev/null\n+++ b/" + name + "\n@@ -0,0 +1 @@\n+" + content + "\n\\ No newline at end of file\n"
}

// checkout checks out a commit with patches.
func (p patchedRepo) checkout(t *testing.T, commit string, patches ...Patch) error {
	t.Helper()
	return p.checkoutIn(t.Context(), t, commit, patches...)
}

func (p patchedRepo) checkoutIn(ctx context.Context, t *testing.T, commit string, patches ...Patch) error {
	t.Helper()
	project := load(t, p.dir, "header: {version: 14}\nrepos:\n  here: {}\n  r: {url: "+p.url+", branch: main, commit: "+commit+"}\n")
	project.Repos[1].Patches = patches
	return Checkout(ctx, project, Workspace{Dir: p.dir, Mirrors: filepath.Join(p.dir, "mirrors")})
}

func (p patchedRepo) mustCheckout(t *testing.T, patches ...Patch) {
	t.Helper()
	if err := p.checkout(t, p.first, patches...); err != nil {
		t.Fatal(err)
	}
}

func (p patchedRepo) files(t *testing.T) map[string]string { return moved{r: p.r}.files(t) }

// A lock that a killed git left on what slipway alone writes must not stop every later checkout.
func TestCheckoutAfterAKilledGit(t *testing.T) {
	for _, tt := range []struct {
		name, lock string
		pinned     bool
	}{
		{"index of patches", ".git/slipway-index.lock", true},
		{"ref of a branch", ".git/refs/slipway/at/heads/main.lock", false},
		{"ref of what was checked out", ".git/refs/slipway/checkout.lock", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := patchedProject(t)
			write(t, p.dir, map[string]string{"patches/fix.patch": newFile("fix", "one")})
			p.mustCheckout(t, onePatch...)
			write(t, p.r, map[string]string{tt.lock: ""})
			write(t, p.dir, map[string]string{"patches/fix.patch": newFile("fix", "two")})
			pin := ""
			if tt.pinned {
				pin = ", commit: " + p.second
			}
			project := load(t, p.dir, "header: {version: 14}\nrepos:\n  here: {}\n  r: {url: "+p.url+", branch: main"+pin+"}\n")
			project.Repos[1].Patches = onePatch
			if err := Checkout(t.Context(), project, Workspace{Dir: p.dir, Mirrors: filepath.Join(p.dir, "mirrors")}); err != nil {
				t.Fatal(err)
			}
			if got := p.files(t)["fix"]; got != "two" || localfile.Exists(filepath.Join(p.r, tt.lock)) {
				t.Errorf("fix is %q, and the lock is there: %v; want \"two\" and no lock", got, localfile.Exists(filepath.Join(p.r, tt.lock)))
			}
		})
	}
}

var onePatch = []Patch{{"fix", "here", "patches/fix.patch"}}

func TestCheckoutPatches(t *testing.T) {
	tests := []struct {
		name    string
		files   map[string]string
		patches []Patch
		want    map[string]string
		wantErr string
	}{
		{"a file", map[string]string{"patches/fix.patch": changeLine("one", "fixed")}, onePatch, map[string]string{"conf/layer.conf": "fixed"}, ""},
		{
			"in their order",
			map[string]string{"b.patch": changeLine("one", "b"), "a.patch": changeLine("b", "a")},
			[]Patch{{"10", "here", "b.patch"}, {"9", "here", "a.patch"}},
			map[string]string{"conf/layer.conf": "a"},
			"",
		},
		{
			"a series",
			map[string]string{"patches/fix.patch/series": "# first\nb.patch # why\n\nsub/a.patch \n", "patches/fix.patch/b.patch": changeLine("one", "b"), "patches/fix.patch/sub/a.patch": changeLine("b", "a"), "patches/fix.patch/c.patch": "not in the series"},
			onePatch,
			map[string]string{"conf/layer.conf": "a"},
			"",
		},
		{"a new file", map[string]string{"patches/fix.patch": newFile("recipes/new.bb", "new")}, onePatch, map[string]string{"recipes/new.bb": "new"}, ""},
		{"of its own repository", nil, []Patch{{"fix", "r", "patches/own.patch"}}, map[string]string{"conf/layer.conf": "own"}, ""},
		{"one that does not apply", map[string]string{"patches/fix.patch": changeLine("two", "fixed")}, onePatch, nil, "does not apply to commit"},
		{"nothing at all", map[string]string{"patches/fix.patch": ""}, onePatch, nil, "does not apply to commit"},
		{"none there", nil, onePatch, nil, "no such file or directory\nnext: ls /"},
		{"no series", map[string]string{"patches/fix.patch/a.patch": ""}, onePatch, nil, "without a file series"},
		{"a series that names nothing", map[string]string{"patches/fix.patch/series": "\ngone.patch -p1\n"}, onePatch, nil, "series:2: openat patches/fix.patch/gone.patch -p1"},
		{
			"the same one again and again",
			map[string]string{"patches/fix.patch/series": strings.Repeat("big\n", 9), "patches/fix.patch/big": strings.Repeat("x", maxPatchBytes)},
			onePatch,
			nil,
			"series: more than 1000 patches",
		},
		{"out of the repository", nil, []Patch{{"fix", "here", "../x"}}, nil, "../x"},
		{"of no repository", nil, []Patch{{"fix", "gone", "x"}}, nil, "no repository \"gone\""},
		{"a series that leads out", map[string]string{"patches/fix.patch/series": "../../../x\n"}, onePatch, nil, "path escapes"},
		{"into .git", map[string]string{"patches/fix.patch": newFile(".git/hooks/post-checkout", "x")}, onePatch, nil, "invalid path"},
		{"out of the tree", map[string]string{"patches/fix.patch": newFile("../outside", "x")}, onePatch, nil, "invalid path"},
	}
	all := patchedProject(t)
	write(t, all.url, map[string]string{"patches/own.patch": changeLine("two", "own")})
	mustRun(t, all.url, "git", "add", "-A")
	mustRun(t, all.url, "git", "commit", "-q", "-m", "own")
	own := headOf(t, all.url)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := patchedRepo{url: all.url, dir: t.TempDir()}
			p.r = filepath.Join(p.dir, "r")
			commit := all.first
			if len(tt.patches) == 1 && tt.patches[0].Repo == "r" {
				commit = own
			}
			write(t, p.dir, tt.files)
			err := p.checkout(t, commit, tt.patches...)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("Checkout = %v; want an error with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := p.files(t)
			for name, want := range tt.want {
				if got[name] != want {
					t.Errorf("%s is %q; want %q", name, got[name], want)
				}
			}
			if status := mustRun(t, p.r, "git", "status", "--porcelain"); status != "" {
				t.Errorf("git status says %q; want nothing", status)
			}
		})
	}
}

func TestCheckoutPatchesOnceAndTheSameEverywhere(t *testing.T) {
	p := patchedProject(t)
	write(t, p.dir, map[string]string{"patches/fix.patch": changeLine("one", "fixed")})
	if err := p.checkout(t, p.first, onePatch...); err != nil {
		t.Fatal(err)
	}
	head := headOf(t, p.r)
	before, err := os.Stat(filepath.Join(p.r, "conf/layer.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.checkout(t, p.first, onePatch...); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(filepath.Join(p.r, "conf/layer.conf"))
	if err != nil || headOf(t, p.r) != head || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a second checkout moved HEAD from %s to %s, %v, or wrote the file anew", head, headOf(t, p.r), err)
	}
	if err := os.RemoveAll(p.r); err != nil {
		t.Fatal(err)
	}
	if err := p.checkout(t, p.first, onePatch...); err != nil || headOf(t, p.r) != head {
		t.Errorf("a new checkout is at %s, %v; want %s again", headOf(t, p.r), err, head)
	}
}

func TestCheckoutFollowsChangedPatches(t *testing.T) {
	p := patchedProject(t)
	steps := []struct {
		name, patch, commit string
		patches             []Patch
		want                string
	}{
		{"patched", changeLine("one", "fixed"), p.first, onePatch, "fixed"},
		{"another patch", changeLine("one", "better"), p.first, onePatch, "better"},
		{"another commit", changeLine("two", "best"), p.second, onePatch, "best"},
		{"no patch", "", p.second, nil, "two"},
		{"patched again", changeLine("two", "last"), p.second, onePatch, "last"},
	}
	for _, s := range steps {
		write(t, p.dir, map[string]string{"patches/fix.patch": s.patch})
		if err := p.checkout(t, s.commit, s.patches...); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if got := p.files(t)["conf/layer.conf"]; got != s.want {
			t.Errorf("%s: the file is %q; want %q", s.name, got, s.want)
		}
	}
}

func TestCheckoutPatchesNoEditedTree(t *testing.T) {
	p := patchedProject(t)
	write(t, p.dir, map[string]string{"patches/fix.patch": changeLine("one", "fixed")})
	if err := p.checkout(t, p.first, onePatch...); err != nil {
		t.Fatal(err)
	}
	write(t, p.r, map[string]string{"conf/layer.conf": "mine"})
	write(t, p.dir, map[string]string{"patches/fix.patch": changeLine("one", "better")})
	head, files := headOf(t, p.r), p.files(t)
	for range 2 {
		err := p.checkout(t, p.first, onePatch...)
		if err == nil || !strings.Contains(err.Error(), "has local changes") || headOf(t, p.r) != head {
			t.Errorf("Checkout = %v; want it to leave local changes alone", err)
		}
	}
	if diff := cmp.Diff(files, p.files(t)); diff != "" {
		t.Errorf("files changed (-before +after):\n%s", diff)
	}
}

// A user's git may check the signature of each commit that it shows.
func TestCheckoutPatchesASignedCommit(t *testing.T) {
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "log.showSignature")
	t.Setenv("GIT_CONFIG_VALUE_0", "true")
	p := patchedProject(t)
	commit := mustRun(t, p.url, "git", "cat-file", "commit", p.first) + "\n"
	commit = strings.Replace(commit, "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n none\n -----END PGP SIGNATURE-----\n\n", 1)
	write(t, p.dir, map[string]string{"commit": commit, "patches/fix.patch": changeLine("one", "fixed")})
	signed := mustRun(t, p.url, "git", "hash-object", "-t", "commit", "-w", filepath.Join(p.dir, "commit"))
	mustRun(t, p.url, "git", "update-ref", "refs/heads/signed", signed)
	if err := p.checkout(t, signed, onePatch...); err != nil || p.files(t)["conf/layer.conf"] != "fixed" {
		t.Errorf("Checkout = %v; want the patch applied to a signed commit", err)
	}
}

// A link in a patches' repository must not read a file of the machine.
func TestCheckoutPatchBehindALink(t *testing.T) {
	p := patchedProject(t)
	outside := filepath.Join(t.TempDir(), "fix.patch")
	write(t, filepath.Dir(outside), map[string]string{"fix.patch": changeLine("one", "fixed")})
	if err := os.MkdirAll(filepath.Join(p.dir, "patches"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(p.dir, "patches/fix.patch")); err != nil {
		t.Fatal(err)
	}
	if err := p.checkout(t, p.first, onePatch...); err == nil || !strings.Contains(err.Error(), "path escapes") {
		t.Errorf("Checkout = %v; want the link refused", err)
	}
}

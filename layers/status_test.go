package layers

import (
	"os"
	"path/filepath"
	"testing"
)

func TestStatus(t *testing.T) {
	p := patchedProject(t)
	write(t, p.dir, map[string]string{"patches/fix.patch": changeLine("one", "fixed")})
	commit := func(t *testing.T) { mustRun(t, p.r, "git", "commit", "-q", "--allow-empty", "-m", "mine") }
	steps := []struct {
		name    string
		do      func(t *testing.T)
		patches []Patch
		want    State
		word    string
	}{
		{"before a checkout", func(*testing.T) {}, nil, State{Stale: false}, "missing"},
		{"checked out", func(t *testing.T) { p.mustCheckout(t) }, nil, State{}, "ok"},
		{"its patch is new", func(*testing.T) {}, onePatch, State{Stale: true}, "unpatched"},
		{"patched", func(t *testing.T) { p.mustCheckout(t, onePatch...) }, onePatch, State{Patched: 1}, "patched"},
		{"edited", func(t *testing.T) { write(t, p.r, map[string]string{"conf/layer.conf": "mine"}) }, onePatch, State{Patched: 1, Edited: true}, "edited"},
		{"on a branch", func(t *testing.T) { mustRun(t, p.r, "git", "checkout", "-q", "-f", "-b", "mine") }, onePatch, State{Patched: 1, Branch: "mine"}, "wrong branch"},
		{"with a commit", commit, onePatch, State{Branch: "mine", Ahead: 1}, "ahead 1"},
		{"elsewhere", func(t *testing.T) {
			mustRun(t, p.r, "git", "checkout", "-q", "--detach", "HEAD~2")
			commit(t)
		}, onePatch, State{Ahead: 1, Behind: 1}, "differs"},
		{"killed", func(t *testing.T) { write(t, p.r, map[string]string{".git/slipway-moving": p.first}) }, onePatch, State{Ahead: 1, Behind: 1, Stopped: true}, "stopped"},
		{"without a commit", func(t *testing.T) {
			mustRun(t, p.r, "git", "checkout", "-q", "--orphan", "none")
		}, onePatch, State{Branch: "none", Edited: true, Stopped: true}, "stopped"},
		{"its folder is gone", func(t *testing.T) {
			if err := os.RemoveAll(p.r); err != nil {
				t.Fatal(err)
			}
		}, onePatch, State{}, "missing"},
	}
	for _, s := range steps {
		s.do(t)
		project := load(t, p.dir, "header: {version: 14}\nrepos:\n  here: {}\n  r: {url: "+p.url+", branch: main, commit: "+p.first+"}\n")
		project.Repos[1].Patches = s.patches
		states, err := Status(t.Context(), project, Workspace{Dir: p.dir})
		if err != nil {
			t.Fatal(err)
		}
		got := states[1]
		if got.Word() != s.word || got.Branch != s.want.Branch || got.Edited != s.want.Edited || got.Stopped != s.want.Stopped ||
			got.Patched != s.want.Patched || got.Stale != s.want.Stale || got.Ahead != s.want.Ahead || got.Behind != s.want.Behind {
			t.Errorf("%s: Status = %+v, %q; want %+v, %q", s.name, got, got.Word(), s.want, s.word)
		}
		if s.name != "before a checkout" && s.name != "without a commit" && s.name != "its folder is gone" && got.Head != headOf(t, filepath.Join(p.dir, "r")) {
			t.Errorf("%s: Head = %s; want %s", s.name, got.Head, headOf(t, p.r))
		}
	}
}

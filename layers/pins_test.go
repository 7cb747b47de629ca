package layers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/yaml"

	"github.com/google/go-cmp/cmp"
)

// An entry that is in two lock files is set in both: the one in the file that is read later holds.
func TestLockSetsEveryEntry(t *testing.T) {
	url, first, second := server(t)
	dir := t.TempDir()
	stale := "header: {version: 14}\noverrides: {repos: {r: {commit: " + first + "}}}\n"
	write(t, dir, map[string]string{
		".git/HEAD":    "",
		"p.yml":        "header: {version: 14, includes: [a.yml]}\nrepos:\n  r: {url: " + url + ", branch: main}\n",
		"p.lock.yml":   stale,
		"a.yml":        "header: {version: 14}\n",
		"a.lock.yml":   stale,
		"not.lock.yml": stale,
	})
	ws := Workspace{Dir: filepath.Join(dir, "w")}
	long := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 2 {
		p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), ws)
		if err != nil {
			t.Fatal(err)
		}
		if err := Lock(t.Context(), p, ws, []string{AllPins}); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"p.lock.yml": second, "a.lock.yml": second, "not.lock.yml": first} {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(data), want) {
				t.Errorf("%s = %q, %v; want commit %s", name, data, err, want)
			}
			if info, err := os.Stat(path); err != nil || i == 1 && !info.ModTime().Equal(long) {
				t.Errorf("%s was written again without a change, %v", name, err)
			}
			if err := os.Chtimes(path, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What was built is what is pinned, and a pin moves only when that is requested.
func TestLockKeepsPins(t *testing.T) {
	url, first, second := server(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"p.yml":      "header: {version: 14}\nrepos:\n" + strings.ReplaceAll("  a: {url: U, branch: main}\n  b: {url: U, branch: main}\n  c: {url: U, branch: main}\n  d: {url: U, branch: main}\n", "U", url),
		"p.lock.yml": "header: {version: 14}\noverrides: {repos: {a: {commit: " + first + "}, b: {commit: " + first + "}}}\n",
	})
	ws := Workspace{Dir: filepath.Join(dir, "w")}
	loaded := func() Project {
		t.Helper()
		p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), ws)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := loaded()
	p.Repos = p.Repos[:3] // d is never checked out
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	mustRun(t, url, "git", "commit", "-q", "--allow-empty", "-m", "three")
	third := headOf(t, url)
	for _, step := range []struct {
		update []string
		want   map[string]string
	}{
		{nil, map[string]string{"a": first, "b": first, "c": second, "d": third}},
		{nil, map[string]string{"a": first, "b": first, "c": second, "d": third}},
		{[]string{"b"}, map[string]string{"a": first, "b": third, "c": second, "d": third}},
		{[]string{AllPins}, map[string]string{"a": third, "b": third, "c": third, "d": third}},
	} {
		if err := Lock(t.Context(), loaded(), ws, step.update); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, loaded().pinnedCommits()); diff != "" {
			t.Errorf("pins after Lock of %q (-want +got):\n%s", step.update, diff)
		}
	}
	if err := Lock(t.Context(), loaded(), ws, []string{"none"}); err == nil || !strings.Contains(err.Error(), `no repository "none" (have a, b, c, d)`) {
		t.Errorf("Lock of no repository = %v; want it refused", err)
	}
	write(t, dir, map[string]string{"q.yml": "header: {version: 14}\nrepos: {here: , r: {url: " + url + ", commit: " + first + "}, a: {url: " + url + ", branch: main}}\n"})
	for id, want := range map[string]string{"here": "has no url", "r": "q.yml:2:"} {
		q, err := Load(t.Context(), filepath.Join(dir, "q.yml"), ws)
		if err != nil {
			t.Fatal(err)
		}
		if err := Lock(t.Context(), q, ws, []string{id}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Lock of %s, which no lock file pins = %v; want it refused: %s", id, err, want)
		}
	}
	ws.Local = map[string]string{"a": dir}
	if err := Lock(t.Context(), loaded(), ws, []string{"a"}); err == nil || !strings.Contains(err.Error(), "its pin stays") {
		t.Errorf("Lock of a local folder = %v; want it refused", err)
	}
}

// bitbake-setup's lock file keeps its pins, too.
func TestLockKeepsPinsOfSetup(t *testing.T) {
	url, first, second := server(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"x.conf.json":                    setupText(fmt.Sprintf(`"oe": {"git-remote": {"uri": %q, "rev": "main"}}, "b": {"git-remote": {"uri": %[1]q, "rev": "main"}}`, url), setupOne),
		"x.sources-fixed-revisions.json": fmt.Sprintf(`{"sources": {"oe": {"git-remote": {"uri": %q, "rev": %q}}}}`, url, first),
	})
	for _, step := range []struct {
		update []string
		oe     string
	}{{nil, first}, {[]string{"b"}, first}, {[]string{"oe"}, second}} {
		p, err := Load(t.Context(), filepath.Join(dir, "x.conf.json"), Workspace{})
		if err != nil {
			t.Fatal(err)
		}
		if err := Lock(t.Context(), p, Workspace{}, step.update); err != nil {
			t.Fatal(err)
		}
		v, _, err := yaml.ReadSetup(filepath.Join(dir, "x.sources-fixed-revisions.json"), setupOverrides)
		if err != nil {
			t.Fatal(err)
		}
		if oe, b := v.Get("sources", "oe", "git-remote", "rev").Text, v.Get("sources", "b", "git-remote", "rev").Text; oe != step.oe || b != second {
			t.Errorf("Lock of %q pins %s and %s; want %s and %s", step.update, oe, b, step.oe, second)
		}
	}
}

// What a file says of the repository that it lies in counts for itself too.
func TestLoadFollowsFilesThatMoveTheirRepository(t *testing.T) {
	tests := []struct{ name, next, want, wantErr string }{
		{"to another branch", "header: {version: 14}\nmachine: from-next\nrepos: {r: {branch: next}}\n", "from-next", ""},
		{"back and forth", "header: {version: 14}\nrepos: {r: {branch: main}}\n", "", "change again and again"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url, _, _ := server(t)
			mustRun(t, url, "git", "checkout", "-q", "-b", "next")
			write(t, url, map[string]string{"k.yml": tt.next})
			mustRun(t, url, "git", "add", "-A")
			mustRun(t, url, "git", "commit", "-q", "-m", "next")
			mustRun(t, url, "git", "checkout", "-q", "main")
			write(t, url, map[string]string{"k.yml": "header: {version: 14}\nmachine: from-main\nrepos: {r: {branch: next}}\n"})
			mustRun(t, url, "git", "add", "-A")
			mustRun(t, url, "git", "commit", "-q", "-m", "main")
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"base.yml": "header: {version: 14}\nrepos: {r: {url: " + url + ", branch: main}}\n",
				"p.yml":    "header: {version: 14, includes: [base.yml, {repo: r, file: k.yml}]}\n",
			})
			p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{Dir: filepath.Join(dir, "w")})
			if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) || tt.wantErr == "" && err != nil {
				t.Errorf("Load = %v; want an error with %q", err, tt.wantErr)
			}
			if p.Machine != tt.want {
				t.Errorf("machine %q; want %q", p.Machine, tt.want)
			}
		})
	}
}

// Older files name branches and tags alike.
func TestRefspecOfATag(t *testing.T) {
	url, first, second := server(t)
	for refspec, want := range map[string]string{"v1": first, "main": second, "refs/tags/v1": first, "refs/heads/main": second, first: first} {
		for _, mirrors := range []string{"", t.TempDir()} {
			dir := t.TempDir()
			ws := Workspace{Dir: filepath.Join(dir, "w"), Mirrors: mirrors}
			p := load(t, dir, repoFile("url: "+url+", refspec: "+refspec))
			for range 2 {
				if err := Checkout(t.Context(), p, ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != want {
					t.Errorf("Checkout of refspec %s = %v; want it at %s", refspec, err, want)
				}
			}
			if err := Lock(t.Context(), p, ws, []string{AllPins}); err != nil {
				t.Fatal(err)
			}
			lock, err := os.ReadFile(filepath.Join(dir, "p.lock.yml"))
			if locked := strings.Contains(string(lock), want); locked != (refspec != first) {
				t.Errorf("lock of refspec %s = %q, %v; want commit %s unless that is the refspec", refspec, lock, err, want)
			}
		}
	}
	dir := t.TempDir()
	p := load(t, dir, repoFile("url: "+url+", refspec: none"))
	if err := Checkout(t.Context(), p, Workspace{Dir: dir}); err == nil || !strings.Contains(err.Error(), "refs/heads/none") {
		t.Errorf("Checkout of no branch = %v; want its name", err)
	}
}

// A repository that files are included from stands with its patches, which may
// lie in yet another one. kas reads such files before it applies patches.
func TestLoadFromAPatchedRepository(t *testing.T) {
	url, _, _ := server(t)
	write(t, url, map[string]string{"k.yml": "header: {version: 14}\nmachine: plain\n"})
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "k")
	write(t, url, map[string]string{"k.yml": "header: {version: 14}\nmachine: patched\n"})
	change := mustRun(t, url, "git", "diff")
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"k.patch": change + "\n",
		"p.yml": "header: {version: 14, includes: [{repo: r, file: k.yml}]}\nrepos:\n  here:\n" +
			"  r: {url: " + url + ", branch: main, patches: {one: {repo: here, path: k.patch}}}\n",
	})
	file, there := filepath.Join(dir, "p.yml"), filepath.Join(dir, "w")
	if _, err := Load(t.Context(), file, Workspace{Dir: there, Offline: true}); !errors.Is(err, ErrNotHere) || localfile.Exists(there) {
		t.Errorf("offline, before a checkout: %v; want %v and no checkout", err, ErrNotHere)
	}
	for _, offline := range []bool{false, false, true} {
		p, err := Load(t.Context(), file, Workspace{Dir: there, Offline: offline})
		if err != nil || p.Machine != "patched" {
			t.Errorf("machine %q, %v; want patched", p.Machine, err)
		}
	}
}

// A lock file's own settings besides the commit are kept.
func TestLockKeepsOtherOverrides(t *testing.T) {
	url, _, second := server(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"p.lock.yml": "header: {version: 14}\noverrides: {repos: {r: {url: " + url + "}}}\n"})
	p := load(t, dir, repoFile("url: "+url+", branch: main"))
	if err := Lock(t.Context(), p, Workspace{Dir: dir}, []string{AllPins}); err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join(dir, "p.lock.yml"))
	if err != nil || !strings.Contains(string(lock), "url: "+url) || !strings.Contains(string(lock), "commit: "+second) {
		t.Errorf("lock = %q, %v; want its url and commit %s", lock, err, second)
	}
}

// Lock says what it did, and where.
func TestDescribePins(t *testing.T) {
	in := &reading{loader: &loader{files: []string{"/lab/p.yml"}}}
	for moved, want := range map[int]string{0: "nothing moved: 2 of 2 pins are at their servers' commits", 1: "1 of 2 pins are new, in /lab/p.lock.yml"} {
		if got := in.describePins(moved, 2); got != want {
			t.Errorf("describePins(%d, 2) = %q; want %q", moved, got, want)
		}
	}
	in.locks = []lockFile{{path: "/lab/p.lock.yml"}, {path: "/lab/q.lock.yml"}}
	if got, want := in.describePins(1, 2), "1 of 2 pins are new"; got != want {
		t.Errorf("describePins of two lock files = %q; want %q", got, want)
	}
}

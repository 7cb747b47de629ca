package bitbake

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/layers/localfile"

	"github.com/google/go-cmp/cmp"
)

// inputsRun lays out a board's folder after a build, and returns the build's record:
// bb_cache.dat and events.json of testdata/inputs were written by Python's pickle with the
// classes of bitbake 2.19.
func inputsRun(t *testing.T) (dir string, r Record) {
	t.Helper()
	dir = t.TempDir()
	cache := filepath.Join(dir, "tmp/cache")
	must(t, os.MkdirAll(cache, 0o755))
	must(t, os.WriteFile(filepath.Join(cache, "bb_cache.dat.1f"), readTestInput(t, "bb_cache.dat"), 0o644))
	must(t, os.WriteFile(filepath.Join(cache, "bb_cache.dat.0e"), []byte("of an older run"), 0o644))
	must(t, os.Symlink("bb_cache.dat.1f", filepath.Join(cache, "bb_cache.dat")))
	_, events, _ := bytes.Cut(readTestInput(t, "events.json"), []byte("\n")) // without a tree of tasks that is none
	r = watched(t, events, "", false)
	r.State, r.Counts.Total, r.Variables = Succeeded, 4, map[string]string{"TMPDIR": filepath.Join(dir, "tmp")}
	return dir, r
}

func readTestInput(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata/inputs", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestInputs(t *testing.T) {
	dir, r := inputsRun(t)
	must(t, SaveInputs(r, dir, "/p", Commit{Commit: "c0ffee", Edited: true}))
	got, err := OpenInputs(dir)
	must(t, err)
	want := Inputs{
		Commit: "c0ffee", Edited: true,
		Read: map[string]string{
			"meta/recipes/a.bb": "a.bb", "meta/recipes/a.inc": "a.bb", "meta/recipes/c.bb": "c.bb", "meta/recipes/d.bb": "d.bb", "meta/recipes/d.inc": "d.bb", "src": "a.bb",
			"meta/recipes/a/x.conf": "a.bb", "meta/recipes/a/with blank:and.colon": "a.bb",
		},
		Missing: map[string]string{"meta/recipes/a/m/x.conf": "a.bb"},
		Unread:  []string{"meta/recipes/b.bb", "meta/recipes/b.inc"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inputs (-want +got):\n%s", diff)
	}
}

// A folder and a pattern stand for all files below, if they are of a recipe in use.
func TestInputsOfFolders(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "src/below"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "build/b/layers"), 0o755))
	r := newInputReader(root, filepath.Join(root, "build/b"), map[string]bool{"/u.bb": true})
	for _, path := range []string{"src", "pat/*.patch", "build/b/layers", "../elsewhere"} {
		r.addFile("/u.bb", filepath.Join(root, path), true)
		r.addFile("/other.bb", filepath.Join(root, path+"2/x"), true)
	}
	r.addFile("/other.bb", filepath.Join(root, "src"), true)
	in := r.inputs()
	if diff := cmp.Diff(map[string]string{"src": "u.bb", "pat": "u.bb"}, in.Folders); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}
	if len(in.Read) > 0 {
		t.Errorf("read = %v; want none", in.Read)
	}
}

// A file has a name for each way that leads to it. A recipe in use and another one may reach
// it by different ways.
func TestInputsThroughLinks(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "real"), 0o755))
	must(t, os.WriteFile(filepath.Join(root, "real/a.inc"), nil, 0o644))
	must(t, os.Symlink("real", filepath.Join(root, "link")))
	must(t, os.Symlink("real/a.inc", filepath.Join(root, "b.inc")))
	for _, way := range []string{"link/a.inc", "b.inc"} {
		r := newInputReader(root, "/b", map[string]bool{"/u.bb": true})
		r.addFile("/u.bb", filepath.Join(root, way), true)
		r.addFile("/other.bb", filepath.Join(root, "real/a.inc"), true)
		in := r.inputs()
		if in.Read["real/a.inc"] == "" || in.Read[way] == "" || len(in.Unread) > 0 {
			t.Errorf("%s: %+v; want both names read", way, in)
		}
	}
}

// What is not known as a whole is not known at all, and no older file says otherwise.
func TestInputsUnknown(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, dir string, r *Record)
		want  string
	}{
		"failed":     {func(_ *testing.T, _ string, r *Record) { r.State = Failed }, "the last build failed"},
		"more tasks": {func(_ *testing.T, _ string, r *Record) { r.Counts.Total = 5 }, "the event log names 4 of 5 tasks"},
		"no log":     {func(_ *testing.T, _ string, r *Record) { r.Queued, r.Counts.Total = nil, 0 }, "the event log names 0 of 0 tasks"},
		"no cache": {func(t *testing.T, dir string, _ *Record) {
			must(t, os.Remove(filepath.Join(dir, "tmp/cache/bb_cache.dat")))
		}, "has no recipe"},
		"cut cache": {func(t *testing.T, dir string, _ *Record) {
			must(t, os.WriteFile(filepath.Join(dir, "tmp/cache/bb_cache.dat.1f"), readTestInput(t, "bb_cache.dat")[:700], 0o644))
		}, "bb_cache.dat: pickle data was truncated"},
		"cache that ends with a name": {func(t *testing.T, dir string, _ *Record) {
			must(t, os.WriteFile(filepath.Join(dir, "tmp/cache/bb_cache.dat.1f"), []byte("\x80\x04\x8c\x011.\x80\x04\x8c\x012.\x80\x04\x8c\x013."), 0o644))
		}, "it ends in the middle of a value"},
		"another file": {func(t *testing.T, dir string, _ *Record) {
			must(t, os.WriteFile(filepath.Join(dir, "tmp/cache/bb_cache.dat.1f"), []byte("\x80\x04N."), 0o644))
		}, "no cache of recipes"},
		"a function of the system": {func(t *testing.T, dir string, _ *Record) {
			must(t, os.WriteFile(filepath.Join(dir, "tmp/cache/bb_cache.dat.1f"), []byte("\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."), 0o644))
		}, "it names posix.system"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir, r := inputsRun(t)
			must(t, SaveInputs(r, dir, "/p", Commit{}))
			test.spoil(t, dir, &r)
			err := SaveInputs(r, dir, "/p", Commit{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("SaveInputs = %v; want an error with %q", err, test.want)
			}
			if localfile.Exists(filepath.Join(dir, InputsName)) {
				t.Error("the older file is still there")
			}
		})
	}
}

// A cache may keep Python busy for ever: the hash of tuples that hold one another 60 deep. It
// costs the inputs, not the build.
func TestCacheThatNeverEnds(t *testing.T) {
	limit := maxCacheTime
	t.Cleanup(func() { maxCacheTime = limit })
	maxCacheTime = 500 * time.Millisecond
	bomb := "\x80\x04\x8f(K\x01" + strings.Repeat("2\x86", 60) + "\x90."
	began := time.Now()
	err := newInputReader("/p", "/b", nil).readCache(strings.NewReader(bomb))
	if err == nil || !strings.Contains(err.Error(), "takes more than 500ms") || time.Since(began) > 20*time.Second {
		t.Errorf("readCache = %v after %s; want an error that it takes too long", err, time.Since(began))
	}
}

func FuzzRecipeCache(f *testing.F) {
	f.Add(readTestInput(f, "bb_cache.dat"))
	f.Add([]byte("\x80\x04\x8c\x011.\x80\x04\x8c\x012."))
	f.Fuzz(func(_ *testing.T, data []byte) {
		r := newInputReader("/p", "/b", map[string]bool{"/p/meta/recipes/a.bb": true})
		if r.readCache(bytes.NewReader(data)) == nil {
			r.inputs()
		}
	})
}

func FuzzInputsFile(f *testing.F) {
	f.Add([]byte(`{"commit": "c", "read": {"a": "b"}, "unread": ["c"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, InputsName), data, 0o644))
		_, _ = OpenInputs(dir)
	})
}

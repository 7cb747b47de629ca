package layers

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// localProject is a project of a repository r with a patch, and the user's own clone of it.
func localProject(t *testing.T) (file, mine, first string) {
	t.Helper()
	url, first, _ := server(t)
	dir, mine := t.TempDir(), filepath.Join(t.TempDir(), "mine")
	mustRun(t, url, "git", "clone", "-q", url, mine)
	commitMine(t, mine, "my fix")
	write(t, dir, map[string]string{
		"p.yml": "header: {version: 14}\nrepos:\n  here: {layers: {.: disabled}}\n" +
			"  r: {url: " + url + ", branch: main, layers: {conf: }, patches: {p: {repo: here, path: p.patch}}}\n",
		"p.lock.yml": "header: {version: 14}\noverrides: {repos: {r: {commit: " + first + "}}}\n",
	})
	return filepath.Join(dir, "p.yml"), mine, first
}

// A local folder is built as it is, whatever is in it, and everything says so.
func TestLocalFolderIsTakenAsItIs(t *testing.T) {
	file, mine, first := localProject(t)
	ws := Workspace{Dir: filepath.Join(t.TempDir(), "w"), Local: map[string]string{"r": mine}}
	for _, tt := range []struct{ write, word, said string }{
		{"", "local", ""},
		{"new.bb", "local, modified", ", modified"},
		{"conf/layer.conf", "local, modified", ", modified"},
	} {
		if tt.write != "" {
			write(t, mine, map[string]string{tt.write: "mine"})
		}
		p, err := Load(t.Context(), file, ws)
		if err != nil {
			t.Fatal(err)
		}
		seen := &progresstest.Recorder{}
		if err := Checkout(progress.With(t.Context(), progress.New(seen)), p, ws); err != nil {
			t.Fatal(err)
		}
		head := headOf(t, mine)
		want := "repository r is the local folder " + mine + ", at commit " + head[:12] + tt.said + ": this build is not of the project's commit"
		if got := seen.Last("warning").Detail; got != want {
			t.Errorf("Checkout warned %q; want %q", got, want)
		}
		states, err := Status(t.Context(), p, ws)
		if s := states[1]; err != nil || s.Word() != tt.word || s.Head != head || s.Wanted != first || s.Branch != "main" || s.Dir != mine {
			t.Errorf("Status = %+v, %q, %v; want %q at %s", s, s.Word(), err, tt.word, head)
		}
		build := filepath.Join(ws.Dir, "build")
		if err := Configure(p, ws, build); err != nil || !strings.Contains(conf(t, build, "bblayers.conf"), filepath.Base(mine)+"/conf") {
			t.Errorf("Configure = %v, %s; want the layer in %s", err, conf(t, build, "bblayers.conf"), mine)
		}
		if localfile.Exists(filepath.Join(ws.Dir, "r")) || headOf(t, mine) != head {
			t.Error("something was checked out")
		}
	}
}

// A new repository, which has no commit yet, is not one without git.
func TestLocalFolderWithoutACommit(t *testing.T) {
	dir := t.TempDir()
	for _, want := range []string{dir + ", without git: ", dir + ", in git without a commit: "} {
		if got, err := localWarning(t.Context(), Repo{Remote: git.Remote{ID: "r"}, Path: dir}); err != nil || !strings.Contains(got, want) {
			t.Errorf("localWarning = %q, %v; want %q in it", got, err, want)
		}
		mustRun(t, dir, "git", "init", "-q")
	}
}

func TestLocalFolderInADump(t *testing.T) {
	file, mine, _ := localProject(t)
	p, err := Load(t.Context(), file, Workspace{Dir: t.TempDir(), Local: map[string]string{"r": mine}})
	if err != nil {
		t.Fatal(err)
	}
	flat, err := Dump(p)
	want := "# repository r: local folder, not the project's commit\nheader:\n  version: 14\noverrides:\n  repos: {}\nrepos:\n  here:\n    layers:\n      .: disabled\n" +
		"  r:\n    layers:\n      conf: null\n    path: " + mine + "\n"
	if got := string(flat); err != nil || strings.ReplaceAll(got, "conf:\n", "conf: null\n") != want {
		t.Errorf("Dump = %s, %v; want %s", got, err, want)
	}
	write(t, filepath.Dir(file), map[string]string{"flat.yml": string(flat)})
	again, err := Load(t.Context(), filepath.Join(filepath.Dir(file), "flat.yml"), Workspace{Dir: t.TempDir()})
	if err != nil || again.Repos[1].Path != mine {
		t.Errorf("Load of the dump = %+v, %v; want the folder", again.Repos, err)
	}
}

// Without the folder, the project is what it was: its lock did not move.
func TestLocalFolderIsNotLocked(t *testing.T) {
	file, mine, first := localProject(t)
	ws := Workspace{Dir: t.TempDir(), Local: map[string]string{"r": mine}}
	p, err := Load(t.Context(), file, ws)
	if err != nil {
		t.Fatal(err)
	}
	if err := Lock(t.Context(), p, Workspace{Dir: ws.Dir}, []string{AllPins}); err != nil {
		t.Fatal(err)
	}
	if again, err := Load(t.Context(), file, Workspace{Dir: ws.Dir}); err != nil || again.Repos[1].Commit != first {
		t.Errorf("Load after Lock = %+v, %v; want the pin %s", again.Repos, err, first)
	}
}

func TestLocalFolderErrors(t *testing.T) {
	file, mine, _ := localProject(t)
	blank := filepath.Join(t.TempDir(), "a b")
	write(t, blank, map[string]string{"f": ""})
	for _, tt := range []struct{ id, dir, want string }{
		{"none", mine, "the project has no repository \"none\" (have here, r)"},
		{"her", mine, `the project has no repository "her": did you mean here? (have here, r)`},
		{"r", mine + "x", "no such file or directory"},
		{"r", file, "is not a folder"},
		{"r", blank, "use a path without blanks"},
	} {
		_, err := Load(t.Context(), file, Workspace{Dir: t.TempDir(), Local: map[string]string{tt.id: tt.dir}})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Load with %s=%s = %v; want %q", tt.id, tt.dir, err, tt.want)
		}
	}
}

// Files that the project includes from a repository come from its local folder, and so do patches.
func TestLocalFolderGivesIncludesAndPatches(t *testing.T) {
	url, _, _ := server(t)
	mine, dir := t.TempDir(), t.TempDir()
	write(t, mine, map[string]string{"k.yml": "header: {version: 14}\nmachine: mine\n", "p.patch": changeLine("two", "patched")})
	write(t, dir, map[string]string{"p.yml": "header: {version: 14, includes: [{repo: r, file: k.yml}]}\nrepos:\n  r: {url: " + url + ", branch: main}\n" +
		"  s: {url: " + url + ", branch: main, patches: {p: {repo: r, path: p.patch}}}\n"})
	ws := Workspace{Dir: filepath.Join(dir, "w"), Local: map[string]string{"r": mine}, Build: filepath.Join(dir, "b")}
	p, err := Load(t.Context(), filepath.Join(dir, "p.yml"), ws)
	if err != nil || p.Machine != "mine" {
		t.Fatalf("machine %q, %v; want that of the local folder", p.Machine, err)
	}
	if localfile.Exists(ws.Build) {
		t.Error("Load wrote bitbake's configuration, which a build may be reading")
	}
	if err := Checkout(t.Context(), p, ws); err != nil || (moved{r: filepath.Join(ws.Dir, "s")}).files(t)["conf/layer.conf"] != "patched" {
		t.Errorf("Checkout = %v; want s patched from the local folder", err)
	}
}

func TestParseLocal(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	for _, tt := range []struct{ text, id, want, wantErr string }{
		{"", "", "", ""},
		{"r=/a", "r", "/a", ""},
		{" r=/a/../b , s=/c,", "r", "/b", ""},
		{"r=~/a", "r", "/home/me/a", ""},
		{"r=/a=b", "r", "/a=b", ""},
		{"r", "", "", "is not REPOSITORY=FOLDER"},
		{"r=", "", "", "is not REPOSITORY=FOLDER"},
		{"=/a", "", "", "is not REPOSITORY=FOLDER"},
		{"r=/a,r=/b", "", "", "names repository r twice"},
	} {
		got, err := ParseLocal(tt.text)
		if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)) || tt.wantErr == "" && (err != nil || got[tt.id] != tt.want) {
			t.Errorf("ParseLocal(%q) = %v, %v; want %s=%s, %q", tt.text, got, err, tt.id, tt.want, tt.wantErr)
		}
	}
}

// A repository without a url lies among the checkouts, or where the user is, as for kas.
func TestFolderWithoutURL(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"p.yml":                         "header: {version: 14}\nrepos:\n  near: {path: meta-near}\n  out: {path: w/meta-out}\n  none: {path: meta-none}\n",
		"meta-near/conf/layer.conf":     "",
		"ws/meta-near2/x":               "",
		"ws/w/meta-out/conf/layer.conf": "",
		"w/meta-out/conf/layer.conf":    "",
	})
	t.Chdir(dir)
	ws := Workspace{Dir: filepath.Join(dir, "ws")}
	p, err := Load(t.Context(), "p.yml", ws)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"near": dir + "/meta-near", "out": dir + "/ws/w/meta-out", "none": dir + "/ws/meta-none"} {
		i := slices.IndexFunc(p.Repos, func(r Repo) bool { return r.ID == id })
		if got := p.Dir(ws, p.Repos[i]); got != want {
			t.Errorf("Dir of %s = %s; want %s", id, got, want)
		}
	}
	if err := Checkout(t.Context(), p, ws); err == nil || !strings.Contains(err.Error(), "repos.none has no url, so its folder must be there, or in the folder where you are") {
		t.Errorf("Checkout = %v", err)
	}
}

package layers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/kastest"
	"slipway/layers/run"
)

// A patch may lie anywhere in the git repository of the folder that it is named from,
// and nowhere else.
func TestPatchesElsewhereAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	url, _, _ := server(t)
	write(t, url, map[string]string{"oe-init-build-env": "export BUILDDIR=\"$1\"\n"})
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "more")
	dir := realPath(t, t.TempDir())
	outside := filepath.Join(dir, "outside")
	project := func(path, keys string) string {
		return "header: {version: 14}\nrepos:\n  top: {path: " + dir + "/project/sub/deep, layers: {.: disabled}}\n  r:\n    url: " + url + "\n    branch: main\n    patches:\n" +
			"      0010: {path: ../../patches/b.patch, repo: top}\n      0002: {path: " + path + ", repo: top}\n" + keys
	}
	write(t, dir, map[string]string{
		"project/kas.yml":         project("../../../project/patches", ""),
		"project/patches/a.patch": changeLine("two", "patched"),
		"project/patches/series":  "a.patch\n",
		"project/patches/b.patch": changeLine("patched", "twice"),
		"project/sub/deep/f":      "",
		"project/.git/HEAD":       "ref: refs/heads/main\n",
		"outside/a.patch":         changeLine("two", "outside"),
	})
	mustRun(t, filepath.Join(dir, "project"), "git", "init", "-q")
	theirs, ws := t.TempDir(), mirrored(t)
	file := filepath.Join(dir, "project/kas.yml")
	if err := run.Run(t.Context(), kas.Command(theirs, "checkout", file)); err != nil {
		t.Fatal(err)
	}
	p, err := Load(t.Context(), file, ws)
	if err != nil {
		t.Fatal(err)
	}
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(moved{r: filepath.Join(theirs, "r")}.files(t), moved{r: filepath.Join(ws.Dir, "r")}.files(t)); diff != "" {
		t.Errorf("files (-kas +ours):\n%s", diff)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "project/link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"../../../outside/a.patch": "leaves its repository " + dir + "/project",
		"../../link/a.patch":       "escapes from parent",
		"../../link":               "escapes from parent",
	} {
		write(t, dir, map[string]string{"project/kas.yml": project(path, "")})
		p, err := Load(t.Context(), file, ws)
		if err == nil {
			err = Checkout(t.Context(), p, ws)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Checkout with a patch of %s = %v; want %q", path, err, want)
		}
	}
	write(t, dir, map[string]string{"project/kas.yml": project("../../patches", "      0003: {path: x, repo: none}\n")})
	p, err = Load(t.Context(), file, ws)
	if err != nil || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], `repos names no repository "none"`) {
		t.Errorf("Load with a patch of no repository = %q, %v; want a warning", p.Warnings, err)
	}
	if err := Checkout(t.Context(), p, ws); err == nil || !strings.Contains(err.Error(), `there is no repository "none"`) {
		t.Errorf("Checkout with a patch of no repository = %v; want it to stop", err)
	}
}

// A layer beside a folder may be a link, which stays in the repository as well.
func TestLayersBesideAFolder(t *testing.T) {
	dir := t.TempDir()
	mustRun(t, dir, "git", "init", "-q")
	write(t, dir, map[string]string{"sub/f": "", "meta/f": ""})
	for name, to := range map[string]string{"out": filepath.Dir(dir), "in": "meta"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for layer, ok := range map[string]bool{"../meta": true, "../in": true, "../none": true, "../out": false, "../../x": false, "../meta/../../x": false} {
		write(t, dir, map[string]string{"p.yml": "header: {version: 14}\nrepos: {here: {path: " + dir + "/sub, layers: {" + layer + ": }}}\n"})
		if _, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{Dir: dir}); (err == nil) != ok {
			t.Errorf("Load with layer %s = %v; want it taken: %v", layer, err, ok)
		}
	}
}

// The same patches leave the same files as kas does, of every kind of change.
func TestPatchesAsKas(t *testing.T) {
	kas, err := kastest.Find(t.Context(), kastest.Testing)
	if err != nil {
		t.Skip(err)
	}
	url, _, _ := server(t)
	write(t, url, map[string]string{"oe-init-build-env": "export BUILDDIR=\"$1\"\n", "gone": "gone\n", "crlf": "one\r\ntwo\r\n", "run": "x\n"})
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "more")
	commit := headOf(t, url)
	work := t.TempDir()
	mustRun(t, work, "git", "clone", "-q", url, ".")
	diff := func(files map[string]string, changes ...string) string {
		write(t, work, files)
		for _, argv := range changes {
			mustRun(t, work, "git", "rm", "-q", argv)
		}
		if err := os.Chmod(filepath.Join(work, "run"), 0o755); err != nil {
			t.Fatal(err)
		}
		mustRun(t, work, "git", "add", "-A")
		out := mustRun(t, work, "git", "diff", "--cached", "--binary", "HEAD") + "\n"
		mustRun(t, work, "git", "commit", "-q", "-m", "next")
		return out
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"one.patch":     "From: somebody\nSubject: [PATCH] one\nDate: Mon, 2 Jan 2023 10:00:00 +0100\n---\n" + diff(map[string]string{"crlf": "one\r\nthree\r\n", "new": "trailing \n\n\n"}, "gone"),
		"more/a.patch":  diff(map[string]string{"binary": "\x00\x01\x02", "conf/layer.conf": "patched"}),
		"more/b.patch":  diff(map[string]string{"conf/layer.conf": "patched twice\n", "deep/er/file": "x"}),
		"more/series":   "# in this order\na.patch\nb.patch # the last\n",
		"kas.yml":       "header: {version: 14}\nrepos:\n  here: {}\n  r:\n    url: " + url + "\n    commit: " + commit + "\n    patches:\n      \"2\": {repo: here, path: more}\n      \"1\": {repo: here, path: one.patch}\n",
		"more/unlisted": "not a patch",
	})
	theirs, ws := t.TempDir(), mirrored(t)
	if err := run.Run(t.Context(), kas.Command(theirs, "checkout", filepath.Join(dir, "kas.yml"))); err != nil {
		t.Fatal(err)
	}
	p, err := Load(t.Context(), filepath.Join(dir, "kas.yml"), ws)
	if err != nil {
		t.Fatal(err)
	}
	if err := Checkout(t.Context(), p, ws); err != nil {
		t.Fatal(err)
	}
	ours := filepath.Join(ws.Dir, "r")
	if diff := cmp.Diff(moved{r: filepath.Join(theirs, "r")}.files(t), moved{r: ours}.files(t)); diff != "" {
		t.Errorf("files (-kas +ours):\n%s", diff)
	}
	if got, want := mustRun(t, ours, "git", "rev-parse", "HEAD^{tree}"), mustRun(t, filepath.Join(theirs, "r"), "git", "rev-parse", "HEAD^{tree}"); got != want {
		t.Errorf("the tree is %s; kas has %s", got, want)
	}
}

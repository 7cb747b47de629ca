package layers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/layers/engine"
	"slipway/layers/kastest"
)

// The same patches leave the same files as kas does, of every kind of change.
func TestPatchesAsKas(t *testing.T) {
	kas, err := kastest.Find(t.Context(), kastest.Testing)
	if err != nil {
		t.Skip(err)
	}
	url, _, _ := server(t)
	write(t, url, map[string]string{"oe-init-build-env": "export BUILDDIR=\"$1\"\n", "gone": "gone\n", "crlf": "one\r\ntwo\r\n", "run": "x\n"})
	run(t, url, "git", "add", "-A")
	run(t, url, "git", "commit", "-q", "-m", "more")
	commit := headOf(t, url)
	work := t.TempDir()
	run(t, work, "git", "clone", "-q", url, ".")
	diff := func(files map[string]string, changes ...string) string {
		write(t, work, files)
		for _, argv := range changes {
			run(t, work, "git", "rm", "-q", argv)
		}
		if err := os.Chmod(filepath.Join(work, "run"), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, work, "git", "add", "-A")
		out := run(t, work, "git", "diff", "--cached", "--binary", "HEAD") + "\n"
		run(t, work, "git", "commit", "-q", "-m", "next")
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
	if err := engine.Run(t.Context(), kas.Command(theirs, "checkout", filepath.Join(dir, "kas.yml"))); err != nil {
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
	if got, want := run(t, ours, "git", "rev-parse", "HEAD^{tree}"), run(t, filepath.Join(theirs, "r"), "git", "rev-parse", "HEAD^{tree}"); got != want {
		t.Errorf("the tree is %s; kas has %s", got, want)
	}
}

package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/localfile"
)

// A test of git.IsReserved has all spellings.
func TestLoadRefusesFoldersOfGit(t *testing.T) {
	for _, name := range []string{".git", "GIT~1", ".git. . ", ".g\u200cit", "a/.git/hooks", `a\.git\hooks`} {
		quoted := fmt.Sprintf("%q", name)
		for what, content := range map[string]string{
			"path":  "r: {url: u, branch: b, path: " + quoted + "}",
			"name":  "r: {url: u, branch: b, name: " + quoted + "}",
			"id":    quoted + ": {url: u, branch: b}",
			"local": "r: {path: " + quoted + "}",
			"layer": "r: {url: u, branch: b, layers: {" + quoted + ": }}",
			"own":   "r: {layers: {" + quoted + ": }}",
			"patch": "r: {url: u, branch: b, patches: {p: {path: " + quoted + ", repo: r}}}",
		} {
			dir := t.TempDir()
			write(t, dir, map[string]string{"p.yml": "header: {version: 14}\nrepos:\n  " + content + "\n"})
			if _, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{Dir: dir}); err == nil {
				t.Errorf("Load of the %s %q = nil; want it refused", what, name)
			}
		}
		for what, sources := range map[string]string{
			"path":  `"r": {"path": ` + quoted + `, "git-remote": {"uri": "u", "rev": "main"}}`,
			"id":    quoted + `: {"git-remote": {"uri": "u", "rev": "main"}}`,
			"layer": `"r": {"git-remote": {"uri": "u", "rev": "main"}}`,
		} {
			layer := map[bool]string{true: fmt.Sprintf("%q", "r/"+name), false: `"r"`}[what == "layer"]
			_, _, err := setupProject(t, map[string]string{"x.conf.json": setupText(sources, `{"name": "c", "description": "d", "bb-layers": [`+layer+`]}`)}, "x.conf.json")
			if err == nil || strings.Contains(err.Error(), "JSON") {
				t.Errorf("Load of a bitbake-setup %s %q = %v; want it refused", what, name, err)
			}
		}
	}
}

// Links of a repository, of the workspace and of the project lead to folders of git's.
func TestCheckoutNotIntoFoldersOfGit(t *testing.T) {
	url, _, _ := server(t)
	for name, lay := range map[string]func(dir string) (path string){
		"a link of the workspace": func(dir string) string {
			return link(t, filepath.Join(dir, "p/.git"), filepath.Join(dir, "w/x")) + "/hooks"
		},
		"the workspace itself": func(dir string) string {
			link(t, filepath.Join(dir, "p/.git"), filepath.Join(dir, "w"))
			return "hooks"
		},
		"a link to what is not there": func(dir string) string {
			return link(t, filepath.Join(dir, "p/.git/new"), filepath.Join(dir, "w/x")) + "/hooks"
		},
		"a bare repository": func(dir string) string {
			mustRun(t, dir, "git", "init", "-q", "--bare", "--template=", "w/bare")
			return "bare/hooks"
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mustRun(t, dir, "git", "init", "-q", "--template=", "p")
			path := lay(dir)
			p := load(t, t.TempDir(), "header: {version: 14}\nrepos: {r: {url: "+url+", branch: main, path: "+path+"}}\n")
			ws := Workspace{Dir: filepath.Join(dir, "w")}
			err := Checkout(t.Context(), p, ws)
			if err == nil || !strings.Contains(err.Error(), "where git runs files; give it another path") {
				t.Errorf("Checkout into %s = %v; want it refused", path, err)
			}
			if placed := filepath.Join(p.Dir(ws, p.Repos[0]), "conf"); localfile.Exists(placed) {
				t.Errorf("%s is there", placed)
			}
		})
	}
}

// A clone whose work trees lie in its bare repository is a place like any other.
func TestCheckoutInAWorkTreeOfABareRepository(t *testing.T) {
	url, _, _ := server(t)
	dir := t.TempDir()
	mustRun(t, dir, "git", "clone", "-q", "--bare", url, "all")
	mustRun(t, filepath.Join(dir, "all"), "git", "worktree", "add", "-q", "main")
	ws := Workspace{Dir: filepath.Join(dir, "all/main/build/layers")}
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", branch: main"), ws); err != nil {
		t.Error(err)
	}
}

func link(t *testing.T, to, at string) (base string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(at)
}

func TestLayersBehindLinks(t *testing.T) {
	url, _, _ := server(t)
	outside := t.TempDir()
	write(t, outside, map[string]string{"conf/layer.conf": ""})
	link(t, outside, filepath.Join(url, "out"))
	link(t, "new-two", filepath.Join(url, "in"))
	link(t, ".git/refs", filepath.Join(url, "own"))
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "links")
	for layer, want := range map[string]bool{"in": true, "new-two": true, "out": false, "out/conf": false, "own": false, "none": true} {
		err := Checkout(t.Context(), loadRepo(t, "url: "+url+", branch: main, layers: {"+layer+": }"), mirrored(t))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "is not a folder of the repository") {
			t.Errorf("Checkout with the layer %s = %v; want no error: %t", layer, err, want)
		}
		write(t, url, map[string]string{"p.yml": "header: {version: 14}\nrepos: {here: {layers: {" + layer + ": }}}\n"})
		if _, err = Load(t.Context(), filepath.Join(url, "p.yml"), Workspace{}); (err == nil) != want {
			t.Errorf("Load with the own layer %s = %v; want no error: %t", layer, err, want)
		}
	}
}

func TestNamesThatMayBeCommits(t *testing.T) {
	const long = "9B44F41" + sha
	for keys, want := range map[string]string{
		"refspec: 9b44f41":                    "may be a commit, a branch or a tag",
		"refspec: 9B44F41":                    "refs/heads/9B44F41",
		"refspec: dead":                       "next: git ls-remote u",
		"refspec: v1.0-3-g9b44f41":            "may be a commit",
		"refspec: " + strings.ToUpper(sha):    "may be a commit",
		"refspec: " + sha[:39]:                "may be a commit",
		"branch: " + sha:                      "is a commit's id, not a branch or tag; write it as commit:",
		"tag: " + sha:                         "is a commit's id",
		"branch: " + strings.ToUpper(sha):     "is a commit's id",
		"tag: tags/" + sha:                    "is a commit's id",
		"branch: " + strings.Repeat("a", 64):  "is a commit's id",
		"commit: " + sha + ", branch: " + sha: "is a commit's id",
		"refspec: refs/heads/9b44f41":         "",
		"refspec: refs/tags/9b44f41":          "",
		"refspec: refs/heads/" + sha:          "",
		"branch: refs/heads/" + sha:           "",
		"branch: refs/tags/" + sha:            "",
		"tag: refs/tags/" + sha:               "",
		"branch: 9b44f41":                     "",
		"tag: 9b44f41":                        "",
		"refspec: " + sha:                     "",
		"refspec: bad":                        "",
		"refspec: upgrade-gcc":                "",
		"refspec: scarthgap":                  "",
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"p.yml": repoFile("url: u, " + keys)})
		_, err := Load(t.Context(), filepath.Join(dir, "p.yml"), Workspace{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Load of %s = %v; want %q", keys, err, want)
		}
	}
	for rev, want := range map[string]bool{"9b44f41": false, long: false, strings.ToUpper(sha): false, "v1-1-g9b44f41": false, "refs/tags/9b44f41": true, sha: true, "abba": true} {
		_, _, err := setupProject(t, map[string]string{"x.conf.json": setupText(`"r": {"git-remote": {"uri": "u", "branch": "abba", "rev": "`+rev+`"}}`, `{"name": "c", "description": "d", "bb-layers": ["r"]}`)}, "x.conf.json")
		if (err == nil) != want {
			t.Errorf("Load of bitbake-setup's rev %s = %v; want no error: %t", rev, err, want)
		}
	}
}

// What a checkout brings cannot make git run something in it: the repository holds hooks,
// attributes with filters, a repository without a work tree and names of git's files.
func TestNothingRunsInACheckout(t *testing.T) {
	url, _, _ := server(t)
	ran := filepath.Join(t.TempDir(), "ran")
	config := fmt.Sprintf("[core]\n\tbare = false\n\tworktree = ..\n\tfsmonitor = \"touch %s\"\n\thooksPath = hooks\n[filter \"x\"]\n\tsmudge = touch %[1]s\n\tclean = touch %[1]s\n[diff \"x\"]\n\tcommand = touch %[1]s\n", ran)
	script := "#!/bin/sh\ntouch " + ran + "\n"
	write(t, url, map[string]string{
		".gitattributes": "* filter=x diff=x merge=x\n", ".gitmodules": "[submodule \"s\"]\n\tpath = s\n\turl = ext::touch " + ran + "\n\tupdate = !touch " + ran + "\n",
		".gitconfig": config, "config": config, "bare/HEAD": "ref: refs/heads/main\n", "bare/config": config, "bare/objects/x": "", "bare/refs/x": "",
		"hooks/pre-commit": script, "hooks/post-checkout": script, "bare/hooks/pre-commit": script, ".githooks/pre-commit": script,
	})
	for _, hook := range []string{"hooks/pre-commit", "hooks/post-checkout", ".githooks/pre-commit"} {
		if err := os.Chmod(filepath.Join(url, hook), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mustRun(t, url, "git", "add", "-A")
	mustRun(t, url, "git", "commit", "-q", "-m", "hostile")
	ws := mirrored(t)
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", branch: main"), ws); err != nil {
		t.Fatal(err)
	}
	r := filepath.Join(ws.Dir, "r")
	write(t, r, map[string]string{"new": "x", "conf/layer.conf": "edited"})
	for _, line := range []string{"status", "diff", "add -A", "commit -q -m x", "checkout -q HEAD~1", "stash list", "log -1 -p", "gc -q"} {
		mustRun(t, r, append([]string{"git"}, strings.Fields(line)...)...)
	}
	if _, err := Status(t.Context(), loadRepo(t, "url: "+url+", branch: main"), ws); err != nil || localfile.Exists(ran) {
		t.Errorf("after git's commands %s exists: %t, status %v; want nothing run", ran, localfile.Exists(ran), err)
	}
}

func TestSeriesOfGitsOwnFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"p/series": "../.git/description\n", ".git/description": "x"})
	if _, err := readPatch(dir, ".", Patch{Path: "p"}); err == nil || !strings.Contains(err.Error(), "a file of git's own") {
		t.Errorf("readPatch = %v; want the series refused", err)
	}
}

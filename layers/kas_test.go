package layers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"slipway/layers/kastest"
	"slipway/layers/run"
)

// scene is a project of testdata/kas with its repositories. In an archive, the
// folder project holds the project and each other folder a repository, whose
// address, commit and tag object the files name as {{oe}}, {{oe.commit}} and {{oe.tag}}. Words in the
// first lines say what is to be compared.
type scene struct {
	name       string
	archive    []txtar.File
	dir, files string
	old        bool // Debian 12's kas reads it too
	dump       bool
	git        bool
}

func readComment(t *testing.T, name string) scene {
	t.Helper()
	archive, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	s := scene{name: strings.TrimSuffix(filepath.Base(name), ".txtar"), archive: archive.Files, files: "project/kas.yml", dump: true, git: true}
	for line := range strings.Lines(string(archive.Comment)) {
		line = strings.TrimSpace(line)
		s.old = s.old || line == "old"
		s.dump = s.dump && !strings.HasPrefix(line, "no dump:")
		s.git = s.git && line != "no git"
		if files, ok := strings.CutPrefix(line, "files: "); ok {
			s.files = files
		}
	}
	return s
}

// set makes the scene's files in a folder of its own.
func (s scene) set(t *testing.T) scene {
	t.Helper()
	s.dir = realPath(t, t.TempDir())
	s.makeRepos(t, s.archive)
	var all []string
	for file := range strings.SplitSeq(s.files, ":") {
		all = append(all, filepath.Join(s.dir, file))
	}
	s.files = strings.Join(all, ":")
	return s
}

func realPath(t *testing.T, dir string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// makeRepos makes the repositories from the last name to the first, so that the
// files of each may name the commits of those after it.
func (s scene) makeRepos(t *testing.T, files []txtar.File) {
	t.Helper()
	byRepo := map[string]map[string]string{}
	words := []string{}
	for _, f := range files {
		repo, path, _ := strings.Cut(f.Name, "/")
		if byRepo[repo] == nil {
			byRepo[repo] = map[string]string{}
			words = append(words, "{{"+repo+"}}", filepath.Join(s.dir, repo))
		}
		byRepo[repo][path] = string(f.Data)
	}
	repos := slices.DeleteFunc(slices.Sorted(maps.Keys(byRepo)), func(r string) bool { return r == "project" })
	slices.Reverse(repos)
	for _, repo := range append(repos, "project") {
		dir := filepath.Join(s.dir, repo)
		for path, content := range byRepo[repo] {
			byRepo[repo][path] = strings.NewReplacer(words...).Replace(content)
		}
		write(t, dir, byRepo[repo])
		if repo == "project" && !s.git {
			continue
		}
		words = append(words, "{{"+repo+".commit}}", commitAll(t, dir, repo, byRepo[repo]), "{{"+repo+".tag}}", readRef(t, dir, "refs/tags/signed"))
	}
}

// commitAll makes dir a repository with one commit, which is all of its branches
// and tags. It starts git once, since that takes long on a busy machine.
func commitAll(t *testing.T, dir, message string, files map[string]string) string {
	t.Helper()
	write(t, dir, map[string]string{".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n\trepositoryFormatVersion = 0\n", ".git/objects/info/f": "", ".git/refs/f": ""})
	var in strings.Builder
	fmt.Fprintf(&in, "commit refs/heads/main\ncommitter t <t@localhost> 0 +0000\ndata %d\n%s\n", len(message), message)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", path, len(files[path]), files[path])
	}
	in.WriteString("reset refs/tags/v1\nfrom refs/heads/main\n\nreset refs/heads/next\nfrom refs/heads/main\n\ntag signed\nfrom refs/heads/main\ntagger t <t@localhost> 0 +0000\ndata 0\n\n")
	err := run.Run(t.Context(), run.Command{Argv: []string{"git", "fast-import", "--quiet"}, Dir: dir, Stdin: strings.NewReader(in.String())})
	if err != nil {
		t.Fatal(err)
	}
	return readRef(t, dir, "refs/heads/main")
}

func readRef(t *testing.T, dir, ref string) string {
	t.Helper()
	id, err := os.ReadFile(filepath.Join(dir, ".git", ref))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(id))
}

// result is what a program makes of a project.
type result struct {
	Local, BBLayers, Dump, JSON string
}

// What of kas's work these comparisons leave out: fetching what no file is
// included from, and OpenEmbedded's script, which writes files of its own first.
var quick = []string{"--skip", "finish_setup_repos", "--skip", "repos_checkout", "--skip", "repos_apply_patches", "--skip", "setup_environ"}

// errand is a project and a folder to check it out in.
type errand struct{ dir, files string }

// kasResults are what kas makes of projects, or why it refuses them.
func kasResults(t *testing.T, kas kastest.Kas, places []errand) ([]result, []error) {
	t.Helper()
	commands := [][]string{append([]string{"checkout"}, quick...)}
	if !strings.HasPrefix(kas.Version, "3.") { // which cannot dump
		commands = append(commands, append([]string{"dump"}, quick[:4]...), append([]string{"dump", "--format", "json"}, quick[:4]...))
	}
	var runs []kasRun
	for _, p := range places {
		if err := os.MkdirAll(p.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, args := range commands {
			runs = append(runs, kasRun{Dir: p.dir, Args: append(slices.Clip(args), p.files)})
		}
	}
	done := runKas(t, kas, runs)
	results, errs := make([]result, len(places)), make([]error, len(places))
	for i, p := range places {
		of := done[i*len(commands):][:len(commands)]
		for _, run := range of {
			if errs[i] == nil {
				errs[i] = run.err
			}
		}
		if errs[i] != nil {
			continue
		}
		build := filepath.Join(p.dir, "build")
		results[i] = result{Local: sortedConfigs(conf(t, build, "local.conf")), BBLayers: conf(t, build, "bblayers.conf")}
		if len(of) == 3 {
			results[i].Dump, results[i].JSON = of[1].out, of[2].out
		}
	}
	return results, errs
}

func ourResult(t *testing.T, dir, files string) (result, error) {
	t.Helper()
	ws, build := Workspace{Dir: dir}, filepath.Join(dir, "build")
	p, err := Load(t.Context(), files, ws)
	if err != nil {
		return result{}, err
	}
	if err := Configure(p, ws, build); err != nil {
		t.Fatal(err)
	}
	flat, err := Dump(p)
	if err != nil {
		t.Fatal(err)
	}
	json, err := DumpJSON(p)
	return result{Local: sortedConfigs(conf(t, build, "local.conf")), BBLayers: conf(t, build, "bblayers.conf"), Dump: string(flat), JSON: string(json)}, err
}

// compare has kas and slipway read those projects that both must read.
func compare(t *testing.T, kas kastest.Kas, scenes map[string]scene, check func(t *testing.T, s scene, theirs, ours result)) {
	t.Helper()
	var places []errand
	names := slices.Sorted(maps.Keys(scenes))
	for _, name := range names {
		places = append(places, errand{filepath.Join(scenes[name].dir, "theirs"), scenes[name].files})
	}
	theirs, errs := kasResults(t, kas, places)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			ours, err := ourResult(t, filepath.Join(scenes[name].dir, "ours"), scenes[name].files)
			if err != nil || errs[i] != nil {
				t.Fatalf("Load = %v, kas: %v; want both to read it", err, errs[i])
			}
			check(t, scenes[name], theirs[i], ours)
		})
	}
}

// sortedConfigs sorts the names in BBMULTICONFIG, which kas writes in another
// order from run to run.
func sortedConfigs(conf string) string {
	before, rest, found := strings.Cut(conf, "BBMULTICONFIG ?= \"")
	names, after, _ := strings.Cut(rest, "\"")
	if !found {
		return conf
	}
	return before + "BBMULTICONFIG ?= \"" + strings.Join(slices.Sorted(slices.Values(strings.Fields(names))), " ") + "\"" + after
}

func mustFind(t *testing.T, from kastest.Suite) kastest.Kas {
	t.Helper()
	kas, err := kastest.Find(t.Context(), from)
	if errors.Is(err, kastest.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return kas
}

// Both conf files and the dumps are byte for byte those of kas 5.
func TestAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	compare(t, kas, scenes(t, func(scene) bool { return true }), func(t *testing.T, s scene, theirs, ours result) {
		if !s.dump {
			theirs.Dump, ours.Dump = "", ""
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("(-kas %s +ours)\n%s", kas.Version, diff)
		}
	})
}

// Debian 12's kas has no dump, and writes absolute paths of layers, in their
// order: there, the set of layers is compared.
func TestAsOldKas(t *testing.T) {
	kas := mustFind(t, kastest.Installed)
	compare(t, kas, scenes(t, func(s scene) bool { return s.old }), func(t *testing.T, s scene, theirs, ours result) {
		if diff := cmp.Diff(theirs.Local, strings.Replace(ours.Local, `"nodistro"`, `"poky"`, 1)); diff != "" {
			t.Errorf("local.conf: (-kas %s +ours)\n%s", kas.Version, diff)
		}
		if diff := cmp.Diff(layersIn(theirs.BBLayers, s.dir), layersIn(ours.BBLayers, s.dir)); diff != "" {
			t.Errorf("layers: (-kas %s +ours)\n%s", kas.Version, diff)
		}
	})
}

// Lock files are byte for byte those of kas, also where there are some already. Without
// --update, pins stay.
func TestLockAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	for mode, update := range map[string][]string{"kept": nil, "updated": {AllPins}} {
		t.Run(mode, func(t *testing.T) { lockAsKas(t, kas, update) })
	}
}

func lockAsKas(t *testing.T, kas kastest.Kas, update []string) {
	names := []string{"defaults", "tagged", "elsewhere", "json", "outside"}
	if update != nil {
		names = append(names, "relock") // pins commits that are nowhere, where kas stops
	}
	all := scenes(t, func(s scene) bool { return slices.Contains(names, s.name) })
	var runs []kasRun
	for _, name := range names {
		s := all[name]
		copied, theirs := filepath.Join(s.dir, "copied"), filepath.Join(s.dir, "theirs")
		if err := os.CopyFS(filepath.Join(copied, "project"), os.DirFS(filepath.Join(s.dir, "project"))); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(theirs, 0o755); err != nil {
			t.Fatal(err)
		}
		args := []string{"lock"}
		if update != nil {
			args = append(args, "--update")
		}
		runs = append(runs, kasRun{Dir: theirs, Args: append(args, strings.ReplaceAll(s.files, s.dir, copied))})
	}
	done := runKas(t, kas, runs)
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			s := all[name]
			ws := Workspace{Dir: filepath.Join(s.dir, "ours")}
			p, err := Load(t.Context(), s.files, ws)
			if err != nil || done[i].err != nil {
				t.Fatalf("Load = %v, kas lock: %v; want both to read it", err, done[i].err)
			}
			if err := Lock(t.Context(), p, ws, update); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(lockFiles(t, filepath.Join(s.dir, "copied/project")), lockFiles(t, filepath.Join(s.dir, "project"))); diff != "" {
				t.Errorf("lock files (-kas %s +ours):\n%s", kas.Version, diff)
			}
		})
	}
}

func lockFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for path, content := range (moved{r: dir}).files(t) {
		if strings.Contains(path, ".lock.") {
			all[path] = content
		}
	}
	return all
}

// scenes are those of testdata/kas that are wanted, by name.
func scenes(t *testing.T, wanted func(scene) bool) map[string]scene {
	t.Helper()
	names, err := filepath.Glob("testdata/kas/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("testdata/kas holds %q, %v; want projects", names, err)
	}
	all := map[string]scene{}
	for _, name := range names {
		if s := readComment(t, name); wanted(s) {
			all[s.name] = s.set(t)
		}
	}
	return all
}

// layersIn are the layers of a bblayers.conf, as paths in the work folder.
func layersIn(conf, dir string) []string {
	_, list, _ := strings.Cut(conf, "BBLAYERS ?= \"")
	list, _, _ = strings.Cut(list, "\"")
	var all []string
	for _, layer := range strings.Fields(strings.ReplaceAll(list, "\\\n", " ")) {
		layer = strings.Replace(layer, "${TOPDIR}", filepath.Join(dir, "theirs/build"), 1)
		all = append(all, strings.TrimPrefix(filepath.Clean(layer), dir))
	}
	return slices.Sorted(slices.Values(all))
}

// Project files of other people are compared too, where somebody has some.
func TestUsersFilesAsKas(t *testing.T) {
	folders := os.Getenv("SLIPWAY_KAS_FILES")
	if folders == "" {
		t.Skip("set SLIPWAY_KAS_FILES=folder[:folder] to clones with kas project files, and GITCONFIG_FILE to a git configuration that reaches their repositories")
	}
	kas := mustFind(t, kastest.Testing)
	dir := realPath(t, t.TempDir())
	var places []errand
	for folder := range strings.SplitSeq(folders, ":") {
		err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == ".git" {
				return filepath.SkipDir
			}
			if err == nil && slices.Contains([]string{".yml", ".yaml"}, filepath.Ext(path)) && isProject(path) {
				places = append(places, errand{filepath.Join(dir, strconv.Itoa(len(places)), "theirs"), path})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	results, errs := kasResults(t, kas, places)
	for i, p := range places {
		t.Run(p.files, func(t *testing.T) { compareUsersFile(t, p, results[i], errs[i]) })
	}
}

func isProject(path string) bool {
	data, err := os.ReadFile(path)
	var v struct{ Header struct{ Version any } }
	return err == nil && yaml.Unmarshal(data, &v) == nil && v.Header.Version != nil && !strings.Contains(path, ".lock.")
}

// Where slipway refuses what kas takes, or takes until a step that is left out here.
var onPurpose = []string{
	"checks no signatures", "installs no build tools", "git repositories only", "not a whole commit id",
	"names no repository", "both a tag and a branch",
}

// compareUsersFile also wants both to refuse the same files.
func compareUsersFile(t *testing.T, p errand, theirs result, theirErr error) {
	ours, ourErr := ourResult(t, filepath.Join(filepath.Dir(p.dir), "ours"), p.files)
	for _, word := range onPurpose {
		if ourErr != nil && strings.Contains(ourErr.Error(), word) {
			t.Skipf("refused on purpose: %v", ourErr)
		}
	}
	if (theirErr == nil) != (ourErr == nil) {
		t.Fatalf("Load = %v\nkas: %v", ourErr, theirErr)
	}
	if ourErr != nil {
		t.Skipf("both refuse it: %v", ourErr)
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(-kas +ours)\n%s", diff)
	}
}

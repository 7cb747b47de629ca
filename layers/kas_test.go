package layers

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v4"

	"slipway/layers/engine"
	"slipway/layers/kastest"
)

// scene is a project of testdata/kas with its repositories. In an archive, the
// folder project holds the project and each other folder a repository, whose
// address and commit the files name as {{oe}} and {{oe.commit}}. Words in the
// first lines say what is to be compared.
type scene struct {
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
	s := scene{archive: archive.Files, files: "project/kas.yml", dump: true, git: true}
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

func setScene(t *testing.T, name string) scene {
	t.Helper()
	s := readComment(t, name)
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
		run(t, dir, "git", "init", "-q", "-b", "main")
		run(t, dir, "git", "add", "-A")
		run(t, dir, "git", "commit", "-q", "--allow-empty", "-m", repo)
		run(t, dir, "git", "tag", "v1")
		run(t, dir, "git", "branch", "next")
		words = append(words, "{{"+repo+".commit}}", headOf(t, dir))
	}
}

// result is what a program makes of a project.
type result struct {
	Local, BBLayers, Dump string
}

// What of kas's work these comparisons leave out: fetching what no file is
// included from, and OpenEmbedded's script, which writes files of its own first.
var quick = []string{"--skip", "finish_setup_repos", "--skip", "repos_checkout", "--skip", "repos_apply_patches", "--skip", "setup_environ"}

func kasResult(t *testing.T, kas kastest.Kas, dir, files string) (result, error) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Output(t.Context(), kas.Command(dir, slices.Concat([]string{"checkout"}, quick, []string{files})...)); err != nil {
		return result{}, err
	}
	r := result{
		Local:    sortedConfigs(conf(t, filepath.Join(dir, "build"), "local.conf")),
		BBLayers: conf(t, filepath.Join(dir, "build"), "bblayers.conf"),
	}
	if strings.HasPrefix(kas.Version, "3.") { // which cannot dump
		return r, nil
	}
	dump, err := engine.Output(t.Context(), kas.Command(dir, slices.Concat([]string{"dump"}, quick[:4], []string{files})...))
	r.Dump = string(dump)
	return r, err
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
	return result{Local: sortedConfigs(conf(t, build, "local.conf")), BBLayers: conf(t, build, "bblayers.conf"), Dump: string(flat)}, err
}

// both are what kas and slipway make of a project that both must read.
func both(t *testing.T, kas kastest.Kas, s scene) (theirs, ours result) {
	t.Helper()
	theirs, err := kasResult(t, kas, filepath.Join(s.dir, "theirs"), s.files)
	if err != nil {
		t.Fatal(err)
	}
	ours, err = ourResult(t, filepath.Join(s.dir, "ours"), s.files)
	if err != nil {
		t.Fatal(err)
	}
	return theirs, ours
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

func mustFind(t *testing.T, find func(context.Context) (kastest.Kas, error)) kastest.Kas {
	t.Helper()
	kas, err := find(t.Context())
	if errors.Is(err, kastest.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return kas
}

// Both conf files and the dump are byte for byte those of kas 5.
func TestAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	for _, name := range scenes(t) {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := setScene(t, name)
			theirs, ours := both(t, kas, s)
			if !s.dump {
				theirs.Dump, ours.Dump = "", ""
			}
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("(-kas %s +ours)\n%s", kas.Version, diff)
			}
		})
	}
}

func TestDumpJSONAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	s := setScene(t, "testdata/kas/scalars.txtar")
	want, err := engine.Output(t.Context(), kas.Command(s.dir, slices.Concat([]string{"dump", "--format", "json"}, quick[:4], []string{s.files})...))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Load(t.Context(), s.files, Workspace{Dir: s.dir})
	if err != nil {
		t.Fatal(err)
	}
	got, err := DumpJSON(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-kas %s +ours)\n%s", kas.Version, diff)
	}
}

// Debian 12's kas has no dump, and writes absolute paths of layers, in their
// order: there, the set of layers is compared.
func TestAsOldKas(t *testing.T) {
	kas := mustFind(t, kastest.Installed)
	for _, name := range scenes(t) {
		if !readComment(t, name).old {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := setScene(t, name)
			theirs, ours := both(t, kas, s)
			if diff := cmp.Diff(theirs.Local, strings.Replace(ours.Local, `"nodistro"`, `"poky"`, 1)); diff != "" {
				t.Errorf("local.conf: (-kas %s +ours)\n%s", kas.Version, diff)
			}
			if diff := cmp.Diff(layersIn(theirs.BBLayers, s.dir), layersIn(ours.BBLayers, s.dir)); diff != "" {
				t.Errorf("layers: (-kas %s +ours)\n%s", kas.Version, diff)
			}
		})
	}
}

// Lock files are byte for byte those of kas, also where there are some already.
func TestLockAsKas(t *testing.T) {
	kas := mustFind(t, kastest.Testing)
	for _, name := range []string{"defaults", "relock", "elsewhere", "json", "outside"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setScene(t, "testdata/kas/"+name+".txtar")
			copied := filepath.Join(s.dir, "copied")
			if err := os.CopyFS(filepath.Join(copied, "project"), os.DirFS(filepath.Join(s.dir, "project"))); err != nil {
				t.Fatal(err)
			}
			theirs := filepath.Join(s.dir, "theirs")
			if err := os.Mkdir(theirs, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := engine.Run(t.Context(), kas.Command(theirs, "lock", "--update", strings.ReplaceAll(s.files, s.dir, copied))); err != nil {
				t.Fatal(err)
			}
			ws := Workspace{Dir: filepath.Join(s.dir, "ours")}
			p, err := Load(t.Context(), s.files, ws)
			if err != nil {
				t.Fatal(err)
			}
			if err := Lock(t.Context(), p, ws); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(lockFiles(t, filepath.Join(copied, "project")), lockFiles(t, filepath.Join(s.dir, "project"))); diff != "" {
				t.Errorf("lock files (-kas +ours):\n%s", diff)
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

func scenes(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/kas/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("testdata/kas holds %q, %v; want projects", names, err)
	}
	return names
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
	for folder := range strings.SplitSeq(folders, ":") {
		err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Name() == ".git" {
				return filepath.SkipDir
			}
			if err == nil && slices.Contains([]string{".yml", ".yaml"}, filepath.Ext(path)) && isProject(path) {
				t.Run(path, func(t *testing.T) { compareUsersFile(t, kas, path) })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
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
func compareUsersFile(t *testing.T, kas kastest.Kas, path string) {
	dir := realPath(t, t.TempDir())
	theirs, theirErr := kasResult(t, kas, filepath.Join(dir, "theirs"), path)
	ours, ourErr := ourResult(t, filepath.Join(dir, "ours"), path)
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
		t.Errorf("(-kas %s +ours)\n%s", kas.Version, diff)
	}
}

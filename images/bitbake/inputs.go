package bitbake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// InputsName is the file of Inputs in a board's folder.
const InputsName = "inputs.json"

const (
	maxInputsBytes = 64 << 20
	maxCacheBytes  = 256 << 20 // the cache of 2,600 recipes has 42 MB
)

// Inputs are the files of the project's own repository that a build read. Paths are relative to the
// repository's root.
//
// The event log names the recipe of each task that the targets need, also of tasks that shared
// state replaced. bitbake's cache of recipes names the files of each recipe: the recipe, what it
// includes and inherits, its appends, and the files of its tasks. A siginfo file names the last
// without their folder, and only for a task that ran.
type Inputs struct {
	Commit  string            `json:"commit"`            // of the repository
	Edited  bool              `json:"edited,omitempty"`  // it had changes that are no commit's
	Read    map[string]string `json:"read"`              // to the recipe that read the file
	Folders map[string]string `json:"folders,omitempty"` // of which a recipe reads all files
	Missing map[string]string `json:"missing,omitempty"` // a recipe looked for the file: if it appears, it is read
	Unread  []string          `json:"unread,omitempty"`  // files of other recipes only
}

// SaveInputs writes the files that a successful build read to inputs.json in dir, the board's
// folder. root is the project's repository, and of its commit. If it cannot find out which files
// these are, it removes inputs.json and returns an error.
func SaveInputs(r Record, dir, root string, of Commit) error {
	path := filepath.Join(dir, InputsName)
	in, err := r.readInputs(dir, root)
	if err != nil {
		return errors.Join(fmt.Errorf("what the build read is unknown: %w", err), localfile.Remove(path))
	}
	in.Commit, in.Edited = of.Commit, of.Edited
	return localfile.WriteJSON(path, in, 0o644)
}

// OpenInputs reads the inputs.json of the last build from a board's folder.
func OpenInputs(dir string) (Inputs, error) {
	path := filepath.Join(dir, InputsName)
	text, err := localfile.Read(path, maxInputsBytes)
	if err != nil {
		return Inputs{}, err
	}
	var in Inputs
	if err := json.Unmarshal(text, &in); err != nil {
		return Inputs{}, fmt.Errorf("%s: %w", path, err)
	}
	return in, nil
}

// readInputs returns the files of the repository root that the build read, from the recipes in its
// event log and bitbake's caches of recipes. dir is the board's folder. It returns an error if the
// build failed or the log is incomplete.
func (r Record) readInputs(dir, root string) (Inputs, error) {
	if r.State != Succeeded {
		return Inputs{}, fmt.Errorf("the last build %s", r.State)
	}
	if len(r.Queued) == 0 || int64(len(r.Queued)) != r.Counts.Total {
		return Inputs{}, fmt.Errorf("the event log names %d of %d tasks", len(r.Queued), r.Counts.Total)
	}
	used := map[string]bool{}
	for _, recipe := range r.Queued {
		used[recipe] = true
	}
	in := newInputReader(root, dir, used)
	if err := in.readCaches(filepath.Join(r.Variables["TMPDIR"], "cache")); err != nil {
		return Inputs{}, err
	}
	return in.inputs(), nil
}

// noteQueued records a queued task's recipe file. bitbake sends one event each: skipped or started.
func (r *Record) noteQueued(e event) {
	file, _ := e.state["taskfile"].(string)
	id, _ := e.state["taskid"].(string)
	if file == "" || len(r.Queued) >= maxTasks {
		return
	}
	if r.Queued == nil {
		r.Queued = map[string]string{}
	}
	r.Queued[cmp.Or(id, file+":"+e.textField("taskname"))] = recipePath(file)
}

// recipePath cuts mc:CONFIG: and virtual:CLASS: off bitbake's name of a recipe's file.
func recipePath(name string) string {
	if at := strings.Index(name, ":/"); at >= 0 {
		name = name[at+1:]
	}
	return filepath.Clean(name)
}

// readCaches reads bitbake's caches of recipes in dir, one for each multiconfig, and returns an
// error if a used recipe is in none. It reads only links, which lead to the caches of the last run.
func (r *inputReader) readCaches(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "bb_cache.dat*"))
	if err != nil {
		return err
	}
	for _, link := range files {
		if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		data, err := localfile.Read(link, maxCacheBytes)
		if err != nil {
			return err
		}
		if err := r.readCache(bytes.NewReader(data)); err != nil {
			return fmt.Errorf("%s: %w", link, err)
		}
	}
	for recipe := range r.used {
		if !r.known[recipe] {
			return fmt.Errorf("%s has no recipe %s, which the build needs", dir, recipe)
		}
	}
	return nil
}

// inputReader sorts the files that recipes name into those of used recipes and those of others.
type inputReader struct {
	root   string // of the repository
	board  string // the folder with its checkouts, which may be in the repository
	used   map[string]bool
	known  map[string]bool // recipes in the caches
	result Inputs
	others map[string]bool
	real   map[string]string // paths without links
}

// newInputReader returns a reader that records files of the repository root, but not those in the
// board's folder. used has the paths of the recipes that the build used.
func newInputReader(root, board string, used map[string]bool) *inputReader {
	r := &inputReader{
		used: used, known: map[string]bool{}, others: map[string]bool{}, real: map[string]string{},
		result: Inputs{Read: map[string]string{}, Folders: map[string]string{}, Missing: map[string]string{}},
	}
	r.root, r.board = r.withoutLinks(filepath.Clean(root)), r.withoutLinks(filepath.Clean(board))
	return r
}

// inputs returns the collected files. A file counts as unread only if no used recipe read it.
func (r *inputReader) inputs() Inputs {
	for file := range r.others {
		if r.result.Read[file] != "" {
			delete(r.others, file)
		}
	}
	r.result.Unread = slices.Sorted(maps.Keys(r.others))
	return r.result
}

// maxCacheTime is how long Python may take to read one cache. A large cache takes seconds.
var maxCacheTime = 2 * time.Minute

// readCache adds the files of each recipe in a cache, which Python decodes and which must be whole.
func (r *inputReader) readCache(data io.Reader) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), maxCacheTime, fmt.Errorf("reading it takes more than %s", maxCacheTime))
	defer cancel()
	c := unpickleCommand("cache")
	c.Stdin = data
	out, err := run.Output(ctx, c)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed, is := errors.AsType[*run.Failure](err); is && failed.Tail != "" {
		return errors.New(failed.Tail)
	}
	if err != nil {
		return err
	}
	for recipes := json.NewDecoder(bytes.NewReader(out)); ; {
		var one cachedRecipe
		if err := recipes.Decode(&one); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := r.addRecipe(one); err != nil {
			return fmt.Errorf("%s: %w", one.Recipe, err)
		}
	}
}

// cachedRecipe is the entry of one recipe in bitbake's cache. A skipped recipe has no checksums.
type cachedRecipe struct {
	Recipe    string
	Depends   [][]any           // each a file, and its time of change or 0 if it is not there
	Checksums map[string]string // lists of files by their task
}

// addRecipe adds the recipe itself, the files that its parsing read and the files of its tasks.
func (r *inputReader) addRecipe(c cachedRecipe) error {
	recipe := recipePath(c.Recipe)
	r.known[recipe] = true
	r.addFile(recipe, recipe, true)
	for _, pair := range c.Depends {
		if len(pair) != 2 {
			return errors.New("file_depends: an entry that is no pair")
		}
		path, isText := pair[0].(string)
		if !isText {
			return errors.New("file_depends: a file's name that is no text")
		}
		r.addFile(recipe, path, toInt64(pair[1]) != 0)
	}
	for _, list := range c.Checksums {
		for _, entry := range splitChecksums(list) {
			path, there := strings.CutSuffix(entry, ":True")
			if !there {
				path = strings.TrimSuffix(entry, ":False")
			}
			r.addFile(recipe, path, there)
		}
	}
	return nil
}

// splitChecksums splits a list "a:True b:False" into "a:True" and "b:False". Paths may have blanks.
func splitChecksums(text string) (entries []string) {
	var entry strings.Builder
	for _, word := range strings.SplitAfter(text, " ") {
		entry.WriteString(word)
		if whole := strings.TrimSpace(entry.String()); strings.HasSuffix(whole, ":True") || strings.HasSuffix(whole, ":False") {
			entries = append(entries, whole)
			entry.Reset()
		}
	}
	if rest := strings.TrimSpace(entry.String()); rest != "" {
		entries = append(entries, rest)
	}
	return entries
}

// addFile adds a file of a recipe under each of its paths in the project's repository: as given,
// with the links of its folder resolved, and with all links resolved. It leaves out the board's own
// folder, which holds checkouts. there is false for a file that the recipe did not find.
func (r *inputReader) addFile(recipe, path string, there bool) {
	path = filepath.Clean(path)
	for _, end := range []string{path, filepath.Join(r.withoutLinks(filepath.Dir(path)), filepath.Base(path)), r.withoutLinks(path)} {
		rel, err := filepath.Rel(r.root, end)
		if made, unmade := filepath.Rel(r.board, end); unmade == nil && filepath.IsLocal(made) {
			continue
		}
		if err == nil && filepath.IsLocal(rel) {
			r.addName(recipe, path, rel, there)
		}
	}
}

// withoutLinks resolves a path's symbolic links, and caches the result. A missing path stays.
func (r *inputReader) withoutLinks(path string) string {
	if real, known := r.real[path]; known {
		return real
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	r.real[path] = real
	return real
}

// addName adds rel, a repository path of the file path, to the result, as missing unless there is
// true. If the recipe is not used, it adds an existing file to others. A pattern or a folder counts
// as a folder of which the recipe reads all files.
func (r *inputReader) addName(recipe, path, rel string, there bool) {
	name, used := filepath.Base(recipe), r.used[recipe]
	info, err := os.Stat(path)
	switch {
	case strings.Contains(rel, "*") || err == nil && info.IsDir():
		if before, _, pattern := strings.Cut(rel, "*"); pattern { // it reads whatever is beside it
			rel = filepath.Dir(before + "x")
		}
		if used {
			r.result.Folders[rel] = name
		}
	case used && there:
		r.result.Read[rel] = name
	case used:
		r.result.Missing[rel] = name
	case there:
		r.others[rel] = true
	}
}

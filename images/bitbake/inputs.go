package bitbake

import (
	"bufio"
	"bytes"
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

	"github.com/google/renameio/v2"

	"slipway/images/bitbake/pickle"
	"slipway/layers/localfile"
)

// InputsName is the file of Inputs in a board's folder.
const InputsName = "inputs.json"

const maxInputsBytes = 64 << 20

// Inputs are the files of the project's own repository that a build read. Paths are
// relative to its root.
//
// The event log names the recipe of each task that the targets need, also of those that
// shared state stood in for. bitbake's cache of recipes names the files of each recipe:
// the recipe, what it includes and inherits, its appends, and the files of its tasks. A
// siginfo file has the last without their folder, and only where a task ran.
type Inputs struct {
	Commit  string            `json:"commit"`            // of the repository
	Edited  bool              `json:"edited,omitempty"`  // it had changes that are no commit's
	Read    map[string]string `json:"read"`              // to the recipe that read the file
	Folders map[string]string `json:"folders,omitempty"` // of which a recipe reads all files
	Missing map[string]string `json:"missing,omitempty"` // a recipe looked for the file: if it appears, it is read
	Unread  []string          `json:"unread,omitempty"`  // files of other recipes alone
}

// SaveInputs writes what the last build read into the board's folder. An error leaves no
// file: what the build read is unknown then.
func SaveInputs(dir, root string, of Commit) error {
	path := filepath.Join(dir, InputsName)
	in, err := readInputs(dir, root)
	if err != nil {
		return errors.Join(fmt.Errorf("what the build read is unknown: %w", err), removeFiles(path))
	}
	in.Commit, in.Edited = of.Commit, of.Edited
	text, err := json.MarshalIndent(in, "", " ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(text, '\n'), 0o644)
}

// OpenInputs reads what the last build of a board's folder read.
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

// readInputs reads bitbake's own data of the last build.
func readInputs(dir, root string) (Inputs, error) {
	record, err := Open(dir)
	if err != nil {
		return Inputs{}, err
	}
	if record.State != Succeeded {
		return Inputs{}, fmt.Errorf("the last build %s", record.State)
	}
	log, err := os.Open(Tree{Dir: dir}.eventLogPath())
	if err != nil {
		return Inputs{}, err
	}
	defer log.Close()
	used, tasks, err := neededRecipes(log)
	if err != nil {
		return Inputs{}, err
	}
	if tasks == 0 || int64(tasks) != record.Counts.Total {
		return Inputs{}, fmt.Errorf("the event log names %d of %d tasks", tasks, record.Counts.Total)
	}
	in := newInputReader(root, dir, used)
	if err := in.readCaches(filepath.Join(record.Variables["TMPDIR"], "cache")); err != nil {
		return Inputs{}, err
	}
	return in.inputs(), nil
}

// neededRecipes returns the recipes of an event log's tasks, and the number of these. The
// queue says of each task once that it is needless or that it starts.
func neededRecipes(log io.Reader) (recipes map[string]bool, tasks int, err error) {
	recipes, seen := map[string]bool{}, map[string]bool{}
	lines := bufio.NewReader(log)
	for {
		line, err := readLimited(lines)
		if errors.Is(err, io.EOF) {
			return recipes, len(seen), nil
		}
		if err != nil {
			return nil, 0, err
		}
		if c := classOf(line); c != "bb.runqueue.runQueueTaskSkipped" && c != "bb.runqueue.runQueueTaskStarted" {
			continue
		}
		e, err := decodeEvent(line)
		if err != nil {
			return nil, 0, err
		}
		file, isText := e.state["taskfile"].(string)
		if !isText || file == "" {
			return nil, 0, fmt.Errorf("an event %s without a recipe", e.class)
		}
		id, _ := e.state["taskid"].(string)
		if id == "" {
			id = file + ":" + e.textField("taskname")
		}
		seen[id] = true
		recipes[recipePath(file)] = true
	}
}

// readLimited returns the next line. One that is too long for a task's event is empty.
func readLimited(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= maxEventBytes {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)):
			return nil, err
		case len(line) > maxEventBytes:
			return nil, nil
		default:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		}
	}
}

// recipePath returns the file of a recipe's name: bitbake writes mc:CONFIG: and
// virtual:CLASS: before it.
func recipePath(name string) string {
	if at := strings.Index(name, ":/"); at >= 0 {
		name = name[at+1:]
	}
	return filepath.Clean(name)
}

// readCaches reads bitbake's caches of recipes, one for each multiconfig. A link leads to
// the cache of the last run, beside those of older ones.
func (r *inputReader) readCaches(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "bb_cache.dat*"))
	if err != nil {
		return err
	}
	for _, link := range files {
		if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		data, err := localfile.Read(link, pickle.MaxStreamBytes)
		if err != nil {
			return err
		}
		if err := r.readCache(data); err != nil {
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

// inputReader sorts the files that recipes name.
type inputReader struct {
	root   string // of the repository
	board  string // the folder with its checkouts, which may be in the repository
	used   map[string]bool
	known  map[string]bool // recipes in the caches
	result Inputs
	others map[string]bool
	real   map[string]string // paths without links
}

func newInputReader(root, board string, used map[string]bool) *inputReader {
	r := &inputReader{
		used: used, known: map[string]bool{}, others: map[string]bool{}, real: map[string]string{},
		result: Inputs{Read: map[string]string{}, Folders: map[string]string{}, Missing: map[string]string{}},
	}
	r.root, r.board = r.withoutLinks(filepath.Clean(root)), r.withoutLinks(filepath.Clean(board))
	return r
}

func (r *inputReader) inputs() Inputs {
	for file := range r.others {
		if r.result.Read[file] != "" {
			delete(r.others, file)
		}
	}
	r.result.Unread = slices.Sorted(maps.Keys(r.others))
	return r.result
}

// isCacheClass reports whether a class may be part of the cache of recipes.
func isCacheClass(c pickle.Class) bool {
	return isEventClass(c) || c == pickle.Class{Module: "copyreg", Name: "_reconstructor"} || c == pickle.Class{Module: "builtins", Name: "object"}
}

// readCache reads a cache: its version and bitbake's, then each recipe's name and what
// bitbake knows of it. A cache that ends early is an error.
func (r *inputReader) readCache(data []byte) error {
	stream, err := pickle.NewStream(data, isCacheClass)
	if err != nil {
		return err
	}
	for range 2 {
		if v, err := stream.Next(); err != nil {
			return fmt.Errorf("no cache of recipes: %w", err)
		} else if _, isText := v.(string); !isText {
			return errors.New("no cache of recipes: it does not begin with its version")
		}
	}
	for {
		name, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := stream.Next()
		if err != nil {
			return fmt.Errorf("it ends behind the name of a recipe: %w", err)
		}
		recipe, isText := name.(string)
		o, isObject := info.(*pickle.Object)
		if !isText || !isObject || o.State == nil {
			return errors.New("it names something else than a recipe")
		}
		if err := r.addRecipe(recipePath(recipe), o.State); err != nil {
			return fmt.Errorf("%s: %w", recipe, err)
		}
	}
}

// addRecipe takes the files of one recipe.
func (r *inputReader) addRecipe(recipe string, info pickle.Dict) error {
	r.known[recipe] = true
	r.addFile(recipe, recipe, true)
	depends, err := pathsAndTimes(info["file_depends"])
	if err != nil {
		return fmt.Errorf("file_depends: %w", err)
	}
	for path, there := range depends {
		r.addFile(recipe, path, there)
	}
	sums, _ := info["file_checksums"].(pickle.Dict) // a recipe that is skipped has none
	for _, list := range sums {
		text, isText := list.(string)
		if !isText {
			return errors.New("file_checksums: a list that is no text")
		}
		for _, entry := range splitChecksums(text) {
			path, there := strings.CutSuffix(entry, ":True")
			if !there {
				path = strings.TrimSuffix(entry, ":False")
			}
			r.addFile(recipe, path, there)
		}
	}
	return nil
}

// pathsAndTimes reads a list of pairs: a file, and its time of change or 0 where it is not
// there.
func pathsAndTimes(v any) (map[string]bool, error) {
	var items []any
	switch l := v.(type) {
	case nil:
	case *pickle.List:
		items = l.Items
	case pickle.Tuple:
		items = l
	default:
		return nil, errors.New("no list")
	}
	paths := make(map[string]bool, len(items))
	for _, item := range items {
		pair, isTuple := item.(pickle.Tuple)
		if !isTuple || len(pair) != 2 {
			return nil, errors.New("an entry that is no pair")
		}
		path, isText := pair[0].(string)
		if !isText {
			return nil, errors.New("a file's name that is no text")
		}
		paths[path] = toInt64(pair[1]) != 0
	}
	return paths, nil
}

// splitChecksums splits a list of a:True b:False. A path may have blanks and colons.
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

// addFile takes one file of a recipe, under each of its names in the project's repository.
// A file that recipes reach through different links has several.
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

// withoutLinks follows the links of a path, where it is there.
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

// addName takes one name of a file.
func (r *inputReader) addName(recipe, path, rel string, there bool) {
	name, used := filepath.Base(recipe), r.used[recipe]
	info, err := os.Stat(path)
	switch {
	case strings.Contains(rel, "*"): // a pattern reads whatever is beside it
		rel, _, _ = strings.Cut(rel, "*")
		rel = filepath.Dir(rel + "x")
		if used {
			r.result.Folders[rel] = name
		}
	case err == nil && info.IsDir():
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

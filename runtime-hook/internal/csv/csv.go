// Package csv parses the files that list what a board's containers get, one "kind, path" a line,
// into entries and problems. It does not look at the paths; see plan.
package csv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"slipway/runtime-hook/internal/regular"
)

// Dir is the folder of a board's CSV files.
const Dir = "/etc/nvidia-container-runtime/host-files-for-container.d"

const (
	// maxBytes limits all files together, so that broken files do not fill the memory of a board
	// that has little. A board's files have some 30 KiB.
	maxBytes     = 512 << 10
	maxPathBytes = 4095 // PATH_MAX without its NUL
)

// Kind is what an entry requests, as the file spells it.
type Kind string

// The kinds of entries.
const (
	Device  Kind = "dev"
	Folder  Kind = "dir"
	Library Kind = "lib" // any regular file
	Symlink Kind = "sym"
)

// Entry is one valid line.
type Entry struct {
	Kind Kind   `json:"kind"`
	Path string `json:"path"` // absolute and clean; may be a pattern of path.Match
	File string `json:"file"`
	Line int    `json:"line"`
}

// Cause is the kind of a problem.
type Cause string

// The causes, from the line itself to the file at its path.
const (
	Bad       Cause = "bad line"
	Refused   Cause = "refused"
	Missing   Cause = "missing"
	Loop      Cause = "loop"
	Duplicate Cause = "duplicate"
	Dangerous Cause = "dangerous"
	Odd       Cause = "note"
)

// Problem is something wrong with a line or a file. If Unused is set, the line is not used;
// otherwise it is used, and the problem is a warning.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"` // 0 for the file as a whole
	Cause  Cause  `json:"cause"`
	Why    string `json:"why"`
	Unused bool   `json:"unused"`
}

// String returns "FILE:LINE: CAUSE: WHY", or "FILE: CAUSE: WHY" without a line.
func (p Problem) String() string {
	at := p.File
	if p.Line > 0 {
		at = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return fmt.Sprintf("%s: %s: %s", at, p.Cause, p.Why)
}

// Problem returns a problem of the entry's line.
func (e Entry) Problem(cause Cause, unused bool, format string, args ...any) Problem {
	return Problem{e.File, e.Line, cause, fmt.Sprintf(format, args...), unused}
}

// File is one CSV file as it was read.
type File struct {
	Path     string
	Data     string
	Problems []Problem // problems of the file as a whole
}

// ReadFiles reads the CSV files of dir in the order of their names. A file that cannot be read, or
// exceeds maxBytes with those before it, has a problem and no data. A missing folder has no files.
func ReadFiles(dir string) ([]File, error) {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []File
	left := maxBytes
	for _, f := range list {
		if filepath.Ext(f.Name()) == ".csv" {
			read := readFile(filepath.Join(dir, f.Name()), left)
			left -= len(read.Data)
			files = append(files, read)
		}
	}
	return files, nil
}

// ReadDir reads the CSV files of dir and parses them.
func ReadDir(dir string) (paths []string, entries []Entry, problems []Problem, err error) {
	files, err := ReadFiles(dir)
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	entries, problems = Parse(files)
	return paths, entries, problems, err
}

// Parse parses the files into entries and problems.
func Parse(files []File) (entries []Entry, problems []Problem) {
	for _, f := range files {
		problems = append(problems, f.Problems...)
		e, p := parseFile(f.Data, filepath.Base(f.Path))
		entries, problems = append(entries, e...), append(problems, p...)
	}
	return entries, problems
}

// readFile reads a CSV file of up to left bytes. An error is a problem, without data. That all may
// write the file is one too, with data.
func readFile(path string, left int) File {
	out, name := File{Path: path}, filepath.Base(path)
	data, info, err := regular.Read(path, maxBytes)
	if err == nil && len(data) > left {
		err = fmt.Errorf("larger than %d KiB, together with the files before it; all of it is left out", maxBytes>>10)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		out.Problems = []Problem{{File: name, Cause: Missing, Why: err.Error(), Unused: true}}
		return out
	case err != nil:
		out.Problems = []Problem{{File: name, Cause: Refused, Why: err.Error(), Unused: true}}
		return out
	case info.Mode().Perm()&0o002 != 0:
		out.Problems = []Problem{{File: name, Cause: Dangerous, Why: "anyone may write to it and so choose what containers get; chmod o-w it"}}
	}
	out.Data = string(data)
	return out
}

// parseFile parses one file. It skips blank lines and those that begin with #. An invalid line
// becomes a problem, and parseFile continues with the next line.
func parseFile(data, name string) (entries []Entry, problems []Problem) {
	data = strings.TrimPrefix(data, "\uFEFF")
	for n := 1; data != ""; n++ {
		var line string
		line, data, _ = strings.Cut(data, "\n")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		e, cause, err := parseLine(line)
		if err != nil {
			problems = append(problems, Problem{name, n, cause, err.Error(), true})
			continue
		}
		e.File, e.Line = name, n
		entries = append(entries, e)
	}
	return entries, problems
}

// parseLine parses and checks a line "kind, /path". The cause says what kind of error it has.
func parseLine(line string) (Entry, Cause, error) {
	kind, p, found := strings.Cut(line, ",")
	e := Entry{Kind: Kind(strings.TrimSpace(kind)), Path: strings.TrimSpace(p)}
	switch {
	case !found:
		return e, Bad, fmt.Errorf("%.80q has no comma; a line is \"kind, /path\"", line)
	case !e.Kind.isKnown():
		return e, Bad, fmt.Errorf("unknown kind %.80q (have dev, dir, lib, sym)", e.Kind)
	case e.Path == "":
		return e, Bad, errors.New("no path after the comma")
	case len(e.Path) > maxPathBytes:
		return e, Bad, fmt.Errorf("the path is %d bytes long; the kernel takes %d", len(e.Path), maxPathBytes)
	case !utf8.ValidString(e.Path) || strings.ContainsRune(e.Path, 0):
		return e, Bad, fmt.Errorf("%.200q is no path in UTF-8, which CDI specs need", e.Path)
	}
	return e.checkPath()
}

func (k Kind) isKnown() bool {
	return k == Device || k == Folder || k == Library || k == Symlink
}

// checkPath cleans the entry's path. It refuses paths that are relative, contain ".." or begin with
// ${, patterns with an open bracket, and folders that would hide the container's own.
func (e Entry) checkPath() (Entry, Cause, error) {
	if strings.HasPrefix(e.Path, "${") {
		return e, Refused, fmt.Errorf("%q begins with a variable that the image's build did not fill in", e.Path)
	}
	if !path.IsAbs(e.Path) {
		return e, Refused, fmt.Errorf("%q is not an absolute path", e.Path)
	}
	if slices.Contains(strings.Split(e.Path, "/"), "..") {
		return e, Refused, fmt.Errorf("%q climbs with \"..\"; write the path itself", e.Path)
	}
	if _, err := path.Match(e.Path, ""); err != nil {
		return e, Bad, fmt.Errorf("%q is not a good pattern: a bracket is open", e.Path)
	}
	e.Path = path.Clean(e.Path)
	if e.Kind == Folder && System(e.Path) {
		return e, Refused, fmt.Errorf("%s as a dir would replace the container's own", e.Path)
	}
	return e, "", nil
}

// System reports whether p is /, /proc, /sys or /dev, which no container gets as a whole.
func System(p string) bool {
	return p == "/" || p == "/proc" || p == "/sys" || p == "/dev"
}

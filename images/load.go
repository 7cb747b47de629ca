package images

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// Boards travel inside the binary, so that it needs no clone in the field.
//
//go:embed all:boards releases
var embedded embed.FS

// Sources returns the files of Slipway's own boards, and of the releases that their project files
// include, in the folders boards and releases.
func Sources() fs.FS { return embedded }

const maxBoardFileBytes = 1 << 20

// Boards returns the names of the boards that Slipway knows, sorted.
func Boards() ([]string, error) {
	_, names, err := knownBoards()
	return names, err
}

// knownBoards returns Slipway's boards and the user's own, with their sorted names.
func knownBoards() (boardSet, []string, error) {
	boards, err := openBoards()
	if err != nil {
		return boards, nil, err
	}
	names, err := boards.names()
	return boards, names, err
}

// names returns the sorted names of Slipway's boards and of the user's own.
func (b boardSet) names() ([]string, error) {
	entries, err := b.ReadDir(".")
	var names []string
	for _, e := range entries {
		if e.IsDir() || slices.Contains(b.own, e.Name()) { // beside ours lies the page on boards
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// Default returns the board that commands use if the user names none.
func Default() (Spec, error) {
	return First("has default: true in its board.yml; name one", func(s Spec) bool { return s.Default })
}

// LoadOwn loads a board by name. For "" it returns the only board of the user's project, or the
// default board. If the project has several, the default must be one of them.
func LoadOwn(board string) (Spec, error) {
	own, err := OwnBoards()
	if board != "" || err != nil || len(own) == 0 {
		return Load(board)
	}
	if len(own) == 1 {
		return Load(own[0])
	}
	spec, err := Default()
	if err == nil && !slices.Contains(own, spec.Board) {
		err = fmt.Errorf("the project has %d boards: %s\nnext: repeat the line with %s", len(own), strings.Join(own, ", "), own[0])
	}
	return spec, err
}

// First returns the first board for which fits is true, the user's own before Slipway's. If a board
// does not load, it returns that error. what describes such a board in the error if there is none.
func First(what string, fits func(Spec) bool) (Spec, error) {
	boards, names, err := knownBoards()
	if err != nil {
		return Spec{}, err
	}
	for _, name := range append(boards.own, names...) {
		if spec, err := Load(name); err != nil || fits(spec) {
			return spec, err
		}
	}
	return Spec{}, fmt.Errorf("no board %s", what)
}

// Load loads a board by name or from project files, "" for the default board. It refuses a folder.
func Load(board string) (spec Spec, err error) {
	defer func() { err = asBoardFile(err) }()
	if board == "" {
		return Default()
	}
	boards, names, err := knownBoards()
	if err != nil {
		return Spec{}, err
	}
	if isProjectFile(board) {
		return specOfProject(board, names)
	}
	if isFolderName(board) && !slices.Contains(names, board) {
		next := "boards"
		if found, _ := filepath.Glob(filepath.Join(board, "*.yml")); len(found) > 0 {
			next = "ls " + plaintext.Quote(board) + "/*.yml"
		}
		return Spec{}, fmt.Errorf("%s is a folder: want the name of a board or a project file\nnext: %s", board, next)
	}
	return loadKnown(boards, names, board)
}

// loadKnown loads a board that is in names, or returns an error with the nearest name.
func loadKnown(boards fs.FS, names []string, board string) (Spec, error) {
	if !slices.Contains(names, board) {
		if dir := filepath.Dir(board); dir != "." {
			return Spec{}, asBoardFile(fmt.Errorf("unknown board %q, and no folder of that name\nnext: ls %s", board, plaintext.Quote(dir)))
		}
		next := "boards"
		if near := plaintext.Nearest(board, names); near != "" && !strings.Contains(near, " ") {
			next = "repeat the line with " + near + " for " + plaintext.Quote(board)
		}
		return Spec{}, asBoardFile(fmt.Errorf("unknown board %q%s\nnext: %s", board, plaintext.DidYouMean(board, names), next))
	}
	return LoadFrom(boards, board)
}

// LoadSource loads one of Slipway's own boards by name, whatever boards the current folder has.
func LoadSource(board string) (Spec, error) {
	boards, err := openSources()
	if err != nil {
		return Spec{}, err
	}
	names, err := boards.names()
	if err != nil {
		return Spec{}, err
	}
	return loadKnown(boards, names, board)
}

// ErrBoardFile means that a board.yml, or a file that it names, is missing or unusable.
var ErrBoardFile = errors.New("a board.yml is wrong")

type boardFileError struct{ error }

func (e boardFileError) Unwrap() []error { return []error{ErrBoardFile, e.error} }

// asBoardFile marks an error as ErrBoardFile; nil stays nil.
func asBoardFile(err error) error {
	if err == nil {
		return nil
	}
	return boardFileError{err}
}

// LoadFrom loads a board from a set of board folders. It decodes the board.yml of the board and of
// those that it extends, reads their files, finds the suites and the project file, and validates
// the result.
func LoadFrom(boards fs.FS, board string) (spec Spec, err error) {
	defer func() { err = asBoardFile(err) }()
	chain, err := lineageOf(boards, board)
	if err != nil {
		return Spec{}, err
	}
	spec = Spec{Build: defaultNeeds}
	for _, name := range chain { // the extended board first, so that the others overwrite it
		spec.Default = false // is not inherited
		if err := decodeBoard(boards, name, &spec); err != nil {
			return Spec{}, err
		}
	}
	spec.Board = board
	for _, name := range chain {
		spec.lineage = append(spec.lineage, placeOf(boards, name))
	}
	if spec.Debian != nil && spec.Build != defaultNeeds {
		return Spec{}, fmt.Errorf("%s: build is what bitbake needs, and a board with debian is built without it; leave it out", spec.PlaceOf("build"))
	} else if spec.Debian != nil {
		spec.Build = Needs{}
	}
	spec.files, err = mergeFiles(boards, chain)
	if err != nil {
		return Spec{}, err
	}
	if err := cmp.Or(spec.distrust(), spec.findSuites()); err != nil {
		return Spec{}, err
	}
	if spec.Debian == nil {
		if err := spec.findProject(); err != nil {
			return Spec{}, err
		}
	}
	return spec, cmp.Or(checkFolderName(board), spec.validate())
}

// lineageOf returns the names of the board and of those that it extends, the oldest first. It
// returns an error for a board that is missing or extends itself.
func lineageOf(boards fs.FS, board string) ([]string, error) {
	var chain []string
	for name := board; name != ""; {
		if slices.Contains(chain, name) {
			return nil, fmt.Errorf("%s: extends itself through %s", placeOf(boards, name).file(), strings.Join(chain, ", "))
		}
		chain = append([]string{name}, chain...)
		s := Spec{Board: name}
		if err := decodeBoard(boards, name, &s); err != nil {
			return nil, err
		}
		if err := s.checkExtends(boards); err != nil {
			return nil, err
		}
		name = s.Extends
	}
	return chain, nil
}

// checkExtends returns an error if the board that this one extends does not exist.
func (s Spec) checkExtends(boards fs.FS) error {
	files, err := fs.Glob(boards, "*/board.yml")
	if err != nil {
		return err
	}
	var names []string
	for _, f := range files {
		names = append(names, path.Dir(f))
	}
	if s.Extends == "" || slices.Contains(names, s.Extends) {
		return nil
	}
	return s.unknownValue("extends", s.Extends, names)
}

// decodeBoard decodes a board.yml over the values in into, and records the place of each key.
func decodeBoard(boards fs.FS, name string, into *Spec) error {
	file := placeOf(boards, name).file()
	f, err := boards.Open(path.Join(name, "board.yml"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no such board; add the file or fix the name", file)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := localfile.ReadAll(f, file, maxBoardFileBytes)
	if err != nil {
		return err
	}
	if into.places == nil {
		into.places = map[string]string{}
	}
	return yaml.Load(file, data, into, into.places)
}

// mergeFiles returns the files of the boards' folders by path. The last board with a path wins.
func mergeFiles(boards fs.FS, chain []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, name := range chain {
		sub, err := fs.Sub(boards, name)
		if err != nil {
			return nil, err
		}
		err = fs.WalkDir(sub, ".", func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files[p], err = readBoardFile(sub, p)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// readBoardFile reads a file of a board's folder. That may be the user's own, so it refuses large
// files and those that are not regular.
func readBoardFile(boards fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(boards, name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s in a board's folder is no file", name)
	}
	f, err := boards.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return localfile.ReadAll(f, name, maxDescriptionBytes)
}

// File returns a file of the folder of the board or of those that it extends, as it was when the
// spec was loaded. It reads an absolute path from the machine.
func (s Spec) File(name string) ([]byte, error) {
	if filepath.IsAbs(name) {
		return localfile.Read(name, maxDescriptionBytes)
	}
	data, ok := s.files[path.Clean(name)]
	if !ok {
		return nil, fmt.Errorf("%s: %w; it is looked for beside board.yml", filepath.Join(filepath.Dir(s.BoardFile()), name), fs.ErrNotExist)
	}
	return data, nil
}

// HostAuthorities returns the public keys, one a line, of those who sign the host keys of boards of
// this kind: ssh.hostCA itself, or the file that it names. It is "" if that is not set.
func (s Spec) HostAuthorities() (string, error) {
	if s.SSH.HostCA == "" || strings.Contains(s.SSH.HostCA, " ") {
		return s.SSH.HostCA, nil
	}
	data, err := s.File(s.SSH.HostCA)
	if err != nil {
		return "", fmt.Errorf("%s: ssh.hostCA: %w", s.PlaceOf("ssh.hostCA"), err)
	}
	return string(data), nil
}

// WithFile returns the spec with a file of the board's folder added or replaced.
func (s Spec) WithFile(name, content string) Spec {
	files := map[string][]byte{}
	maps.Copy(files, s.files)
	files[name] = []byte(content)
	s.files = files
	return s
}

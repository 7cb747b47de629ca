package images

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// BoardsVariable names the folder of the user's own boards. Without it, that is the nearest
// folder "boards" with a board in it, in the current folder or above.
const BoardsVariable = "SLIPWAY_BOARDS"

// boardSet holds Slipway's own boards and the user's as one fs.FS, with a folder for each board.
type boardSet struct {
	embedded fs.FS
	folder   string   // of the user's own boards; "" is none
	own      []string // their names
}

// openBoards returns Slipway's boards and the user's own. It refuses a user's board with an invalid
// name, or with one of Slipway's: the meaning of that would depend on the current folder.
func openBoards() (boardSet, error) {
	b, err := openSources()
	if err != nil {
		return boardSet{}, err
	}
	folder, err := OwnFolder()
	if err != nil || folder == "" {
		return b, err
	}
	b.folder, b.own = folder, BoardsIn(folder)
	for _, name := range b.own {
		if err := CheckBoardName(name); err != nil {
			return b, fmt.Errorf("%s: %w\nnext: rename the folder", plaintext.Printable(placeOf(b, name).file()), err)
		}
		if isThere(b.embedded, name) {
			return b, fmt.Errorf("%s: Slipway has a board of this name\nnext: rename the folder; to change a few keys of %s, write \"extends: %[2]s\" in it", placeOf(b, name).file(), name)
		}
	}
	return b, nil
}

// openSources returns Slipway's own boards.
func openSources() (boardSet, error) {
	ours, err := fs.Sub(embedded, "boards")
	return boardSet{embedded: ours}, err
}

func (b boardSet) Open(name string) (fs.File, error) { return b.folderOf(name).Open(name) }

// folderOf returns the file system that holds a file: the user's boards or Slipway's.
func (b boardSet) folderOf(name string) fs.FS {
	if first, _, _ := strings.Cut(name, "/"); slices.Contains(b.own, first) {
		return os.DirFS(b.folder)
	}
	return b.embedded
}

// ReadDir lists a folder, for "." Slipway's and then the user's boards, as fs.Glob needs.
func (b boardSet) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(b.folderOf(name), name)
	if err != nil || name != "." || b.folder == "" {
		return all, err
	}
	entries, err := os.ReadDir(b.folder)
	for _, e := range entries {
		if slices.Contains(b.own, e.Name()) {
			all = append(all, e)
		}
	}
	return all, err
}

// boardName matches a valid board name, which is also a folder's name and a part of host names.
var boardName = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$`)

// CheckBoardName returns an error unless a name has at most 63 letters, digits and . _ + -, begins
// with a letter or digit, is no project file's, and can be a folder's in the build folder.
func CheckBoardName(name string) error {
	if !boardName().MatchString(name) || isProjectFile(name) {
		return fmt.Errorf("board name %.80q: want letters, digits and . _ + - with a letter or digit first, at most 63, and no ending of a project file", name)
	}
	return checkFolderName(name)
}

// OwnBoards returns the names of the user's own boards.
func OwnBoards() ([]string, error) {
	boards, err := openBoards()
	return boards.own, err
}

// InClone reports whether an absolute path is in a clone of Slipway.
func InClone(folder string) bool {
	for at := folder; ; at = filepath.Dir(at) {
		if isClone(at) {
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// NeedsClone reports whether a board can only be built in a clone of Slipway: a rig, a board with
// the hook, which is compiled from the clone, or one whose project file names layers of the clone.
func NeedsClone(spec Spec) bool {
	if spec.Debian != nil {
		return spec.Rig != nil || spec.Debian.Hook != ""
	}
	return spec.project == "" && !spec.ownProject
}

// OwnFolder returns the folder of the user's own boards, "" if there is none. SLIPWAY_BOARDS names
// it, and then must hold a board. Otherwise it is the nearest "boards" in the current folder or
// above. That search ends at the top of a clone of Slipway, and skips the clone's own boards.
func OwnFolder() (string, error) {
	if folder := os.Getenv(BoardsVariable); folder != "" {
		if len(BoardsIn(folder)) == 0 {
			return "", fmt.Errorf("%s=%s: no board there: want BOARD/board.yml in it\nnext: ls %s", BoardsVariable, folder, plaintext.Quote(localfile.NearestFolder(folder+"/x")))
		}
		return filepath.Abs(folder)
	}
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; at = filepath.Dir(at) {
		if folder := filepath.Join(at, "boards"); len(BoardsIn(folder)) > 0 && !isClone(filepath.Dir(at)) {
			return folder, nil
		}
		if at == filepath.Dir(at) || isClone(at) {
			return "", nil // a clone is a project of its own
		}
	}
}

// BoardsIn returns the names of the folders with a board.yml in a folder, none if it is unreadable.
func BoardsIn(folder string) (names []string) {
	entries, _ := os.ReadDir(folder) // what cannot be read has none
	for _, e := range entries {
		if localfile.Exists(filepath.Join(folder, e.Name(), "board.yml")) {
			names = append(names, e.Name())
		}
	}
	return names
}

// isClone reports whether a folder is the top of a clone of Slipway, by its go.mod.
func isClone(folder string) bool {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	return err == nil && strings.HasPrefix(string(text), "module slipway\n")
}

// boardPlace is the folder with a board's board.yml.
type boardPlace struct {
	name   string
	folder string // for messages, and for files of a user's own board
	own    bool   // it is the user's
}

func (p boardPlace) file() string { return filepath.Join(p.folder, "board.yml") }

// placeOf returns the folder of a board, for Slipway's own the path in a clone that may be missing.
func placeOf(boards fs.FS, name string) boardPlace {
	if b, is := boards.(boardSet); is && slices.Contains(b.own, name) {
		return boardPlace{name, filepath.Join(b.folder, name), true}
	}
	return boardPlace{name, filepath.Join("images/boards", name), false}
}

// place returns the folder of the spec's board.
func (s Spec) place() boardPlace {
	if len(s.lineage) == 0 {
		return placeOf(nil, s.Board)
	}
	return s.lineage[len(s.lineage)-1]
}

// BoardFile returns the path of the board's board.yml, for messages.
func (s Spec) BoardFile() string { return cmp.Or(s.places[""], s.place().file()) }

// LoadIn loads a board as if folder held the user's boards, whatever boards the current folder has.
func LoadIn(folder, board string) (Spec, error) {
	b, err := openSources()
	if err != nil {
		return Spec{}, err
	}
	b.folder, b.own = folder, BoardsIn(folder)
	return LoadFrom(b, board)
}

// Lineage returns the board and those that it extends, the oldest first; none for project files.
func (s Spec) Lineage() (names []string) {
	for _, p := range s.lineage {
		names = append(names, p.name)
	}
	return names
}

// Files returns the contents of the files that FileNames names. Use WithFile to change one.
func (s Spec) Files() map[string][]byte { return s.files }

// FileNames returns the names of the files of the board and of those that it extends.
func (s Spec) FileNames() []string { return slices.Sorted(maps.Keys(s.files)) }

// TypedName returns the name of the board on a command line.
func (s Spec) TypedName() string { return cmp.Or(s.folder, s.project, s.Board) }

// SourceProjectFile returns the path in Sources of the project file of a Slipway board, or of a
// board that it extends, or "".
func SourceProjectFile(spec Spec) string {
	for _, board := range slices.Backward(spec.lineage) {
		for _, name := range projectFiles {
			if file := path.Join("boards", board.name, name); isThere(embedded, file) {
				return file
			}
		}
	}
	return ""
}

func isThere(files fs.FS, name string) bool {
	_, err := fs.Stat(files, name)
	return err == nil
}

// isProjectFile reports whether a board's name is a list of project files, as for kas: a.yml or
// a.yml:b.yml. A file of bitbake-setup may have choices after its name:
// a.conf.json#configuration,machine/name.
func isProjectFile(board string) bool {
	first, _ := firstProjectFile(board)
	return slices.Contains([]string{".yml", ".yaml", ".json"}, filepath.Ext(first))
}

// firstProjectFile returns the first file of FILE:FILE, or both parts of FILE.conf.json#CHOICES.
func firstProjectFile(board string) (file, choices string) {
	if file, choices, found := strings.Cut(board, ".conf.json#"); found {
		return file + ".conf.json", choices
	}
	file, _, _ = strings.Cut(board, ":")
	return file, ""
}

// OwnSuites returns the user's suites' paths, suites/NAME.yml beside the user's boards, by name.
func OwnSuites() (map[string]string, error) {
	folder, err := OwnFolder()
	if err != nil || folder == "" {
		return nil, err
	}
	suites := map[string]string{}
	folder = filepath.Join(filepath.Dir(folder), "suites")
	entries, _ := os.ReadDir(folder) // what cannot be read has none
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())); IsSuiteFile(e.Name()) {
			suites[name] = filepath.Join(folder, e.Name())
		}
	}
	return suites, nil
}

// IsSuiteFile reports whether a suite's name is the name of a YAML file.
func IsSuiteFile(suite string) bool {
	return slices.Contains([]string{".yml", ".yaml"}, filepath.Ext(suite))
}

// SentVariable says that the user's boards came from another machine, to a station of a hub.
const SentVariable = "SLIPWAY_BOARDS_SENT"

// What a virtual board that was sent may name. Options of -machine name files, such as kernel=.
var (
	virtualizer   = plaintext.Regexp(`^qemu-system-[a-z0-9_]{1,20}$`)
	machineType   = plaintext.Regexp(`^[a-z0-9._-]{0,40}$`)
	processor     = plaintext.Regexp(`^[A-Za-z0-9.,+_=-]{0,100}$`)
	debianPackage = plaintext.Regexp(`^([a-z0-9][a-z0-9.+-]{1,60})?$`)
)

// distrust keeps a board that was sent from programs and files of this machine. It drops the command for
// the recovery mode: a station has its own.
func (s *Spec) distrust() error {
	if os.Getenv(SentVariable) == "" || !slices.ContainsFunc(s.lineage, func(p boardPlace) bool { return p.own }) {
		return nil
	}
	s.Flash.Recovery = Recovery{}
	machine := cmp.Or(s.Machine, &Machine{})
	for _, c := range []struct {
		key string
		bad bool
	}{
		{"machine.program", s.Machine != nil && !virtualizer().MatchString(machine.Program)},
		{"machine.type", !machineType().MatchString(machine.Type)},
		{"machine.cpu", !processor().MatchString(machine.CPU)},
		{"machine.package", !debianPackage().MatchString(machine.Package) || !debianPackage().MatchString(machine.Firmware.Package)},
		{"machine.firmware", machine.Firmware.Path != "" && !strings.HasPrefix(path.Clean(machine.Firmware.Path), "/usr/share/")},
		{"local", len(s.Local) > 0},
		{"rig", s.Rig != nil},
		{"suites", slices.ContainsFunc(s.Suites, filepath.IsAbs)},
		{"flash.signers", filepath.IsAbs(s.Flash.Signers)},
		{"ssh.hostCA", filepath.IsAbs(s.SSH.HostCA)},
	} {
		if c.bad {
			return fmt.Errorf("%s: %s names a program or a file of the machine, and this board came from another one\nnext: board check  # after removing %[2]s; or do without --hub", s.PlaceOf(c.key), c.key)
		}
	}
	return nil
}

// findSuites replaces file names in the board's suites by their paths. Such a file must be in the
// user's folder of the board, or of one that it extends.
func (s *Spec) findSuites() error {
	suites := slices.Clone(s.Suites)
	for i, suite := range suites {
		if !IsSuiteFile(suite) || filepath.IsAbs(suite) {
			continue
		}
		if suites[i] = s.ownFile(suite); suites[i] == "" {
			return fmt.Errorf("%s: suites: no file %q in the board's folder\nnext: ls %s", s.PlaceOf("suites"), suite, filepath.Dir(s.BoardFile()))
		}
	}
	s.Suites = suites
	return nil
}

// ownFile returns the path of a file of the board or of one that it extends, "" for Slipway's own.
func (s Spec) ownFile(name string) string {
	for _, board := range slices.Backward(s.lineage) {
		if path := filepath.Join(board.folder, name); board.own && filepath.IsLocal(name) && localfile.Exists(path) {
			return path
		}
	}
	return ""
}

// notInName matches the characters that the name of a build folder cannot have.
var notInName = plaintext.Regexp(`[^A-Za-z0-9._-]+`)

// specOfProject returns the spec of a board that consists only of project files. Its name is that
// of the first file, or of the folder of a kas.yml, with the choices for bitbake-setup, so that
// each choice has a build folder. If one of boards has that name, "-project" follows it.
func specOfProject(files string, boards []string) (Spec, error) {
	first, choices := firstProjectFile(files)
	path, err := filepath.Abs(first)
	if err != nil {
		return Spec{}, err
	}
	ext := filepath.Ext(first)
	twin := map[string]string{".yaml": ".yml", ".yml": ".yaml"}[ext]
	if other := strings.TrimSuffix(first, ext) + twin; twin != "" && !localfile.Exists(path) && localfile.Exists(other) {
		return Spec{}, fmt.Errorf("%s: no such project file: did you mean %s?\nnext: repeat the line with %s for %s", first, other, plaintext.Quote(other+strings.TrimPrefix(files, first)), plaintext.Quote(files))
	}
	if !localfile.Exists(path) {
		return Spec{}, fmt.Errorf("%s: no such project file\nnext: ls %s", first, plaintext.Quote(localfile.NearestFolder(first)))
	}
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	if slices.ContainsFunc(projectFiles, func(p string) bool { return p == filepath.Base(path) }) || name == "" {
		name = filepath.Base(filepath.Dir(path))
	}
	if choices != "" {
		name += "-" + choices
	}
	if name = notInName().ReplaceAllString(name, "-"); slices.Contains(boards, name) {
		name += "-project" // has a folder of its own
	}
	spec := Spec{Board: name, project: files, Project: files, Build: defaultNeeds, places: map[string]string{"": first}}
	spec.Flash.Kinds = kindsOfProject
	return spec, checkFolderName(name)
}

package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images/bitbake"
	"slipway/layers/git"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ArtifactName is the file that describes an artifact, in its folder.
const ArtifactName = "artifact.json"

const maxDescriptionBytes = 1 << 20

// The kinds of files in an artifact.
const (
	DiskImage = "disk"      // a whole disk
	BlockMap  = "bmap"      // which blocks of the disk hold data, with their digests
	Container = "container" // an OCI archive for the board's containerd
	Bundle    = "bundle"    // a signed update for the board's engine; also the target that makes it

	// Only boards built by bitbake have these.
	Tegraflash = "tegraflash" // NVIDIA's flashing tools with the image
	BFB        = "bfb"        // a boot stream for a BlueField
)

// Ending is a file name ending for a kind of files.
type Ending struct{ Kind, Ending string }

// Endings are the file name endings of each kind, the preferred first.
var Endings = []Ending{
	{DiskImage, "wic"},
	{DiskImage, "wic.zst"},
	{DiskImage, "wic.gz"},
	{DiskImage, "wic.xz"},
	{DiskImage, "wic.bz2"},
	{BlockMap, "wic.bmap"},
	{Tegraflash, "tegraflash-tar.zst"}, // wrynose and later
	{Tegraflash, "tegraflash.tar.zst"},
	{Tegraflash, "tegraflash.tar.gz"},
	{BFB, "bfb"},
	{Bundle, "raucb"},
	{Container, "oci.tar"},
}

// Artifact is the content of artifact.json: the files of one build. Other machines read it too.
type Artifact struct {
	Board      string            `json:"board"`
	Project    string            `json:"project,omitempty"` // the project files, if the board consists only of them
	Arch       string            `json:"arch"`
	Key        string            `json:"key"` // hash of the inputs
	Built      time.Time         `json:"built"`
	Slipway    Program           `json:"slipway,omitzero"` // that made it
	Files      []File            `json:"files"`
	Source     *git.FolderCommit `json:"source,omitempty"`     // what the user's own folder was at
	Layers     []bitbake.Commit  `json:"layers,omitempty"`     // what bitbake built of; a local folder is marked
	Tools      map[string]string `json:"tools,omitempty"`      // versions of the Debian packages that the build needs here
	Partitions []Partition       `json:"partitions,omitempty"` // of the disk image
	Cost       *Cost             `json:"cost,omitempty"`       // of the build

	dir string
}

// Cost is how long the build of an artifact took, and how many tasks shared state replaced.
type Cost struct {
	BuildMS     int64 `json:"buildMs"`
	CacheHits   int64 `json:"cacheHits,omitempty"` // tasks that bitbake took from shared state
	CacheMisses int64 `json:"cacheMisses,omitempty"`
}

// File is one file of an artifact.
type File struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"` // relative to the artifact's folder
	SizeBytes int64  `json:"sizeBytes"`
	SHA256    string `json:"sha256"`
	Key       string `json:"key,omitempty"` // hash of its inputs, if they are more than the artifact's
}

// Partition is one partition of the disk image, with its offset and its size.
type Partition struct {
	Name        string `json:"name"`
	Use         string `json:"use"`
	OffsetBytes int64  `json:"offsetBytes"`
	SizeBytes   int64  `json:"sizeBytes"`
}

// OpenArtifact reads the artifact.json in dir, and checks that all its files exist with their
// sizes. It computes no digests: the stages that read the files check those.
func OpenArtifact(dir string) (Artifact, error) {
	a, err := ReadArtifact(dir)
	if err != nil {
		return a, err
	}
	return a, a.Check()
}

// ReadArtifact reads the artifact.json in dir, ErrNoArtifact if it is missing. It does not look for
// the files that artifact.json lists: they may be on another machine.
func ReadArtifact(dir string) (Artifact, error) {
	path := ArtifactPath(dir)
	data, err := localfile.Read(path, maxDescriptionBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return Artifact{}, noArtifact(err, filepath.Base(dir))
	}
	if err != nil {
		return Artifact{}, err
	}
	a, err := ParseArtifact(data)
	if err != nil {
		return Artifact{}, fmt.Errorf("%s: %w; build it again, or pull it again", path, err)
	}
	a.dir = dir
	return a, nil
}

// checkNames refuses control characters in names, a file name that CheckFileName refuses, and a
// board name that no folder can have. Only an artifact of project files needs the name of a board.
func (a Artifact) checkNames() error {
	names := []string{a.Board, a.Arch}
	for _, f := range a.Files {
		names = append(names, f.Kind, f.Name)
	}
	if i := slices.IndexFunc(names, plaintext.HasControls); i >= 0 {
		return fmt.Errorf("the name %q has characters that a person cannot see", names[i])
	}
	for _, f := range a.Files {
		if err := CheckFileName(f.Name); err != nil {
			return err
		}
	}
	switch {
	case a.Board == "" && a.Project != "":
		return errors.New("it names project files, but no board")
	case a.Board == "":
		return nil
	}
	return checkFolderName(a.Board)
}

// ParseArtifact decodes the content of an artifact.json and checks its names. It sets no folder.
func ParseArtifact(data []byte) (a Artifact, err error) {
	if err := json.Unmarshal(data, &a); err != nil {
		return a, plaintext.JSONError(err)
	}
	return a, a.checkNames()
}

// ErrNoArtifact means that the folder has no artifact.json, because nothing was built there yet.
var ErrNoArtifact = errors.New("no artifact")

func noArtifact(err error, board string) error {
	return fmt.Errorf("%w: %w\nnext: build %s", ErrNoArtifact, err, board)
}

// ArtifactOf reads the artifact.json in dir, and refuses an artifact of another board than spec's.
func ArtifactOf(spec Spec, dir string) (Artifact, error) {
	a, err := ReadArtifact(dir)
	if missing := (*fs.PathError)(nil); spec.project != "" && errors.As(err, &missing) {
		return a, noArtifact(missing, spec.project)
	}
	if err == nil && a.Board != spec.Board {
		err = fmt.Errorf("%s: of board %q, not of %s\nnext: build %[3]s", ArtifactPath(dir), a.Board, spec.Board)
	}
	return a, err
}

// NewArtifact returns the artifact, without files yet, that this Slipway builds now for a board.
func NewArtifact(spec Spec, dir string) Artifact {
	return Artifact{Board: spec.Board, Project: spec.project, Arch: spec.Arch, Built: time.Now().UTC(), Slipway: ThisProgram(), dir: dir}
}

// NoArtifact returns an artifact without files for a board that was not built and gets an image
// from elsewhere. Slipway writes the receipts and logs of that image to dir.
func NoArtifact(spec Spec, dir string) Artifact {
	return Artifact{Board: spec.Board, Arch: spec.Arch, dir: dir}
}

// Check returns an error if a file of kinds (default: all) is missing or not as long as listed.
func (a Artifact) Check(kinds ...string) error {
	for _, f := range a.Files {
		if len(kinds) > 0 && !slices.Contains(kinds, f.Kind) {
			continue
		}
		info, err := os.Stat(a.Path(f))
		if err != nil {
			return fmt.Errorf("artifact is not whole; build again, or copy the file there: %w", err)
		}
		if info.Size() != f.SizeBytes {
			return fmt.Errorf("%s: %d bytes, want %d\nnext: evidence %s", a.Path(f), info.Size(), f.SizeBytes, plaintext.Quote(a.dir))
		}
	}
	return nil
}

// Describe reads a file in the artifact's folder, and returns its kind, name, size and digest.
func (a Artifact) Describe(ctx context.Context, kind, name string) (File, error) {
	return DescribeFile(ctx, a.dir, kind, name)
}

// VerifyFile hashes a file of the artifact, and returns an error unless it has the size and digest of f.
// It calls count with the number of bytes of each read.
func (a Artifact) VerifyFile(ctx context.Context, f File, count func(int64)) error {
	got, err := describeFile(ctx, a.dir, f.Kind, f.Name, count)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is missing, which artifact.json names\nnext: ls -l %s", a.Path(f), plaintext.Quote(a.dir))
	case err != nil:
		return err
	case got.SizeBytes != f.SizeBytes:
		return fmt.Errorf("%s has %d bytes, and artifact.json says %d", a.Path(f), got.SizeBytes, f.SizeBytes)
	case got.SHA256 != f.SHA256:
		return fmt.Errorf("%s has the digest %.12s, and artifact.json says %.12s", a.Path(f), got.SHA256, f.SHA256)
	}
	return nil
}

// Path returns the path of a file of the artifact.
func (a Artifact) Path(f File) string { return filepath.Join(a.dir, f.Name) }

// Dir returns the path of the artifact's folder.
func (a Artifact) Dir() string { return a.dir }

// File returns the first file of a kind, and an error if there is none.
func (a Artifact) File(kind string) (File, error) {
	for _, f := range a.Files {
		if f.Kind == kind {
			return f, nil
		}
	}
	return File{}, fmt.Errorf("%s: no file of kind %q", ArtifactPath(a.dir), kind)
}

// Partition returns the first partition with a use, such as root, and an error if there is none.
func (a Artifact) Partition(use string) (Partition, error) {
	for _, p := range a.Partitions {
		if p.Use == use {
			return p, nil
		}
	}
	return Partition{}, fmt.Errorf("%s: no partition for %q", ArtifactPath(a.dir), use)
}

// Save writes artifact.json into dir, after all other files: an artifact with it is complete.
func (a Artifact) Save(dir string) error {
	return localfile.WriteJSON(ArtifactPath(dir), a, 0o644)
}

// This file loads boards from folders with built files. The user names such a folder instead of a
// board if Slipway builds nothing: its files come from another machine or another build.

// LoadBuilt loads a board by its name as Load does, or takes a folder with built files: one with an
// artifact.json, or bitbake's tmp/deploy/images/MACHINE. A board's name comes before a folder's.
func LoadBuilt(board string) (spec Spec, err error) {
	defer func() { err = asBoardFile(err) }()
	boards, names, err := knownBoards()
	if err != nil {
		return Spec{}, err
	}
	if slices.Contains(names, board) || !isFolderName(board) {
		return Load(board)
	}
	dir, err := filepath.Abs(board)
	if err != nil {
		return Spec{}, err
	}
	spec, err = specOfFolder(boards, names, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return specOfDeployed(boards, names, dir)
	}
	return spec, err
}

// isFolderName reports whether a word names a folder, or nothing and ends with a slash.
func isFolderName(word string) bool {
	info, err := os.Stat(word)
	return err == nil && info.IsDir() || err != nil && strings.HasSuffix(word, "/")
}

// specOfFolder returns the spec of the board that the artifact.json in dir names. That must be one
// of names, the known boards, unless the artifact was built only from project files.
func specOfFolder(boards boardSet, names []string, dir string) (Spec, error) {
	a, err := ReadArtifact(dir)
	if err != nil {
		return Spec{}, err
	}
	spec := Spec{Board: a.Board, Arch: a.Arch, places: map[string]string{"": ArtifactPath(dir)}}
	switch {
	case slices.Contains(names, a.Board):
		spec, err = LoadFrom(boards, a.Board)
	case a.Project == "":
		err = fmt.Errorf("%s: of board %q, which is not known here%s\nnext: boards  # add --boards and the folder of that board to your line", ArtifactPath(dir), a.Board, plaintext.DidYouMean(a.Board, names))
	default:
		spec.project, spec.Project, spec.Flash.Kinds = a.Project, a.Project, kindsOfProject
	}
	spec.folder = dir
	if err == nil {
		spec.state, err = stateDirOf(spec.Board, dir)
	}
	return spec, err
}

// kindsOfProject are the kinds of devices for images of a board without a board.yml.
var kindsOfProject = []string{"file", "block"}

// specOfDeployed returns a spec for bitbake's folder of images: of the board in names with the
// folder's name (the machine), or else without a board.yml. It refuses a folder without images.
func specOfDeployed(boards boardSet, names []string, dir string) (Spec, error) {
	if len(findDeployed(dir)) == 0 {
		return Spec{}, fmt.Errorf("%s: neither %s nor an image of bitbake's is in this folder\nnext: ls %[1]s", dir, ArtifactName)
	}
	machine := filepath.Base(dir)
	if slices.Contains(names, machine) {
		spec, err := LoadFrom(boards, machine)
		spec.deployed = dir
		return spec, err
	}
	spec := Spec{Board: notInName().ReplaceAllString(machine, "-"), deployed: dir, project: dir, places: map[string]string{"": dir}}
	spec.Flash.Kinds = kindsOfProject
	return spec, checkFolderName(spec.Board)
}

// findDeployed returns the kinds and names of the images that bitbake deployed to a folder, without
// block maps. Yocto links a short name to the newest build of an image. If there are such links,
// findDeployed leaves out all other names, which are older builds. An unreadable folder has none.
func findDeployed(dir string) (found []File) {
	entries, _ := os.ReadDir(dir) // what cannot be read has none
	linked := false
	for _, e := range entries {
		for _, end := range Endings {
			if end.Kind != BlockMap && strings.HasSuffix(e.Name(), "."+end.Ending) {
				link := e.Type()&fs.ModeSymlink != 0
				if link && !linked {
					linked, found = true, nil
				}
				if link == linked {
					found = append(found, File{Kind: end.Kind, Name: e.Name()})
				}
			}
		}
	}
	return found
}

// DeployedImage returns the path of the image in the deploy folder that the user named as the
// board, or "" if the user named none. Of the first of kinds that the folder has, it takes the
// ending that Endings lists first. It refuses two different images of that kind, or none of any.
func (s Spec) DeployedImage(kinds ...string) (string, error) {
	if s.deployed == "" {
		return "", nil
	}
	found := findDeployed(s.deployed)
	for _, kind := range kinds {
		names := differentImages(found, kind)
		if len(names) > 1 {
			return "", fmt.Errorf("%s: %d images are in this folder: %s\nnext: repeat the line with --image=%s", s.deployed, len(names), strings.Join(names, ", "), plaintext.Quote(filepath.Join(s.deployed, names[0])))
		}
		if len(names) == 1 {
			return filepath.Join(s.deployed, names[0]), nil
		}
	}
	return "", fmt.Errorf("%s: no image for this device: want %s\nnext: ls %[1]s", s.deployed, strings.Join(kinds, " or "))
}

// buildDate is what bitbake adds to an image's short name: a date, before Yocto 4.3 also .rootfs.
var buildDate = plaintext.Regexp(`-\d{14}(\.rootfs)?\.`)

// differentImages returns one name for each image of a kind, with the ending that Endings lists
// first. It leaves out a dated build if the short name is there, which may be a copied link.
func differentImages(found []File, kind string) (names []string) {
	var stems []string
	for _, e := range Endings {
		for _, f := range found {
			stem, ends := strings.CutSuffix(f.Name, "."+e.Ending)
			short := File{Kind: kind, Name: buildDate().ReplaceAllString(f.Name, ".")}
			older := short != f && slices.Contains(found, short)
			if ends && e.Kind == kind && !older && !slices.Contains(stems, stem) {
				stems, names = append(stems, stem), append(names, f.Name)
			}
		}
	}
	return names
}

// DescribeFile hashes the file dir/name, and returns its entry for artifact.json.
func DescribeFile(ctx context.Context, dir, kind, name string) (File, error) {
	return describeFile(ctx, dir, kind, name, func(int64) {})
}

// describeFile returns a file's kind, name, size and SHA-256 digest. It calls count with the number
// of bytes of each read.
func describeFile(ctx context.Context, dir, kind, name string, count func(int64)) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	entry := File{Kind: kind, Name: name}
	entry.SHA256, err = localfile.Digest(ctx, f, func(n int64) {
		entry.SizeBytes += n
		count(n)
	})
	return entry, err
}

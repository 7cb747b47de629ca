package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

// This file makes boards of folders with built files. Such a folder stands in the place of a
// board's name where nothing is built: it may come from another machine, or from a build that
// Slipway did not run.

// LoadBuilt is Load, and also takes a folder: one with an artifact.json, or bitbake's folder
// of images of a machine (tmp/deploy/images/MACHINE).
func LoadBuilt(board string) (Spec, error) {
	spec, err := loadBuilt(board)
	return spec, asBoardFile(err)
}

func loadBuilt(board string) (Spec, error) {
	boards, err := openBoards()
	if err != nil {
		return Spec{}, err
	}
	names, err := boards.names()
	if err != nil || slices.Contains(names, board) || !isFolderName(board) {
		return firstLoad(board, err)
	}
	dir, err := filepath.Abs(board)
	if err != nil {
		return Spec{}, err
	}
	spec, err := specOfFolder(boards, names, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return specOfDeployed(boards, names, dir)
	}
	return spec, err
}

func firstLoad(board string, err error) (Spec, error) {
	if err != nil {
		return Spec{}, err
	}
	return Load(board)
}

// isFolderName reports whether a word is a folder rather than a board's or a file's name.
func isFolderName(word string) bool {
	info, err := os.Stat(word)
	return err == nil && info.IsDir() || err != nil && strings.HasSuffix(word, "/")
}

// specOfFolder returns the board of the artifact in a folder. Nothing is written there.
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
		spec.project, spec.Flash.Kinds = a.Project, kindsOfProject
	}
	spec.folder = dir
	if err == nil {
		spec.state, err = stateDirOf(spec.Board, dir)
	}
	return spec, err
}

// kindsOfProject are the devices that images of a project file alone are written to.
var kindsOfProject = []string{"file", "block"}

// specOfDeployed returns the board of bitbake's folder of a machine's images: the one that has
// the machine's name, or one without a board.yml. Receipts and reports are written below build/.
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

// findDeployed returns the images in a folder of bitbake's. Yocto links a short name to the
// newest build of an image: where there are links, other names are older builds.
func findDeployed(dir string) (found []image) {
	entries, _ := os.ReadDir(dir) // what cannot be read has none
	linked := false
	for _, e := range entries {
		for _, end := range endings {
			if end.kind != BlockMap && strings.HasSuffix(e.Name(), "."+end.ending) {
				link := e.Type()&fs.ModeSymlink != 0
				if link && !linked {
					linked, found = true, nil
				}
				if link == linked {
					found = append(found, image{kind: end.kind, name: e.Name()})
				}
			}
		}
	}
	return found
}

// DeployedImage returns the path of the image for a kind of device in the folder that stands
// for the board; "" where none does. kinds are kinds of files, the most wanted first.
func (s Spec) DeployedImage(kinds ...string) (string, error) {
	if s.deployed == "" {
		return "", nil
	}
	found := findDeployed(s.deployed)
	for _, kind := range kinds {
		var names []string
		for _, e := range endings { // the most wanted form first
			for _, i := range found {
				if i.kind == kind && e.kind == kind && strings.HasSuffix(i.name, "."+e.ending) {
					names = append(names, i.name)
				}
			}
		}
		if len(names) == 0 {
			continue
		}
		if others := differentImages(names); len(others) > 1 {
			return "", fmt.Errorf("%s: %d images are in this folder: %s\nnext: repeat the line with --image=%s", s.deployed, len(others), strings.Join(others, ", "), plaintext.Quote(filepath.Join(s.deployed, names[0])))
		}
		return filepath.Join(s.deployed, names[0]), nil
	}
	return "", fmt.Errorf("%s: no image for this device: want %s\nnext: ls %[1]s", s.deployed, strings.Join(kinds, " or "))
}

// differentImages leaves out names that differ only in how the image is packed.
func differentImages(names []string) (different []string) {
	var stems []string
	for _, name := range names {
		stem, _, _ := strings.Cut(name, ".")
		if !slices.Contains(stems, stem) {
			stems, different = append(stems, stem), append(different, name)
		}
	}
	return different
}

package starter

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Edit is a marked line of a project's file that only the user can complete.
type Edit struct {
	File string `json:"file"`
	Line int    `json:"line"`
	What string `json:"what"`
}

func (e Edit) String() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.What) }

const (
	mark         = "EDIT ME"
	maxFileBytes = 1 << 20
)

// FindEdits returns the lines with the mark "EDIT ME" in the files.
func FindEdits(files []File) (all []Edit) {
	for _, f := range files {
		for i, line := range plaintext.Lines(f.Text) {
			if _, what, found := strings.Cut(line, mark); found {
				all = append(all, Edit{f.Path, i + 1, plaintext.OneLine(strings.TrimLeft(what, ":, "))})
			}
		}
	}
	return all
}

// ReadProject reads the project's files that Slipway or a CI server reads: boards, suites,
// pipelines and all of ci/. boards is the folder of the project's boards.
func ReadProject(boards string) (files []File, err error) {
	project := filepath.Join(boards, "..") // filepath.Dir is the same folder again where boards is . or ..
	patterns := []string{filepath.Join(boards, "*/board.yml"), filepath.Join(boards, "*/kas.yml")}
	for _, server := range slices.Sorted(maps.Keys(Pipelines)) {
		if at := Pipelines[server][0].Path; filepath.Dir(at) != "ci" {
			patterns = append(patterns, filepath.Join(project, at))
		}
	}
	for _, pattern := range []string{"suites/*.yml", "suites/*.yaml", "ci/*"} {
		patterns = append(patterns, filepath.Join(project, pattern))
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			info, err := os.Stat(name)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			text, err := localfile.Read(name, maxFileBytes)
			if err != nil {
				return nil, err
			}
			files = append(files, File{name, string(text)})
		}
	}
	return files, nil
}

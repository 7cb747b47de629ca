package report

import (
	"os"
	"path/filepath"
	"strings"

	"slipway/images"
	"slipway/layers/plaintext"

	"github.com/google/renameio/v2"
)

// NewLog returns a log with the end of a text, and with the whole text if that is longer.
func NewLog(name, text string) Log {
	l := Log{Name: name, Text: plaintext.CleanTail(text, MaxLogBytes)}
	if len(text) > MaxLogBytes {
		l.Whole = plaintext.Visible(text)
	}
	return l
}

// logFiles returns the glob pattern of writeLogs's files. Other commands have files in that folder.
func logFiles(dir string) string { return filepath.Join(images.LogDir(dir), "smoke-*.txt") }

// writeLogs writes logs that are too long for the report into files beside it, and sets Log.File.
func (r *Report) writeLogs(dir string) error {
	for i := range r.Logs {
		l := &r.Logs[i]
		if l.Whole == "" {
			continue
		}
		file := strings.Replace(logFiles(""), "*", safeName(l.Name), 1)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755); err != nil {
			return err
		}
		if err := renameio.WriteFile(filepath.Join(dir, file), []byte(l.Whole), 0o644); err != nil {
			return err
		}
		l.File = file
	}
	return nil
}

// linkBeside returns the link to a file below dir, or "" if there is no such regular file, as for
// the report of another machine.
func linkBeside(dir, file string) string {
	if info, err := os.Lstat(filepath.Join(dir, file)); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return RelativeLink(file)
}

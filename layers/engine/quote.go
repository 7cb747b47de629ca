package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Quote is for commands that are shown to a person: it leaves plain words alone.
func Quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("@%+:,./_-=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return SingleQuote(s)
}

// SingleQuote makes one word of s for a shell.
func SingleQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// NotHere says that the named file of this machine cannot be read, and where to look
// for it. Errors that are not about a path stay as they are.
func NotHere(name string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return err
	}
	above := filepath.Dir(filepath.Clean(name))
	for _, none := os.Stat(above); none != nil && above != "." && above != "/"; _, none = os.Stat(above) {
		above = filepath.Dir(above)
	}
	return fmt.Errorf("read %q on this machine: %w\nnext: ls %s", name, path.Err, Quote(above))
}

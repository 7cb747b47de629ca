package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/localfile"
)

// This file makes the paths of what Slipway believes without asking: the keys that boards let
// in, the host keys and receipts of flashes. They lie in the user's own folder, which no
// artifact, no pull and no project file can name:
//
//	<StateHome>/boards/<board>-<digest>  StateDir
//	<StateHome>/newest                   flash/evidence's

// StateHome is Slipway's folder below XDG_STATE_HOME, or else below ~/.local/state.
func StateHome() (string, error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // its specification says to ignore such a value
		home, err := os.UserHomeDir()
		if err != nil || !filepath.IsAbs(home) {
			return "", errors.New("no folder for SSH keys and receipts: neither HOME nor XDG_STATE_HOME is an absolute path\nnext: export XDG_STATE_HOME=/path/of/a/folder, then repeat the line")
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "slipway"), nil
}

// StateDir is the folder of a board's keys, host keys and receipts. Boards of the same name in
// other folders have others.
func (o Options) StateDir(s Spec) (string, error) {
	home, err := StateHome()
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(o.BoardDir(s))
	if err != nil {
		return "", err
	}
	here := localfile.NearestFolder(filepath.Join(dir, "x"))
	real, err := filepath.EvalSymlinks(here) // the same folder by another way
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(filepath.Join(real, strings.TrimPrefix(dir, here))))
	return filepath.Join(home, "boards", s.Board+"-"+hex.EncodeToString(sum[:6])), nil
}

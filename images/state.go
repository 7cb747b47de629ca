package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"slipway/images/bitbake"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
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
			return "", errors.New("no folder for SSH keys and receipts: neither HOME nor XDG_STATE_HOME is an absolute path\nnext: export XDG_STATE_HOME=/var/tmp/slipway-state  # then repeat the line")
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "slipway"), nil
}

// StateDir is the folder of a board's keys, host keys and receipts. Boards of the same name in
// other folders have others.
func (o Options) StateDir(s Spec) (string, error) { return stateDirOf(s.Board, o.BoardDir(s)) }

// StateDir is that of the artifact's board.
func (a Artifact) StateDir() (string, error) { return stateDirOf(a.Board, a.dir) }

func stateDirOf(board, boardDir string) (string, error) {
	home, err := StateHome()
	if err != nil {
		return "", err
	}
	dir, err := filepath.Abs(boardDir)
	if err != nil {
		return "", err
	}
	here := localfile.NearestFolder(filepath.Join(dir, "x"))
	real, err := filepath.EvalSymlinks(here) // the same folder by another way
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(filepath.Join(real, strings.TrimPrefix(dir, here))))
	return filepath.Join(home, "boards", board+"-"+hex.EncodeToString(sum[:6])), nil
}

const (
	clientKeyName  = "id_ed25519"
	knownHostsName = "known_hosts"
	receiptName    = "flash.json"
)

// ClientKeyPath is the private key that a flashed board lets in.
func ClientKeyPath(stateDir string) string { return filepath.Join(stateDir, clientKeyName) }

// KnownHostsPath is the file of the host keys that flashes recorded. It may not be there.
func KnownHostsPath(stateDir string) string { return filepath.Join(stateDir, knownHostsName) }

// ReceiptPath is the file that says where the artifact went last.
func ReceiptPath(stateDir string) string { return filepath.Join(stateDir, receiptName) }

// OldState says which files of a board an earlier Slipway kept beside its artifact, where they
// are not read any more: somebody else may have put them there. "": there are none.
func (o Options) OldState(s Spec) string {
	dir, err := o.StateDir(s)
	if err != nil {
		return ""
	}
	var old []string
	for _, name := range []string{clientKeyName, clientKeyName + ".pub", knownHostsName} {
		file := filepath.Join(o.WorkDir(s), name)
		_, here := os.Lstat(file)
		if _, there := os.Lstat(filepath.Join(dir, name)); here == nil && errors.Is(there, fs.ErrNotExist) {
			old = append(old, plaintext.Quote(file))
		}
	}
	if len(old) == 0 {
		return ""
	}
	return fmt.Sprintf("Slipway no longer reads SSH keys in %s; if a flash of yours made them: mkdir -p -m 700 %s && mv %s %[2]s", plaintext.Quote(o.WorkDir(s)), plaintext.Quote(dir), strings.Join(old, " "))
}

// notListed are the names in a board's folder that no artifact can list, in any spelling.
var notListed = []string{
	ArtifactName, bitbake.InputsName, clientKeyName, clientKeyName + ".pub", knownHostsName, receiptName,
	"junit.xml", bitbake.RecordName, bitbake.PageName, "dryrun.json", "dryrun.html", "build.lock", "rig.json", "rig.lock", "transcript.txt",
	"machine", "logs", "metrics", "replaced", "fleet", "ssh", checkoutsName, bitbakeName, reportsName,
}

// CheckFileName refuses names that no file of an artifact can have: those of other places, of
// what Slipway keeps or has kept in a board's folder, and of hidden files.
func CheckFileName(name string) error {
	low := strings.ToLower(name)
	signature := slices.Contains(SignatureEndings, strings.TrimPrefix(low, ArtifactName))
	odd := strings.ContainsFunc(name, func(c rune) bool { return c == '/' || c == utf8.RuneError || !unicode.IsPrint(c) })
	if name == "" || odd || len(name) > 255 || name[0] == '.' || signature || slices.Contains(notListed, low) || strings.HasPrefix(low, "report.") || strings.HasSuffix(low, ".log") {
		return fmt.Errorf("%.80q is no name for a file of an artifact", name)
	}
	return nil
}

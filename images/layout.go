package images

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"slipway/images/bitbake"
	"slipway/layers"
	"slipway/layers/localfile"
)

// Options says where and how to build.
type Options struct {
	Dir     string       // build folder; every board has a folder of its own in it
	Cache   string       // keeps what several boards or builds share; "" is cache/ in Dir
	Locks   string       // the locks of hosts, for all build folders of a machine; "" is fleet.locks/ in Dir
	Fresh   bool         // fetch packages again even if an earlier build has them
	Request BuildRequest // only for boards that bitbake builds
	Install bool         // install missing packages, also for Request.Parse
	// With Offline, Project fails with layers.ErrNotHere for files that are not checked out.
	Offline bool
	// Now is closed when tasks of bitbake that run are not to be waited for once the
	// context has ended. Where it is nil they have a second.
	Now <-chan struct{}
}

// LocksVariable is the environment variable with Options.Locks, a whole path. A station sets it, so
// that its jobs, each with a build folder of its own, do not reach one host at once.
const LocksVariable = "SLIPWAY_LOCKS"

// BuildRequest holds what the user's flags of build change for one run of bitbake.
type BuildRequest struct {
	Targets  []string // instead of the file's
	Task     string   // instead of the file's
	Continue bool     // after a failed task, as far as the others do not need it
	DryRun   bool     // say what would run
	Parse    bool     // read all recipes, no more
}

// This file makes the paths below the build folder:
//
//	<board>/                  BoardDir: the artifact, logs
//	<board>/layers            CheckoutsName: the checkouts
//	<board>/bitbake           BitbakeDir, what bitbake calls TOPDIR
//	<board>/machine           MachineDir: disk, serial line and state of a virtual board
//	<board>/fleet/<command>   FleetDir
//	reports/<board>           ReportDir
//	cache/git, cache/images   mirrors of repositories, ImageCacheDir
//	cache/reports/<store>     ReportCacheDir
//	downloads, sstate-cache   DownloadDir, SstateDir
//	keys                      KeyDir: the key that signs updates
//	fleet.locks/<host>        HostLockPath
//
// Packages images/bitbake and images/cache name downloads and sstate-cache themselves:
// this package imports them. Files inside of a folder stay with the package that writes
// them: report.json with ci/report, disk.img with flash/qemu, rig.json with ci/rig.

// CheckoutsName is the folder of the checkouts of a board's layers, in the board's folder.
const CheckoutsName = "layers"

const (
	bitbakeName = "bitbake"
	reportsName = "reports"
)

// reserved are names in the build folder that no board can have: Slipway and tests use them.
var reserved = []string{reportsName, "cache", "downloads", "sstate-cache", "keys", "fleet.locks", "test", "bin", "release", "peers", "all", "slipway"}

// checkFolderName returns an error for a board's name that is reserved, "." or "..", or has other
// characters than letters, digits and . _ + -.
func checkFolderName(name string) error {
	switch {
	case name == "." || name == ".." || notInName().MatchString(strings.ReplaceAll(name, "+", "-")):
		return fmt.Errorf("%.80q is no name for a board's folder: want letters, digits and . _ + -", name)
	case slices.Contains(reserved, strings.ToLower(name)):
		return fmt.Errorf("no board can have the name %s: Slipway has the folder of that name in its build folder; rename the board", name)
	}
	return nil
}

// BoardDir returns the folder of a board's artifact. An artifact from elsewhere stays in its own
// folder: Slipway reads only the files that its artifact.json lists, and writes nothing.
func (o Options) BoardDir(s Spec) string {
	if s.folder != "" {
		return s.folder
	}
	return filepath.Join(o.Dir, s.Board)
}

// WorkDir returns the folder where Slipway writes a board's logs, virtual machine and fleet
// journals. For an artifact from elsewhere it is StateDir.
func (o Options) WorkDir(s Spec) string {
	own := filepath.Join(o.Dir, s.Board)
	if whole, err := filepath.Abs(own); s.folder == "" || err == nil && s.folder == whole {
		return own
	}
	return s.state
}

// ReportDir is the folder of a board's reports, earlier ones too, and of its metrics.
func (o Options) ReportDir(s Spec) string { return filepath.Join(o.ReportsDir(), s.Board) }

// ReportsDir is the folder of the reports of all boards.
func (o Options) ReportsDir() string { return filepath.Join(o.Dir, reportsName) }

// ReportDirBeside returns the ReportDir of a board, from the path of the board's folder.
func ReportDirBeside(boardDir string) string {
	return filepath.Join(filepath.Dir(boardDir), reportsName, filepath.Base(boardDir))
}

// BitbakeDir is the folder that bitbake builds a board in.
func (o Options) BitbakeDir(s Spec) string { return filepath.Join(o.BoardDir(s), bitbakeName) }

// MachineDir is the folder of a virtual board's disk, serial line and state.
func (o Options) MachineDir(s Spec) string { return filepath.Join(o.WorkDir(s), "machine") }

// FleetDir is the folder of the last run of a fleet's command: its journal and reports.
func (o Options) FleetDir(s Spec, command string) string {
	return filepath.Join(o.WorkDir(s), "fleet", command)
}

// Workspace returns the folders of a board's layers and bitbake build, and of the git mirrors that
// all boards share, with o.Offline.
func (o Options) Workspace(s Spec) layers.Workspace {
	return layers.Workspace{
		Dir: filepath.Join(o.BoardDir(s), CheckoutsName), Mirrors: filepath.Join(o.CacheDir(), "git"), Build: o.BitbakeDir(s), Offline: o.Offline,
	}
}

// boardDirOf returns the folder of the board whose layers are checked out in a workspace.
func boardDirOf(ws layers.Workspace) string { return filepath.Dir(ws.Dir) }

// BitbakeDirOf returns bitbake's build folder for the layers of a workspace.
func BitbakeDirOf(ws layers.Workspace) string { return filepath.Join(boardDirOf(ws), bitbakeName) }

// BuildLockOf returns the path of the lock file of a build that uses the layers of a workspace.
func BuildLockOf(ws layers.Workspace) string { return filepath.Join(boardDirOf(ws), "build.lock") }

// CacheDir is the folder that boards and builds share: o.Cache, or else cache in o.Dir.
func (o Options) CacheDir() string {
	if o.Cache != "" {
		return o.Cache
	}
	return filepath.Join(o.Dir, "cache")
}

// ImageCacheDir is the folder of images that were fetched.
func (o Options) ImageCacheDir() string { return filepath.Join(o.CacheDir(), "images") }

// ReportCacheDir is the folder of the reports that were copied from a store.
func (o Options) ReportCacheDir(store string) string {
	return filepath.Join(o.CacheDir(), "reports", url.PathEscape(store))
}

// DownloadDir is the folder of sources that bitbake fetched.
func (o Options) DownloadDir() string { return filepath.Join(o.Dir, "downloads") }

// SstateDir is the folder of bitbake's shared state.
func (o Options) SstateDir() string { return filepath.Join(o.Dir, "sstate-cache") }

// KeyDir is the folder of the key that signs updates.
func (o Options) KeyDir() string { return filepath.Join(o.Dir, "keys") }

// HostLockPath is the file that a fleet's run locks for a host.
func (o Options) HostLockPath(host string) string {
	return filepath.Join(cmp.Or(o.Locks, filepath.Join(o.Dir, "fleet.locks")), host)
}

// The others are paths in a board's folder.

// ArtifactPath is the file that describes the artifact.
func ArtifactPath(boardDir string) string { return filepath.Join(boardDir, ArtifactName) }

// ImageCacheBeside returns the ImageCacheDir of the build folder that holds a board's folder.
func ImageCacheBeside(boardDir string) string {
	return Options{Dir: filepath.Dir(boardDir)}.ImageCacheDir()
}

// LogPath is the log of a program that was run for the board.
func LogPath(boardDir, program string) string { return filepath.Join(boardDir, program+".log") }

// LogDir is the folder of logs of which each run has its own.
func LogDir(boardDir string) string { return filepath.Join(boardDir, "logs") }

// ReplacedDir is the folder of the partition tables that a flash replaced.
func ReplacedDir(boardDir string) string { return filepath.Join(boardDir, "replaced") }

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

// StateDir returns the folder of a board's keys, host keys and receipts. Its name includes a digest
// of the path of the board's folder, so boards of the same name in other folders have others.
func (o Options) StateDir(s Spec) (string, error) { return stateDirOf(s.Board, o.BoardDir(s)) }

// StateDir returns the folder of keys, host keys and receipts of the artifact's board.
func (a Artifact) StateDir() (string, error) { return stateDirOf(a.Board, a.dir) }

// stateDirOf returns StateDir for a board and its folder. It resolves links in the folder's path,
// so each path to the folder gives the same result.
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

// ClientKeyPath returns the path of the private SSH key that a flashed board accepts.
func ClientKeyPath(stateDir string) string { return filepath.Join(stateDir, clientKeyName) }

// KnownHostsPath returns the path of the host keys that flashes recorded. The file may not exist.
func KnownHostsPath(stateDir string) string { return filepath.Join(stateDir, knownHostsName) }

// ReceiptPath is the file that records the last flash of each device.
func ReceiptPath(stateDir string) string { return filepath.Join(stateDir, receiptName) }

// notListed are the names in a board's folder that no artifact can list, in any spelling.
var notListed = []string{
	ArtifactName, bitbake.InputsName, clientKeyName, clientKeyName + ".pub", knownHostsName, receiptName,
	"junit.xml", bitbake.RecordName, bitbake.PageName, "dryrun.json", "dryrun.html", "build.lock", "rig.json", "rig.lock", "transcript.txt",
	"machine", "logs", "metrics", "replaced", "fleet", "ssh", CheckoutsName, bitbakeName, reportsName,
}

// CheckFileName refuses a name that no file of an artifact can have: "", a path, a hidden file, a
// signature, a log, a report.*, over 255 bytes, unprintable characters, or one of notListed.
func CheckFileName(name string) error {
	low := strings.ToLower(name)
	signature := slices.Contains(SignatureEndings, strings.TrimPrefix(low, ArtifactName))
	odd := strings.ContainsFunc(name, func(c rune) bool { return c == '/' || c == utf8.RuneError || !unicode.IsPrint(c) })
	if name == "" || odd || len(name) > 255 || name[0] == '.' || signature || slices.Contains(notListed, low) || strings.HasPrefix(low, "report.") || strings.HasSuffix(low, ".log") {
		return fmt.Errorf("%.80q is no name for a file of an artifact", name)
	}
	return nil
}

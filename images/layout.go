package images

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers"
)

// This file makes the paths below the build folder:
//
//	<board>/                  BoardDir: the artifact, logs
//	<board>/layers            the checkouts
//	<board>/bitbake           BitbakeDir, what bitbake calls TOPDIR
//	<board>/machine           MachineDir: disk, serial line and state of a virtual board
//	<board>/fleet/<command>   FleetDir
//	reports/<board>           ReportDir
//	cache/git, cache/images   mirrors of repositories, ImageCacheDir
//	cache/reports/<store>     ReportCacheDir
//	downloads, sstate-cache   DownloadDir, SstateDir
//	keys                      the key that signs updates
//	fleet.locks/<host>        HostLockPath
//
// Packages images/bitbake and images/cache name downloads and sstate-cache themselves:
// this package imports them. Files inside of a folder stay with the package that writes
// them: report.json with ci/report, disk.img with flash/qemu, rig.json with ci/rig.

const (
	bitbakeName   = "bitbake"
	checkoutsName = "layers"
	reportsName   = "reports"
)

// reserved are names in the build folder that no board can have: ours, and those of tests,
// releases and pipelines.
var reserved = []string{reportsName, "cache", "downloads", "sstate-cache", "keys", "fleet.locks", "test", "bin", "release", "peers", "all", "slipway"}

// checkFolderName refuses a board's name that is no name of a folder of its own.
func checkFolderName(name string) error {
	switch {
	case name == "." || name == ".." || notInName().MatchString(strings.ReplaceAll(name, "+", "-")):
		return fmt.Errorf("%.80q is no name for a board's folder: want letters, digits and . _ + -", name)
	case slices.Contains(reserved, strings.ToLower(name)):
		return fmt.Errorf("no board can have the name %s: Slipway has the folder of that name in its build folder; rename the board", name)
	}
	return nil
}

// BoardDir is the folder of a board's artifact. That of an artifact from elsewhere is where it
// lies: nothing in it is believed but what artifact.json lists, and nothing is written there.
func (o Options) BoardDir(s Spec) string {
	if s.folder != "" {
		return s.folder
	}
	return filepath.Join(o.Dir, s.Board)
}

// WorkDir is the folder of what Slipway writes about a board besides its artifact: logs, the
// virtual machine, the journals of fleets. That of an artifact from elsewhere is StateDir.
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

// ReportDirBeside is the ReportDir of the build folder that a board's folder is in.
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

// workspace is where a board's layers are checked out. Boards share the mirrors.
func (o Options) workspace(s Spec) layers.Workspace {
	return layers.Workspace{
		Dir: filepath.Join(o.BoardDir(s), checkoutsName), Mirrors: filepath.Join(o.cacheDir(), "git"), Build: o.BitbakeDir(s), Offline: o.Offline,
	}
}

// boardDirOf is the folder of the board whose layers are checked out in a workspace.
func boardDirOf(ws layers.Workspace) string { return filepath.Dir(ws.Dir) }

// BitbakeDirOf is the folder that bitbake builds in with the layers of a workspace.
func BitbakeDirOf(ws layers.Workspace) string { return filepath.Join(boardDirOf(ws), bitbakeName) }

// BuildLockOf is the file that a build locks while it uses the layers of a workspace.
func BuildLockOf(ws layers.Workspace) string { return buildLock(boardDirOf(ws)) }

// cacheDir is the folder of what boards and builds share.
func (o Options) cacheDir() string {
	if o.Cache != "" {
		return o.Cache
	}
	return filepath.Join(o.Dir, "cache")
}

// ImageCacheDir is the folder of images that were fetched.
func (o Options) ImageCacheDir() string { return filepath.Join(o.cacheDir(), "images") }

// ReportCacheDir is the folder of the reports that were copied from a store.
func (o Options) ReportCacheDir(store string) string {
	return filepath.Join(o.cacheDir(), "reports", url.PathEscape(store))
}

// DownloadDir is the folder of sources that bitbake fetched.
func (o Options) DownloadDir() string { return filepath.Join(o.Dir, "downloads") }

// SstateDir is the folder of bitbake's shared state.
func (o Options) SstateDir() string { return filepath.Join(o.Dir, "sstate-cache") }

// keyDir is the folder of the key that signs updates.
func (o Options) keyDir() string { return filepath.Join(o.Dir, "keys") }

// HostLockPath is the file that a fleet's run locks for a host.
func (o Options) HostLockPath(host string) string {
	return filepath.Join(o.Dir, "fleet.locks", host)
}

// The others are paths in a board's folder.

// ArtifactPath is the file that describes the artifact.
func ArtifactPath(boardDir string) string { return filepath.Join(boardDir, ArtifactName) }

// ImageCacheBeside is the ImageCacheDir of the build folder that a board's folder is in.
func ImageCacheBeside(boardDir string) string {
	return Options{Dir: filepath.Dir(boardDir)}.ImageCacheDir()
}

// LogPath is the log of a program that was run for the board.
func LogPath(boardDir, program string) string { return filepath.Join(boardDir, program+".log") }

// LogDir is the folder of logs of which each run has its own.
func LogDir(boardDir string) string { return filepath.Join(boardDir, "logs") }

// ReplacedDir is the folder of the partition tables that a flash replaced.
func ReplacedDir(boardDir string) string { return filepath.Join(boardDir, "replaced") }

func buildLock(boardDir string) string { return filepath.Join(boardDir, "build.lock") }

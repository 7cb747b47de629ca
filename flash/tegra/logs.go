package tegra

import (
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// complaint matches error lines of init-flash.sh, program-boot-device.sh and sgdisk in board logs.
var complaint = plaintext.Regexp(`^ERR: |^Identified [0-9]+ problems|^Problem: |^Export of \S+ failed|\[FAIL\]`)

const (
	logBytes = 16 << 20 // of one log that is kept
	logFiles = 64
)

// keepLogs copies the script's last two logs, and those that the board sent, into the log folder.
func (r *flashRun) keepLogs() {
	for _, path := range newestPaths(r.board.Dir, "log.initrd-flash.", 2) {
		copyLog(path, filepath.Join(r.board.Logs, filepath.Base(path)))
	}
	for _, path := range r.boardLogs() {
		copyLog(path, filepath.Join(r.board.Logs, "device-logs", filepath.Base(path)))
	}
}

// boardLogs returns the log files that the board sent in the last flash, at most logFiles.
func (r *flashRun) boardLogs() []string {
	var files []string
	for _, dir := range newestPaths(r.board.Dir, "device-logs-", 1) {
		files = append(files, listPaths(dir)...)
	}
	return files[:min(len(files), logFiles)]
}

// newestPaths returns the last n paths in a folder whose names begin with prefix and end in a date.
func newestPaths(dir, prefix string, n int) []string {
	paths := slices.DeleteFunc(listPaths(dir), func(path string) bool { return !strings.HasPrefix(filepath.Base(path), prefix) })
	return paths[max(0, len(paths)-n):]
}

// listPaths returns the sorted paths in a folder, none if it cannot be read. It does not use Glob,
// because the folder's name may contain * or [.
func listPaths(dir string) []string {
	entries, _ := os.ReadDir(dir) // as far as it is readable
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

// copyLog copies the last logBytes of a regular file. A lost log is no error of the flash.
func copyLog(from, to string) {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() || os.MkdirAll(filepath.Dir(to), 0o755) != nil {
		return
	}
	if text := localfile.Tail(from, logBytes); len(text) > 0 || info.Size() == 0 {
		_ = os.WriteFile(to, text, 0o644)
	}
}

// unmountBoard unmounts the command disk, which receives commands for the board, if it is mounted.
// It finds the disk by port or sessionID: the board may return on the same connector's faster bus.
func (h Host) unmountBoard(port, session string) error {
	data, err := os.ReadFile(filepath.Join(h.Proc, "self/mountinfo"))
	if err != nil {
		return err
	}
	var wrong []error
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 || !h.isCommandDisk(f[2], port, session) {
			continue
		}
		at := UnescapePath(f[4])
		if err := unix.Unmount(at, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			wrong = append(wrong, fmt.Errorf("%s of the board is still mounted: %w; umount it", at, err))
		}
	}
	return errors.Join(wrong...)
}

// isCommandDisk reports whether the block device number (MAJOR:MINOR) is the command disk of the
// board on port, or of the board with that sessionID.
func (h Host) isCommandDisk(number, port, session string) bool {
	dir, err := filepath.EvalSymlinks(filepath.Join(h.Sys, "dev/block", number))
	if err != nil {
		return false
	}
	said := func(name string) string {
		data, err := localfile.Read(filepath.Join(dir, "device", name), 4096)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	return said("vendor") == "flashpkg" && (strings.Contains(dir, "/"+port+"/") || session != "" && said("model") == session)
}

// sessionID returns the last eight hexadecimal digits of the board's serial number, which are the
// model name of its disks. It returns "" if boardvars.sh, which the scripts write, has no number.
func (r *flashRun) sessionID() string {
	vars, err := readVars(filepath.Join(r.board.Dir, "boardvars.sh"))
	if err != nil {
		return ""
	}
	n, ok := new(big.Int).SetString(vars["serial_number"], 10)
	if !ok {
		return ""
	}
	text := n.Text(16)
	return text[max(0, len(text)-8):]
}

var octal = plaintext.Regexp(`\\[0-7]{3}`)

// UnescapePath decodes the kernel's octal escapes in a path, such as \040 for a space.
func UnescapePath(path string) string {
	return octal().ReplaceAllStringFunc(path, func(s string) string {
		n, err := strconv.ParseUint(s[1:], 8, 8)
		if err != nil {
			return s
		}
		return string([]byte{byte(n)})
	})
}

package tegra

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
)

// complaint is what init-flash.sh and program-boot-device.sh of the board, and sgdisk
// there, say of what went wrong.
var complaint = regexp.MustCompile(`^ERR: |^Identified [0-9]+ problems|^Problem: |^Export of \S+ failed|\[FAIL\]`)

const (
	logBytes = 16 << 20 // of one log that is kept
	logFiles = 64
)

// keepLogs moves what the script left in its folder to where it is kept: its own log,
// and the folder with the board's.
func (r *flashRun) keepLogs() {
	for _, path := range newest(r.board.Dir, "log.initrd-flash.", 2) {
		keep(path, filepath.Join(r.board.Logs, filepath.Base(path)))
	}
	for _, path := range r.boardLogs() {
		keep(path, filepath.Join(r.board.Logs, "device-logs", filepath.Base(path)))
	}
}

// boardLogs are the files that the board sent along.
func (r *flashRun) boardLogs() []string {
	var files []string
	for _, dir := range newest(r.board.Dir, "device-logs-", 1) {
		files = append(files, within(dir)...)
	}
	return files[:min(len(files), logFiles)]
}

// newest are the last of a folder's names that begin like this and end in a date.
func newest(dir, prefix string, n int) []string {
	paths := slices.DeleteFunc(within(dir), func(path string) bool { return !strings.HasPrefix(filepath.Base(path), prefix) })
	return paths[max(0, len(paths)-n):]
}

// within are the paths of what lies in a folder, in order. Its own name may have what
// means something in a pattern.
func within(dir string) []string {
	entries, _ := os.ReadDir(dir) // what can be read of it
	var paths []string
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

// keep copies a log as far as it can: a flash is not worth less for it.
func keep(from, to string) {
	info, err := os.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	in, err := os.Open(from)
	if err != nil {
		return
	}
	defer in.Close()
	if os.MkdirAll(filepath.Dir(to), 0o755) != nil {
		return
	}
	out, err := os.Create(to)
	if err != nil {
		return
	}
	defer out.Close()
	_, _ = io.Copy(out, io.LimitReader(in, logBytes))
}

// release unmounts what a script that was cut off left mounted of a board: its command
// disk, by udisks or by itself. The board is told by its port or, as it may come back
// on the faster bus of the same socket, by its session.
func (h Host) release(port, session string) error {
	data, err := os.ReadFile(filepath.Join(h.Proc, "self/mountinfo"))
	if err != nil {
		return err
	}
	var wrong []error
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 || !h.commandDisk(f[2], port, session) {
			continue
		}
		at := unescaped(f[4])
		if err := unix.Unmount(at, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			wrong = append(wrong, fmt.Errorf("%s of the board is still mounted: %w; umount it", at, err))
		}
	}
	return errors.Join(wrong...)
}

// commandDisk says whether a block device, by its number, is a board's.
func (h Host) commandDisk(number, port, session string) bool {
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

// session is what the board's disks are named by: the end of its serial number, which
// the scripts leave in a file once they have read it.
func (r *flashRun) session() string {
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

var octal = regexp.MustCompile(`\\[0-7]{3}`)

// unescaped is a path as the kernel means it: it writes a space as \040.
func unescaped(path string) string {
	return octal.ReplaceAllStringFunc(path, func(s string) string {
		n, err := strconv.ParseUint(s[1:], 8, 8)
		if err != nil {
			return s
		}
		return string([]byte{byte(n)})
	})
}

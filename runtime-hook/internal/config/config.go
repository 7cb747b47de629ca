// Package config reads the board's settings from /etc/slipway/hook.toml, over the defaults.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/regular"
)

// File is where a board keeps its settings.
const File = "/etc/slipway/hook.toml"

// maxBytes limits the file. All keys with their comments take a small part of it.
const maxBytes = 64 << 10

// Config holds the board's settings, or the defaults.
type Config struct {
	CSVDir       string   `toml:"csv-dir"`
	Ignore       []string `toml:"ignore"`                                                 // patterns of listed files that containers do not get
	CompatDir    string   `toml:"compat-dir"`                                             // where images have CUDA driver libraries; Auto, or "" for nowhere
	Devices      bool     `toml:"devices"`                                                // containers get device nodes
	VolumeMounts bool     `toml:"accept-nvidia-visible-devices-as-volume-mounts"`         // containers may name devices by mounts
	Variable     bool     `toml:"accept-nvidia-visible-devices-envvar-when-unprivileged"` // containers that are not privileged may name devices in their environment
	Log          Log      `toml:"log"`
	Runtime      Runtime  `toml:"runtime"`
	CDI          CDI      `toml:"cdi"`
}

// Errors of go-toml name these types.
type (
	Log struct {
		File string `toml:"file"` // "" for none
	}
	Runtime struct {
		Runtimes []string `toml:"runtimes"` // names or paths; slipway-runtime uses the first that the board has
	}
	CDI struct {
		Version string `toml:"version"` // of CDI specs; "" for the oldest that has all needed fields
	}
)

// Defaults returns the settings of a board without a file.
func Defaults() Config {
	c := Config{CSVDir: csv.Dir, Devices: true, Variable: true, CompatDir: Auto}
	c.Log.File = "/run/slipway/hook.log"
	c.Runtime.Runtimes = []string{"runc", "crun"}
	return c
}

// Auto is a value for which the hook finds the setting on the board.
const Auto = "auto"

// Fault is one error in the file.
type Fault struct {
	File string
	Line int // 0 for the file as a whole
	Why  string
}

// Faults are all errors in the file; at least one.
type Faults []Fault

// Error returns the first fault, with the next step.
func (f Faults) Error() string {
	at, fix := f[0].File, "fix it"
	if f[0].Line > 0 {
		at, fix = fmt.Sprintf("%s:%d", at, f[0].Line), "correct or delete this line"
	}
	return fmt.Sprintf("%s: %s; next: %s, or remove the file for the defaults", at, f[0].Why, fix)
}

// Read reads the settings of the board at root. Without a file or with Faults, they are Defaults.
func Read(root string) (Config, error) {
	file := filepath.Join(root, File)
	data, err := readTrusted(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Defaults(), nil
	}
	if err != nil {
		return Defaults(), Faults{{File: file, Why: err.Error()}}
	}
	c, faults := parseTOML(data)
	for i := range faults {
		faults[i].File = file
	}
	if len(faults) > 0 {
		return Defaults(), faults
	}
	return c, nil
}

// readTrusted reads the file if it is regular, its owner isTrusted, and only that can write it.
func readTrusted(file string) ([]byte, error) {
	data, info, err := regular.Read(file, maxBytes)
	switch {
	case err != nil:
		return nil, withoutPath(err)
	case info.Mode().Perm()&0o022 != 0:
		return nil, errors.New("others than its owner may write to it and so choose what containers get; chmod go-w it")
	case !isTrusted(info):
		return nil, errors.New("it belongs to another user than root; chown it to root")
	}
	return data, nil
}

// withoutPath returns err without the file's name, which the Fault contains.
func withoutPath(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// nobody is the user id that a hook in a user namespace sees for the board's root.
const nobody = 65534

// isTrusted reports whether our user or the board's root (nobody in a user namespace) owns it.
func isTrusted(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return false
	case stat.Uid == 0 || int(stat.Uid) == os.Getuid():
		return true
	}
	return stat.Uid == nobody && inUserNamespace()
}

func inUserNamespace() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

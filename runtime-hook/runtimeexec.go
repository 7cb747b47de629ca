package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// loopVariable marks the environment of a runtime that this program became. If that
// runtime starts this program again, the loop would never end.
const loopVariable = "SLIPWAY_RUNTIME"

// execRuntime becomes the first of the runtimes that is installed, with args. It returns only if
// that fails, or if a runtime that it became has called this program again.
func execRuntime(runtimes, args []string) error {
	if from, ok := os.LookupEnv(loopVariable); ok {
		return fmt.Errorf("%s leads back to slipway-runtime: name runc or crun as the runtime behind it", from)
	}
	program, err := findRuntime(runtimes, os.Getenv("PATH"))
	if err != nil {
		return err
	}
	argv := append([]string{program}, args...)
	err = unix.Exec(program, argv, append(os.Environ(), loopVariable+"="+program))
	return fmt.Errorf("run %s: %w", program, err)
}

// defaultPath is the PATH of an engine that sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findRuntime returns the path of the first of the runtimes that is an executable and not this
// program. It looks for plain names in path, a PATH, or in defaultPath if that is "".
func findRuntime(runtimes []string, path string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("/proc is needed and not usable: %w", err)
	}
	if path == "" {
		path = defaultPath
	}
	for _, name := range runtimes {
		for _, p := range candidatePaths(name, path) {
			info, err := os.Stat(p)
			if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 && !os.SameFile(info, self) {
				return p, nil
			}
		}
	}
	return "", errors.New("found none of " + strings.Join(runtimes, ", ") + " other than this program: install one, in PATH (" + path + ")")
}

// candidatePaths returns a name's paths in the absolute folders of PATH; only name if it has a /.
func candidatePaths(name, path string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var all []string
	for _, dir := range filepath.SplitList(path) {
		// Files in the working folder are the bundle's.
		if filepath.IsAbs(dir) {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

// Report tries to append an error line to the --log file, if any. Engines show that, not stderr.
func (c runtimeCall) Report(line string) {
	if c.Log == "" {
		return
	}
	// O_NONBLOCK: a pipe without a reader must not block.
	f, err := os.OpenFile(c.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	if c.JSON {
		data, _ := json.Marshal(map[string]string{"level": "error", "msg": line, "time": time.Now().Format(time.RFC3339)})
		line = string(data)
	}
	fmt.Fprintln(f, line)
}

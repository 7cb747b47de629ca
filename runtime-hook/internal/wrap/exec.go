package wrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// passed marks the environment of a runtime that this program became: should that
// lead back here, it would do so for ever.
const passed = "SLIPWAY_RUNTIME"

// Exec becomes the first of the runtimes that is installed, with args. It returns
// only where that fails. A name without a slash is looked for in PATH.
func Exec(runtimes, args []string) error {
	if from, ok := os.LookupEnv(passed); ok {
		return fmt.Errorf("%s leads back to slipway-runtime: name runc or crun as the runtime behind it", from)
	}
	program, err := find(runtimes, os.Getenv("PATH"))
	if err != nil {
		return err
	}
	argv := append([]string{program}, args...)
	err = unix.Exec(program, argv, append(os.Environ(), passed+"="+program))
	return fmt.Errorf("run %s: %w", program, err)
}

// usual is where programs are for an engine that gives no PATH.
const usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func find(runtimes []string, path string) (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("/proc is needed and not usable: %w", err)
	}
	if path == "" {
		path = usual
	}
	for _, name := range runtimes {
		for _, p := range candidates(name, path) {
			info, err := os.Stat(p)
			if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 && !os.SameFile(info, self) {
				return p, nil
			}
		}
	}
	return "", errors.New("found none of " + strings.Join(runtimes, ", ") + " other than this program: install one, in PATH (" + path + ")")
}

func candidates(name, path string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var all []string
	for _, dir := range filepath.SplitList(path) {
		// What lies in the working folder is the bundle's.
		if filepath.IsAbs(dir) {
			all = append(all, filepath.Join(dir, name))
		}
	}
	return all
}

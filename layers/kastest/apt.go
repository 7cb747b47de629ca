package kastest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// modulesIn is the folder of kas's modules in the package. The cache keeps one kas: delete the
// cache to get a newer one.
const modulesIn = "usr/lib/python3/dist-packages"

// A machine without network finds that out once, not with every test.
var missing struct {
	sync.Mutex
	err error
}

// testingModules returns the folder of the Python modules of Debian testing's kas. It remembers
// ErrMissing, so that later tests do not try to download again.
func testingModules(ctx context.Context) (modules string, err error) {
	missing.Lock()
	defer missing.Unlock()
	if missing.err == nil {
		modules, err = unpackKas(ctx)
	}
	if errors.Is(err, ErrMissing) {
		missing.err = err
	}
	return modules, cmp.Or(missing.err, err)
}

// unpackKas returns the folder of kas's modules in the user's cache, and downloads them once.
func unpackKas(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "slipway", "kas-testing")
	modules := filepath.Join(cache, modulesIn)
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(cache), ".kas-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	if err := downloadKas(ctx, work, root); err != nil {
		return "", err
	}
	if err := os.Rename(root, cache); err != nil && !localfile.Exists(modules) { // another run may have been first
		return "", err
	}
	return modules, nil
}

// downloadKas downloads the package kas with apt-get, which checks the signatures, and unpacks it.
// apt uses folders below work, so this needs no root and changes nothing else.
func downloadKas(ctx context.Context, work, into string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	source, err := testingSource()
	if err != nil {
		return err
	}
	list := filepath.Join(work, "sources.list")
	if err := os.WriteFile(list, []byte(source), 0o644); err != nil {
		return err
	}
	for _, dir := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return err
		}
	}
	apt := []string{
		"apt-get", "-q", "-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State=" + filepath.Join(work, "state"), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache=" + filepath.Join(work, "cache"),
		"-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=15", "-o", "Acquire::https::Timeout=15",
	}
	for _, args := range [][]string{{"update"}, {"download", "kas"}} {
		if err := run.Run(ctx, run.Command{Argv: slices.Concat(apt, args), Dir: work}); err != nil {
			return fmt.Errorf("%w: apt cannot download testing's: %w", ErrMissing, err)
		}
	}
	debs, err := filepath.Glob(filepath.Join(work, "kas_*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt downloaded %q instead of one package", debs)
	}
	return run.Run(ctx, run.Command{Argv: []string{"dpkg-deb", "-x", debs[0], into}})
}

// testingSource returns apt's line for Debian's testing suite, from the archive of this machine.
func testingSource() (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		return "", err
	}
	suite := readVariable(string(release), "VERSION_CODENAME")
	for _, name := range append([]string{"/etc/apt/sources.list"}, files...) {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // most machines have one kind of file only
		}
		if uri := findArchive(string(data), suite); uri != "" {
			return "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + uri + " testing main\n", nil
		}
	}
	return "", fmt.Errorf("%w: apt's sources name no archive of Debian %s to take the testing suite from", ErrMissing, suite)
}

// readVariable returns the value of a line NAME=VALUE, without quotes, or "".
func readVariable(file, name string) string {
	for line := range strings.Lines(file) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return strings.Trim(value, `"'`)
		}
	}
	return ""
}

// findArchive returns the address of the archive that has a suite's main, in one of apt's source
// files, in the one-line or the deb822 format, or "".
func findArchive(file, suite string) string {
	for paragraph := range strings.SplitSeq(file, "\n\n") {
		fields := map[string][]string{}
		for line := range strings.Lines(paragraph) {
			name, value, _ := strings.Cut(line, ":")
			fields[strings.ToLower(strings.TrimSpace(name))] = strings.Fields(value)
			if uri := findArchiveInLine(line, suite); uri != "" {
				return uri
			}
		}
		if uris := fields["uris"]; len(uris) > 0 && slices.Contains(fields["suites"], suite) && slices.Contains(fields["components"], "main") {
			return uris[0]
		}
	}
	return ""
}

// findArchiveInLine returns the archive of a suite in a "deb" line of sources.list, or "".
func findArchiveInLine(line, suite string) string {
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != "deb" {
		return ""
	}
	words = words[1:]
	if len(words) > 0 && strings.HasPrefix(words[0], "[") {
		for len(words) > 1 && !strings.HasSuffix(words[0], "]") {
			words = words[1:]
		}
		words = words[1:]
	}
	if len(words) > 2 && words[1] == suite && slices.Contains(words[2:], "main") {
		return words[0]
	}
	return ""
}

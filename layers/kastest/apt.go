package kastest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// modulesIn is the folder of kas's modules in the package. Delete the cache to get a newer kas.
const modulesIn = "usr/lib/python3/dist-packages"

// testingModules returns the folder of the Python modules of Debian testing's kas. It remembers an
// error: a machine without network finds that out once, not with every test.
var testingModules = sync.OnceValues(func() (string, error) { return cachedModules(context.Background()) })

// cachedModules returns the folder of kas's modules in the user's cache, and downloads them once.
func cachedModules(ctx context.Context) (string, error) {
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
	source, err := testingSource(ctx)
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

// testingSource returns the sources.list line of Debian's testing suite, in this machine's archive.
func testingSource(ctx context.Context) (string, error) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	suite := plaintext.Properties(string(release))["VERSION_CODENAME"]
	out, err := run.Output(ctx, run.Command{Argv: []string{
		"apt-get", "indextargets", "--format", "$(REPO_URI)", "Release: " + suite, "Component: main", "Created-By: Packages",
	}})
	if err != nil {
		return "", err
	}
	uri, _, _ := strings.Cut(string(out), "\n")
	if uri == "" {
		return "", fmt.Errorf("%w: apt has no list of an archive of Debian %s, to take the testing suite from it: apt-get update", ErrMissing, suite)
	}
	return "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + uri + " testing main\n", nil
}

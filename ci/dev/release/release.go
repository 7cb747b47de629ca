// Package release turns a commit of this repository into the files that users fetch: programs,
// Debian packages, bills of material, and a signed list of digests. The same
// commit, version and release of Go give the same bytes.
package release

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash/trust"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Options say what to release, and how.
type Options struct {
	Root     string // of the repository
	Out      string // the folder that gets one folder for each version
	Key      string // the file of the key; "" is what KeyVariable names
	Unsigned bool
}

// KeyVariable is the environment variable with the path of the key, if Options.Key is "".
const KeyVariable = "SLIPWAY_SIGNING_KEY"

// findKey returns the path of the signing key, which must exist: o.Key or the environment's
// KeyVariable, but "" with o.Unsigned. None of these is an error, and so is o.Key with o.Unsigned.
func (o Options) findKey() (string, error) {
	path := cmp.Or(o.Key, os.Getenv(KeyVariable))
	switch {
	case o.Unsigned && o.Key != "":
		return "", errors.New("sign the release: both --key and --unsigned are given\nnext: repeat the line without --unsigned")
	case o.Unsigned:
		return "", nil
	case path == "":
		return "", fmt.Errorf("sign the release: neither --key nor %s names a key; --unsigned tries it without one\nnext: ls -l ~/.ssh  # then name a key of yours by --key", KeyVariable)
	}
	_, err := os.Stat(path)
	return path, localfile.ExplainUnreadable(path, err)
}

// architectures are the architectures for which Slipway is released.
var architectures = []string{"amd64", "arm64"}

// Make makes all files of a release in a folder of o.Out and lists them. The folder appears as a
// whole, and replaces an earlier one of the same version.
func Make(ctx context.Context, w io.Writer, o Options) error {
	key, err := o.findKey()
	if err != nil {
		return err
	}
	folder, err := makeFolder(ctx, o, key)
	if err != nil {
		return err
	}
	return show(w, folder, key)
}

// makeFolder clones, builds, packs and signs the release, and returns its folder.
func makeFolder(ctx context.Context, o Options, key string) (string, error) {
	out, err := filepath.Abs(o.Out) // git and go run in other folders
	if err != nil {
		return "", err
	}
	if err := localfile.MkdirAll(out); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(out, ".work-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	c, err := prepareCommit(ctx, o, filepath.Join(work, "source"))
	if err != nil {
		return "", err
	}
	programs, err := c.build(ctx, filepath.Join(work, "programs"))
	if err != nil {
		return "", err
	}
	p, err := c.collect(ctx, programs)
	if err != nil {
		return "", err
	}
	files, err := p.pack(ctx)
	if err != nil {
		return "", err
	}
	from := filepath.Join(work, "files")
	if err := writeFiles(from, files); err != nil {
		return "", err
	}
	if err := sign(ctx, from, key); err != nil {
		return "", err
	}
	return publish(from, filepath.Join(o.Out, p.version))
}

// product is everything that goes into the packages of a release.
type product struct {
	commit
	programs map[string]program // by architecture
	docs     []file             // completions and licences, where a tar archive has them
	licences map[string]string  // of the linked modules
}

// collect takes the version from a program, and gathers completions and licences for the packages.
func (c commit) collect(ctx context.Context, programs map[string]program) (product, error) {
	p := product{commit: c, programs: programs}
	p.version = programs[architectures[0]].version()
	for _, step := range []func(context.Context) error{p.addCompletions, p.addLicences} {
		if err := step(ctx); err != nil {
			return p, err
		}
	}
	slices.SortFunc(p.docs, comparePaths)
	return p, nil
}

// number returns the version without its v, as file names have it.
func (p product) number() string { return strings.TrimPrefix(p.version, "v") }

// pack returns the files of the release by name: archives, packages and bills of materials.
func (p product) pack(ctx context.Context) (map[string][]byte, error) {
	files := map[string][]byte{}
	err := progress.Run(ctx, "pack", func(s *progress.Step) (string, error) {
		for _, arch := range architectures {
			base := "slipway_" + p.number() + "_linux_" + arch
			for name, make := range map[string]func() ([]byte, error){
				base + ".tar.gz":   func() ([]byte, error) { return p.packTar(base, arch) },
				base + ".cdx.json": func() ([]byte, error) { return p.billOfMaterials(arch) },
				"slipway_" + p.number() + "_" + arch + ".deb": func() ([]byte, error) { return p.packDeb(arch) },
			} {
				s.Detail(name)
				data, err := make()
				if err != nil {
					return "", fmt.Errorf("make %s: %w", name, err)
				}
				files[name] = data
			}
		}
		return fmt.Sprintf("%d files", len(files)), nil
	})
	return files, err
}

// writeFiles adds SHA256SUMS to files and writes them all to a new folder.
func writeFiles(folder string, files map[string][]byte) error {
	var sums bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
	}
	files[trust.SumsName] = sums.Bytes()
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// sign signs the folder's SHA256SUMS, as SHA256SUMS.sig, with the key in the file key, unless "".
func sign(ctx context.Context, folder, key string) error {
	if key == "" {
		return nil
	}
	_, err := run.Output(ctx, run.Command{Argv: []string{"ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, filepath.Join(folder, trust.SumsName)}})
	return err
}

// publish renames the folder from to the path to, and returns that. A folder that is at to already
// is moved to from.
func publish(from, to string) (string, error) {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(from, to)
	}
	if err != nil {
		return "", fmt.Errorf("move the release to %s: %w", to, err)
	}
	return to, nil
}

// show writes the sizes and paths of the files, and the signing key's path (unsigned if it is "").
func show(w io.Writer, folder string, key string) error {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			fmt.Fprintf(w, "%10d  %s\n", info.Size(), filepath.Join(folder, e.Name()))
		}
	}
	if key == "" {
		fmt.Fprintln(w, "unsigned: nobody can verify these files")
		return err
	}
	fmt.Fprintf(w, "signed by %s\n", key)
	return err
}

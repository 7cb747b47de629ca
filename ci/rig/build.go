package rig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Build builds the layers of a rig's root, the lowest first: the userland of Debian packages, then
// one layer for each source in board.yml. It returns their folders. A folder's name has a digest of
// its inputs, so unchanged layers are not built again.
func Build(ctx context.Context, spec images.Spec, opt images.Options) ([]string, error) {
	dir, err := filepath.Abs(opt.BoardDir(spec))
	if err != nil {
		return nil, err
	}
	if err := checkGiven(spec); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	opt.Dir = filepath.Dir(dir)
	var layers []string
	err = progress.Run(ctx, "userland", func(step *progress.Step) (string, error) {
		userland, err := builder.Userland(ctx, step, spec, opt)
		layers = append(layers, userland)
		return fmt.Sprintf("Debian %s, %d packages asked for", spec.Debian.Suite, len(spec.Debian.Packages)), err
	})
	if err != nil {
		return layers, err
	}
	return buildOn(ctx, spec, dir, layers)
}

// checkGiven checks that the folders which the user names in environment variables exist.
func checkGiven(spec images.Spec) error {
	for _, source := range spec.Rig.Source {
		if _, err := givenFolder(source); err != nil {
			return err
		}
	}
	return nil
}

// buildOn makes one folder (a file system layer) for each source in board.yml, in order, on top of
// the folders before it. It returns the given folders and the new ones, the lowest first.
func buildOn(ctx context.Context, spec images.Spec, dir string, layers []string) ([]string, error) {
	for _, source := range spec.Rig.Source {
		script, err := spec.File(source.Script)
		if err != nil {
			return layers, err
		}
		made, err := build{spec, source, dir, slices.Clone(layers), script}.buildLayer(ctx)
		if err != nil {
			return layers, err
		}
		layers = append(layers, made)
	}
	return layers, nil
}

// build is the build of one layer.
type build struct {
	spec   images.Spec
	source images.RigSource
	dir    string
	below  []string
	script []byte
}

// buildLayer builds the layer of one source, or finds one with its digest, and returns its path.
func (b build) buildLayer(ctx context.Context) (string, error) {
	step := progress.Start(ctx, b.source.Name, 0, "")
	key, err := b.layerKey(ctx)
	if err != nil {
		step.End("", err)
		return "", err
	}
	made := filepath.Join(b.dir, b.source.Name+"-"+key)
	if _, err := os.Stat(made); err == nil {
		step.Reuse("nothing changed")
		return made, nil
	}
	err = b.makeLayer(ctx, step, made)
	step.End("built from source", err)
	return made, err
}

// layerKey returns 12 digits of a digest of a layer's script, files, givenFolder and layers below.
func (b build) layerKey(ctx context.Context) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q\n", b.script, b.below)
	for _, from := range b.source.From {
		fmt.Fprintf(h, "%q\n", from)
		if err := hashTree(ctx, h, from); err != nil {
			return "", fmt.Errorf("%w; the rig is built from the sources, in the clone", err)
		}
	}
	dir, err := givenFolder(b.source)
	if err == nil && dir != "" {
		err = hashTree(ctx, h, dir)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], err
}

// givenFolder returns the absolute path of the folder that the environment variable source.Given
// names, or "" if it is not set. It refuses what is no folder.
func givenFolder(source images.RigSource) (string, error) {
	dir := os.Getenv(source.Given)
	if source.Given == "" || dir == "" {
		return "", nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no folder", dir)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w; name a folder, or leave the variable out", source.Given, err)
	}
	return filepath.Abs(dir)
}

// hashTree writes paths, contents, links and execute bits below dir, except .git, to h.
func hashTree(ctx context.Context, h hash.Hash, dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		if err == nil && d.Type() == fs.ModeSymlink {
			to, err := os.Readlink(path)
			fmt.Fprintf(h, "%q -> %q\n", path, to)
			return err
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		sum, err := localfile.Digest(ctx, f, nil)
		fmt.Fprintf(h, "%q %t %s\n", path, info.Mode()&0o111 != 0, sum)
		return err
	})
}

// makeLayer runs the script with temporary folders, removes older layers of the same source, and
// renames the result to made.
func (b build) makeLayer(ctx context.Context, step *progress.Step, made string) error {
	part, work := filepath.Join(b.dir, b.source.Name+".part"), filepath.Join(b.dir, b.source.Name+".work")
	defer os.RemoveAll(part)
	defer os.RemoveAll(work)
	for _, dir := range []string{part, work} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := b.runScript(ctx, step, part, work); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(b.dir, b.source.Name+"-????????????"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return os.Rename(part, made)
}

// runScript runs the source's script in namespaces, with b.below as root, output to a log, and this
// machine's network only if source.Network is set. The script finds sources read-only in /source,
// works in /build (work), and writes to /made (part).
func (b build) runScript(ctx context.Context, step *progress.Step, part, work string) error {
	file := filepath.Join(work, "script")
	if err := os.WriteFile(file, b.script, 0o644); err != nil {
		return err
	}
	binds := []bind{{part, "/made", true}, {work, "/build", true}}
	for _, from := range b.source.From {
		whole, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		binds = append(binds, bind{whole, filepath.Join("/source", filepath.Base(from)), false})
	}
	if dir, err := givenFolder(b.source); err != nil {
		return err
	} else if dir != "" {
		binds = append(binds, bind{dir, "/source/given", false})
	}
	log, err := os.Create(filepath.Join(b.dir, b.source.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m, err := newNamespaces(ctx, root{layers: b.below, at: mountPoint(b.dir), binds: binds, network: b.source.Network, name: b.spec.Board})
	if err != nil {
		return err
	}
	err = m.runProgram(ctx, run.Command{
		Argv: []string{"/bin/sh", "-eu", "/build/script"}, Dir: "/build", Unset: variablesToUnset(),
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/build", "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"},
		Line: func(line string) {
			fmt.Fprintln(log, line)
			step.Detail(plaintext.OneLine(line))
		},
	})
	m.close()
	if err != nil {
		return fmt.Errorf("build %s: %w\n  full log: %s", b.source.Name, err, log.Name())
	}
	return nil
}

// variablesToUnset returns the names of all environment variables except for those of proxies. They
// name folders outside of the root, or could change what is built.
func variablesToUnset() (names []string) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasSuffix(strings.ToLower(name), "_proxy") {
			names = append(names, name)
		}
	}
	return names
}

// mountPoint returns the folder where roots are mounted. Outside of the namespaces it stays empty.
func mountPoint(dir string) string { return filepath.Join(dir, "root") }

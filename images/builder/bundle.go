package builder

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

const (
	bundleName    = "update.raucb"
	bundleContent = "bundle"         // folder of a board whose files go into its bundle
	bundleImage   = "root.ext4"      // what the manifest calls the root file system
	versionMark   = "@VERSION@"      // what it has in the place of the version
	versionTime   = "20060102150405" // of the build, as one number that grows
)

// squashfsOptions make a bundle in 10 s where RAUC's own, gzip at its best, take 70.
// Small blocks, because whoever streams a bundle fetches whole ones.
const squashfsOptions = "-comp zstd -Xcompression-level 3 -b 32k"

// bundling changes whenever the code below makes another bundle of the same artifact.
const bundling = 1

// withBundle adds an update bundle with the root file system, signed by s, to an artifact, unless
// the artifact has one of the same key. The RAUC in the board's own packages makes the bundle,
// because the board's RAUC must be able to read it.
func withBundle(ctx context.Context, spec images.Spec, opt images.Options, a images.Artifact, s signing) (images.Artifact, error) {
	step := progress.Start(ctx, "bundle", 0, "")
	key, err := bundleKey(a, s)
	if err != nil {
		step.End("", err)
		return a, err
	}
	if f, err := a.File(images.Bundle); err == nil && f.Key == key {
		step.Reuse("nothing changed")
		return a, nil
	}
	a, err = bundle{spec, opt, s, a, step}.makeBundle(ctx, key)
	step.End(bundleName, err)
	return a, err
}

// bundleKey returns a hash of the artifact's key, the certificate and the code that makes bundles.
func bundleKey(a images.Artifact, s signing) (string, error) {
	cert, err := localfile.Read(s.cert, maxPEMBytes)
	if err != nil {
		return "", err
	}
	return hashOf([]any{bundling, squashfsOptions, a.Key, fmt.Sprintf("%x", sha256.Sum256(cert))}, nil)
}

type bundle struct {
	spec     images.Spec
	opt      images.Options
	signing  signing
	artifact images.Artifact
	step     *progress.Step
}

// makeBundle makes the bundle in a work folder, moves it into the artifact's folder and lists it in
// artifact.json, with key, the hash of what it was made from.
func (b bundle) makeBundle(ctx context.Context, key string) (images.Artifact, error) {
	a := b.artifact
	work, err := os.MkdirTemp(a.Dir(), workPrefix)
	if err != nil {
		return a, err
	}
	defer removeTree(ctx, work)
	content := filepath.Join(work, "content")
	if err := b.fillContent(ctx, content); err != nil {
		return a, err
	}
	if err := b.runRAUC(ctx, work, content); err != nil {
		return a, err
	}
	f, err := images.DescribeFile(ctx, work, images.Bundle, bundleName)
	if err != nil {
		return a, err
	}
	if err := syncFile(filepath.Join(work, bundleName)); err != nil {
		return a, err
	}
	f.Key = key
	return b.publishBundle(ctx, work, f)
}

// publishBundle replaces the last bundle with f in work. Until then, artifact.json lists no bundle.
func (b bundle) publishBundle(ctx context.Context, work string, f images.File) (images.Artifact, error) {
	a, tools := b.artifact, toolVersions(ctx, HostPackages(b.spec, ""))
	a.Files = slices.DeleteFunc(slices.Clone(a.Files), func(f images.File) bool { return f.Kind == images.Bundle })
	if err := a.Publish(ctx, b.spec, tools); err != nil {
		return a, err
	}
	if err := os.Rename(filepath.Join(work, f.Name), filepath.Join(a.Dir(), f.Name)); err != nil {
		return a, err
	}
	a.Files = append(a.Files, f)
	return a, a.Publish(ctx, b.spec, tools)
}

// fillContent writes the content of the bundle into a folder: the board's files in bundle/, with
// the version filled in and mode 0755, and the root file system from the disk image. A folder in
// bundle/ is an error.
func (b bundle) fillContent(ctx context.Context, content string) error {
	if err := os.Mkdir(content, 0o755); err != nil {
		return err
	}
	version := b.artifact.Built.UTC().Format(versionTime) + "+" + shortKey(b.artifact.Key)
	for _, name := range slices.Sorted(maps.Keys(b.spec.Files())) {
		inside, ok := strings.CutPrefix(name, bundleContent+"/")
		if !ok {
			continue
		}
		if strings.Contains(inside, "/") {
			return fmt.Errorf("%s: a bundle has no folders", filepath.Join(filepath.Dir(b.spec.BoardFile()), name))
		}
		text := strings.ReplaceAll(string(b.spec.Files()[name]), versionMark, version)
		if err := os.WriteFile(filepath.Join(content, inside), []byte(text), 0o755); err != nil {
			return err
		}
	}
	b.step.Detail("copying the root file system")
	return b.copyRoot(ctx, filepath.Join(content, bundleImage))
}

// copyRoot copies the root partition of the disk image to a sparse file. A short image is an error.
func (b bundle) copyRoot(ctx context.Context, to string) error {
	disk, err := b.artifact.File(images.DiskImage)
	if err != nil {
		return err
	}
	p, err := b.artifact.Partition(images.UseRoot)
	if err != nil {
		return err
	}
	if err := run.Run(ctx, run.Command{Argv: []string{
		"dd", "if=" + b.artifact.Path(disk), "of=" + to, "bs=1M", "conv=sparse", "status=none", "iflag=fullblock,skip_bytes,count_bytes",
		fmt.Sprint("skip=", p.OffsetBytes), fmt.Sprint("count=", p.SizeBytes),
	}}); err != nil {
		return err
	}
	info, err := os.Stat(to)
	if err == nil && info.Size() != p.SizeBytes {
		err = fmt.Errorf("%s ends inside its root partition", b.artifact.Path(disk))
	}
	return err
}

// runRAUC packs and signs the folder content as the bundle in work, with RAUC from the board's
// packages, started by their dynamic linker and libraries, and with this machine's mksquashfs.
func (b bundle) runRAUC(ctx context.Context, work, content string) error {
	if err := checkEmulation(ctx, b.spec); err != nil {
		return err
	}
	packages, err := makeUserland(ctx, b.step, b.spec, b.opt)
	if err != nil {
		return err
	}
	root, log := filepath.Join(work, "rauc"), images.LogPath(b.artifact.Dir(), "bundle")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	b.step.Detail("unpacking the board's RAUC")
	unpack := []string{"tar", "-C", root, "--wildcards", "--no-same-owner", "-xf", packages, "./usr/bin/rauc", "./usr/lib/*-linux-gnu/*.so*"}
	if err := run.Run(ctx, run.Command{Argv: unpack, Log: log}); err != nil {
		return fmt.Errorf("the board's packages have no RAUC: name it in debian.packages of %s: %w", b.spec.BoardFile(), err)
	}
	linker, libraries, err := linkerIn(root)
	if err != nil {
		return err
	}
	b.step.Detail("packing and signing")
	return run.Run(ctx, run.Command{Argv: []string{
		linker, "--library-path", libraries, filepath.Join(root, "usr/bin/rauc"), "bundle",
		"--cert", b.signing.cert, "--key", b.signing.key, "--keyring", b.signing.keyring,
		"--mksquashfs-args=" + squashfsOptions, content, filepath.Join(work, bundleName),
	}, Log: log, Keep: true})
}

// linkerIn returns the path of the one Debian dynamic linker below root, and its libraries' folder.
func linkerIn(root string) (linker, libraries string, err error) {
	found, err := fs.Glob(os.DirFS(root), "usr/lib/*-linux-gnu/ld-linux*.so.*")
	if err == nil && len(found) != 1 {
		err = errors.New("the board's packages have no Debian dynamic linker in usr/lib")
	}
	if err != nil {
		return "", "", err
	}
	return filepath.Join(root, found[0]), filepath.Join(root, path.Dir(found[0])), nil
}

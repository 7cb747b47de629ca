package builder

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// assembly changes whenever the code below makes another image of the same userland and spec.
const assembly = 8

// buildDebian builds a board's image and, if requested, its update bundle.
func buildDebian(ctx context.Context, spec images.Spec, opt images.Options) (images.Artifact, error) {
	if len(opt.Request.Targets) == 0 {
		return buildImage(ctx, spec, opt)
	}
	s, err := signingOf(ctx, opt)
	if err = cmp.Or(err, s.checkSigner()); err != nil {
		return images.Artifact{}, err
	}
	a, err := buildImage(ctx, spec, opt)
	if err != nil {
		return a, err
	}
	return withBundle(ctx, spec, opt, a, s)
}

// buildImage returns the artifact in the board's folder if its key matches and opt.Fresh is not
// set, or makes a new disk image. The userland changes less often: it has its own key and cache.
func buildImage(ctx context.Context, spec images.Spec, opt images.Options) (images.Artifact, error) {
	dir := opt.BoardDir(spec)
	step := progress.Start(ctx, "build", 0, "")
	own, err := makeOwnFiles(ctx, spec, opt)
	var key string
	if err == nil {
		key, err = imageKey(spec, own)
	}
	if err != nil {
		step.End("", err)
		return images.Artifact{}, err
	}
	if old, err := images.OpenArtifact(dir); err == nil && old.Key == key && !opt.Fresh {
		step.Reuse("nothing changed since " + old.Built.Format(time.DateTime))
		return old, nil
	}
	a, err := assembleImage(ctx, step, spec, opt, own, key)
	step.End("image "+shortKey(key), err)
	return a, err
}

// ownFiles are the files of an image that come from neither a package nor the board's folder.
type ownFiles struct{ hook, keyring []byte }

// makeOwnFiles compiles slipway-hook and reads the keyring of updates, each if the board wants it.
// The first build creates the keyring with its key.
func makeOwnFiles(ctx context.Context, spec images.Spec, opt images.Options) (o ownFiles, err error) {
	if spec.Debian.Hook != "" {
		if o.hook, err = compileHook(ctx, spec.Arch, opt.BoardDir(spec)); err != nil {
			return o, err
		}
	}
	if spec.Debian.Keyring != "" {
		s, err := signingOf(ctx, opt)
		if err != nil {
			return o, err
		}
		if o.keyring, err = localfile.Read(s.keyring, maxPEMBytes); err != nil {
			return o, fmt.Errorf("the keyring of the image's updates: %w", err)
		}
	}
	return o, nil
}

func shortKey(key string) string { return key[:12] }

// imageKey returns a hash of all that makes the disk image, the assembling code's number included.
func imageKey(spec images.Spec, o ownFiles) (string, error) {
	files := map[string][]byte{"\x00hook": o.hook, "\x00keyring": o.keyring}
	maps.Copy(files, spec.Files())
	return hashOf(struct {
		Assembly int
		Spec     images.Spec
	}{assembly, spec}, files)
}

// makeUserland returns the path of a tar of the board's Debian packages in the cache. If the cache
// has none, or opt.Fresh is set, mmdebstrap makes one. It waits for another build of that tar.
func makeUserland(ctx context.Context, step *progress.Step, spec images.Spec, opt images.Options) (string, error) {
	key, err := hashOf(mmdebstrapArgs(spec, ""), nil)
	if err != nil {
		return "", err
	}
	name := filepath.Join(opt.CacheDir(), "userland-"+shortKey(key))
	tar := name + ".tar"
	if err := os.MkdirAll(opt.CacheDir(), 0o755); err != nil {
		return "", err
	}
	unlock, err := waitLock(ctx, name+".lock", func() { step.Detail("waiting for another build to fetch the same packages") })
	if err != nil {
		return "", err
	}
	defer unlock()
	if localfile.Exists(tar) && !opt.Fresh {
		return tar, nil
	}
	if err := checkEmulation(ctx, spec); err != nil {
		return "", err
	}
	part := tar + ".part"
	defer os.Remove(part)
	err = run.Run(ctx, run.Command{
		Argv: mmdebstrapArgs(spec, part),
		Log:  images.LogPath(opt.BoardDir(spec), "mmdebstrap"),
		Line: func(line string) { step.Detail(strings.TrimPrefix(line, "I: ")) },
	})
	if err != nil {
		return "", err
	}
	if err := syncFile(part); err != nil {
		return "", err
	}
	return tar, os.Rename(part, tar)
}

// Userland returns a folder with the board's Debian packages, unpacked. It makes the folder, by
// rename, if it is missing, the board names other packages or opt.Fresh is set.
func Userland(ctx context.Context, step *progress.Step, spec images.Spec, opt images.Options) (string, error) {
	tar, err := makeUserland(ctx, step, spec, opt)
	if err != nil {
		return "", err
	}
	root := filepath.Join(opt.BoardDir(spec), strings.TrimSuffix(filepath.Base(tar), ".tar"))
	if localfile.Exists(root) && !opt.Fresh {
		return root, nil
	}
	step.Detail("unpacking")
	part := root + ".part"
	for _, old := range []string{part, root} {
		if err := os.RemoveAll(old); err != nil {
			return "", err
		}
	}
	defer os.RemoveAll(part)
	if err := os.Mkdir(part, 0o755); err != nil {
		return "", err
	}
	argv := []string{"tar", "-C", part, "--numeric-owner", "--anchored", "--wildcards", "--exclude=./dev/*", "-xf", tar}
	if err := run.Run(ctx, run.Command{Argv: argv, Log: images.LogPath(opt.BoardDir(spec), "unpack")}); err != nil {
		return "", fmt.Errorf("unpack the userland: %w", err)
	}
	return root, os.Rename(part, root)
}

// checkEmulation returns an error if this machine cannot run the board's programs, natively or
// emulated. The scripts of the board's packages run during the build.
func checkEmulation(ctx context.Context, spec images.Spec) error {
	if spec.Arch == runtime.GOARCH {
		return nil
	}
	if err := run.Run(ctx, run.Command{Argv: []string{"arch-test", spec.Arch}}); err != nil {
		return fmt.Errorf("this machine runs no programs for %s: %s\nnext: %s", spec.Arch, run.LastLine(err), enableEmulation(spec.Arch))
	}
	return nil
}

// mmdebstrapArgs returns the command that makes a userland tar, from mmdebstrap's default mirror.
func mmdebstrapArgs(spec images.Spec, tar string) []string {
	d := spec.Debian
	argv := []string{
		"mmdebstrap", "--variant=minbase", "--architectures=" + spec.Arch, "--format=tar",
		"--include=" + strings.Join(d.Packages, ","),
		`--aptopt=Apt::Install-Recommends "false"`,
		"--dpkgopt=force-unsafe-io",
	}
	for _, pattern := range d.Exclude {
		argv = append(argv, "--dpkgopt=path-exclude="+pattern)
	}
	argv = append(argv, "--dpkgopt=path-include=/usr/share/doc/*/copyright") // who passes an image on passes these on
	return append(argv, d.Suite, tar)
}

// rootCommand returns argv for root, and for others a command that runs it in a user namespace.
func rootCommand(argv ...string) []string {
	if os.Geteuid() == 0 {
		return argv
	}
	return append([]string{"unshare", "--map-root-user", "--map-auto", "--"}, argv...)
}

// checkUserNamespace returns an error if rootCommand cannot start a command in its user namespace.
func checkUserNamespace(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if err := run.Run(ctx, run.Command{Argv: rootCommand("chown", "--version")}); err != nil {
		return fmt.Errorf("an image has files of many owners, and this user cannot make them: %w\n"+
			"  run this as root; or give the user ids of its own in /etc/subuid and /etc/subgid (usermod --add-subuids, --add-subgids) "+
			"and let it make user namespaces (sysctl kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); util-linux has to be 2.38 or later", err)
	}
	return nil
}

// unpackUserland makes root, and unpacks the userland into it, then Slipway's additions, both
// without the files that the board removes. The kernel makes devices, which a user namespace may
// not.
func unpackUserland(ctx context.Context, spec images.Spec, tar, additions, root, log string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	argv := []string{"tar", "-C", root, "--numeric-owner", "--anchored", "--wildcards", "--no-wildcards-match-slash", "--exclude=./dev/*"}
	for _, pattern := range spec.Debian.Remove {
		argv = append(argv, "--exclude=./"+pattern)
	}
	for _, file := range []string{tar, additions} {
		c := run.Command{Argv: rootCommand(append(argv, "-xf", file)...), Log: log, Keep: true}
		if err := run.Run(ctx, c); err != nil {
			return fmt.Errorf("unpack the userland: %w", err)
		}
	}
	return nil
}

// removeTree removes a folder with files of any owner, even after ctx ended, and ignores errors.
func removeTree(ctx context.Context, dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	_ = run.Run(context.WithoutCancel(ctx), run.Command{Argv: rootCommand("rm", "-rf", "--", dir)})
}

// hashOf returns the SHA-256 of v as JSON and of the files' names and contents.
func hashOf(v any, files map[string][]byte) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(v); err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %x\n", name, sha256.Sum256(files[name]))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

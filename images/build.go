package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Options says where and how to build.
type Options struct {
	Dir     string       // build folder; every board has a folder of its own in it
	Cache   string       // keeps what several boards or builds share; "" is cache/ in Dir
	Fresh   bool         // fetch packages again even if an earlier build has them
	Request BuildRequest // only for boards that bitbake builds
	Install bool         // install missing packages, also for Request.Parse
	// Offline is for Project: files of repositories that are not checked out are then
	// layers.ErrNotHere.
	Offline bool
	// Now is closed when tasks of bitbake that run are not to be waited for once the
	// context has ended. Where it is nil they have a second.
	Now <-chan struct{}
}

// BuildRequest overrides settings of the board's project file for bitbake.
type BuildRequest struct {
	Targets  []string // instead of the file's
	Task     string   // instead of the file's
	Continue bool     // after a failed task, as far as the others do not need it
	DryRun   bool     // say what would run
	Parse    bool     // read all recipes, no more
}

// isAny reports whether the request changes anything.
func (a BuildRequest) isAny() bool {
	if len(a.Targets) == 0 {
		a.Targets = nil // an empty list of a command line is none
	}
	return !reflect.DeepEqual(a, BuildRequest{})
}

// flags returns the request as the flags of build, each after a blank.
func (a BuildRequest) flags() (text string) {
	if len(a.Targets) > 0 {
		text += " --target=" + plaintext.Quote(strings.Join(a.Targets, ","))
	}
	if a.Task != "" {
		text += " --task=" + plaintext.Quote(a.Task)
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"continue", a.Continue}, {"dry-run", a.DryRun}, {"parse", a.Parse}} {
		if f.given {
			text += " --" + f.name
		}
	}
	return text
}

// ofDebian refuses what boards cannot do that bitbake does not build.
func (a BuildRequest) ofDebian(spec Spec) error {
	switch isBundle := slices.Equal(a.Targets, []string{Bundle}); {
	case !a.isAny():
		return nil
	case isBundle && spec.Debian.Keyring == "":
		return fmt.Errorf("%s: debian.keyring is not set: the board takes no update bundle", spec.BoardFile())
	case isBundle && !(BuildRequest{Task: a.Task, Continue: a.Continue, DryRun: a.DryRun, Parse: a.Parse}).isAny():
		return nil
	}
	return fmt.Errorf("board %s is made of Debian packages: it has no target but %s, and no task, parse or dry run\nnext: doctor %s", spec.Board, Bundle, plaintext.Quote(spec.TypedName()))
}

// Build makes the board's image, or finds that the one in its folder was made of
// the same things. What it did not finish, it leaves under no name that a reader
// would take for an artifact.
func Build(ctx context.Context, spec Spec, opt Options) (Artifact, error) {
	if err := Refused(ctx, spec, opt, "build"); err != nil {
		return Artifact{}, err
	}
	dir := opt.BoardDir(spec)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Artifact{}, err
	}
	unlock, err := lockFolder(buildLock(dir))
	if err != nil {
		return Artifact{}, err
	}
	defer unlock()
	if spec.Debian == nil {
		return buildWithBitbake(ctx, spec, opt)
	}
	return buildDebian(ctx, spec, opt)
}

// Refused says why a command's build does not begin on this machine, whatever packages it has.
// It reads the project file and fetches nothing.
func Refused(ctx context.Context, spec Spec, opt Options, command string) error {
	switch {
	case spec.Rig != nil:
		return fmt.Errorf("board %s has no image: it is made of namespaces; rig build makes its userland, rig up all of it", spec.Board)
	case spec.Debian != nil:
		if err := opt.Request.ofDebian(spec); err != nil || spec.Debian.Hook == "" {
			return err
		}
		return checkClone()
	}
	return cmp.Or(CheckProject(ctx, spec, opt), CheckUser(spec, command, opt.Request))
}

// HostPackages are the Debian packages that building this board needs here. They are those
// of OpenEmbedded if the build system is not known before a checkout.
func HostPackages(ctx context.Context, spec Spec, opt Options) []string {
	if spec.Debian == nil {
		if system := BuildSystem(ctx, spec, opt); isIsar(system) {
			return isarPackages(spec, system)
		}
		return bitbakePackages()
	}
	if spec.Rig != nil {
		return debianPackages()
	}
	all := append(append(debianPackages(), "e2fsprogs", "fdisk"), loaders[spec.Disk.Firmware][spec.Arch].packages...)
	if spec.Debian.Keyring != "" {
		all = append(all, "squashfs-tools") // of which RAUC makes bundles
	}
	if os.Geteuid() != 0 { // files of other owners are made in a user namespace
		all = append(all, "uidmap")
	}
	if spec.Arch != runtime.GOARCH { // the packages' scripts run in emulation
		all = append(all, emulationPackages()...)
	}
	return all
}

// debianPackages are what makes a userland of Debian packages.
func debianPackages() []string { return []string{"mmdebstrap", "debian-archive-keyring"} }

// lockFolder keeps a second build away from a folder for as long as the first lasts.
func lockFolder(path string) (unlock func(), err error) {
	f, err := localfile.OpenLock(path, 0o644)
	if err != nil {
		return nil, err
	}
	if err = localfile.TryLock(f); errors.Is(err, localfile.ErrLocked) {
		err = fmt.Errorf("%s: another slipway is building this board; wait for it or stop it", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// hashOf is the key of what v and the files say.
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

// waitLock is lock for what several boards share: it waits until it is free.
func waitLock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := localfile.OpenLock(path, 0o644)
	if err != nil {
		return nil, err
	}
	if err = localfile.TryLock(f); errors.Is(err, localfile.ErrLocked) {
		waiting()
		err = localfile.WaitLock(ctx, f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// removeDescription removes an artifact's description, before its files change.
func removeDescription(dir string) error {
	err := os.Remove(ArtifactPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// describeFile returns the artifact's entry for a file in dir.
func describeFile(ctx context.Context, dir, kind, name string) (File, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, endable{ctx, f})
	return File{Kind: kind, Name: name, SizeBytes: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// endable is a reader that ends with its context: images are large.
type endable struct {
	ctx context.Context
	in  io.Reader
}

func (e endable) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.in.Read(p)
}

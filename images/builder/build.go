// Package builder turns a board's Spec into an Artifact: with bitbake, or of Debian packages. It
// also checks this machine for a build, and checks out, locks and compares a board's layers.
package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"slipway/images"
	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Prepared is a build that Prepare found no obstacle for. Missing packages are not checked yet.
type Prepared struct {
	spec    images.Spec
	opt     images.Options
	project layers.Project // of a board that bitbake builds
	partial bool           // files of the project come from repositories that are not checked out
}

// Prepare checks a build, and reads the project file of one with bitbake. It returns an error for a
// build that cannot start: of a rig, of a target that the board lacks, outside of a clone that it
// needs, or by root with bitbake (the error then names command). It fetches nothing.
func Prepare(ctx context.Context, spec images.Spec, opt images.Options, command string) (Prepared, error) {
	b := Prepared{spec: spec, opt: opt}
	switch {
	case spec.Rig != nil:
		return b, fmt.Errorf("board %s has no image: it is made of namespaces; rig build makes its userland, rig up all of it", spec.Board)
	case spec.Debian != nil:
		if err := checkDebianRequest(opt.Request, spec); err != nil || spec.Debian.Hook == "" {
			return b, err
		}
		return b, checkClone()
	}
	here := opt
	here.Offline = true
	var err error
	b.project, _, err = images.Project(ctx, spec, here)
	if b.partial = errors.Is(err, layers.ErrNotHere); b.partial {
		err = nil
	}
	return b, cmp.Or(err, CheckUser(spec, command, opt.Request))
}

// Build locks the board's folder, or fails if another build has the lock. It builds the image, or
// returns the earlier artifact if its inputs did not change. A build that is broken off leaves no
// file under a name of an artifact's file.
func (b Prepared) Build(ctx context.Context) (images.Artifact, error) {
	if err := os.MkdirAll(b.opt.BoardDir(b.spec), 0o755); err != nil {
		return images.Artifact{}, err
	}
	unlock, err := lockFolder(images.BuildLockOf(b.opt.Workspace(b.spec)))
	if err != nil {
		return images.Artifact{}, err
	}
	defer unlock()
	if b.spec.Debian == nil {
		return b.buildWithBitbake(ctx)
	}
	return buildDebian(ctx, b.spec, b.opt)
}

// lockFolder locks the file at path for a board's build, or fails if another slipway holds it.
func lockFolder(path string) (unlock func(), err error) {
	f, err := localfile.LockNow(path, 0o644)
	if errors.Is(err, localfile.ErrLocked) {
		err = fmt.Errorf("%s: another slipway is building this board; wait for it or stop it", path)
	}
	return func() { f.Close() }, err
}

// waitLock locks the file of something that several boards share. If another process holds the
// lock, waitLock calls waiting and waits until the lock is free or ctx ends.
func waitLock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := localfile.LockNow(path, 0o644)
	if errors.Is(err, localfile.ErrLocked) {
		waiting()
		f, err = localfile.Lock(ctx, path, 0o644)
	}
	return func() { f.Close() }, err
}

// HostPackages returns the Debian packages that the build needs on this machine.
func (b Prepared) HostPackages() []string { return HostPackages(b.spec, b.project.BuildSystem) }

// HostPackages returns the Debian packages that a build of this board needs on this machine. system
// is the project's build system: "" is unknown before a checkout, and means OpenEmbedded.
func HostPackages(spec images.Spec, system string) []string {
	if spec.Debian == nil {
		if isIsar(system) {
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

// debianPackages returns the packages with which a userland of Debian packages is made.
func debianPackages() []string { return []string{"mmdebstrap", "debian-archive-keyring"} }

// toolVersions returns the versions of Debian packages on this machine, nil if dpkg knows none.
func toolVersions(ctx context.Context, packages []string) map[string]string {
	argv := append([]string{"dpkg-query", "--show", "--showformat=${Package} ${Version}\\n"}, packages...)
	out, _ := run.Output(ctx, run.Command{Argv: argv}) // it fails if a package is not installed
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if name, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			versions[name] = version
		}
	}
	if len(versions) == 0 {
		return nil
	}
	return versions
}

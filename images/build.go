package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"slipway/layers"
)

// Prepared is a build that Prepare found no obstacle for. Missing packages are not checked yet.
type Prepared struct {
	spec    Spec
	opt     Options
	project layers.Project // of a board that bitbake builds
	partial bool           // files of the project come from repositories that are not checked out
}

// Prepare reads the project file for a command's build, and returns an error for a build that
// cannot start: of a rig, of a target that the board lacks, outside of a clone that it needs, or by
// root with bitbake. It fetches nothing.
func Prepare(ctx context.Context, spec Spec, opt Options, command string) (Prepared, error) {
	b := Prepared{spec: spec, opt: opt}
	switch {
	case spec.Rig != nil:
		return b, fmt.Errorf("board %s has no image: it is made of namespaces; rig build makes its userland, rig up all of it", spec.Board)
	case spec.Debian != nil:
		if err := opt.Request.checkDebian(spec); err != nil || spec.Debian.Hook == "" {
			return b, err
		}
		return b, checkClone()
	}
	here := opt
	here.Offline = true
	var err error
	b.project, _, err = Project(ctx, spec, here)
	if b.partial = errors.Is(err, layers.ErrNotHere); b.partial {
		err = nil
	}
	return b, cmp.Or(err, CheckUser(spec, command, opt.Request))
}

// Build locks the board's folder, or fails if another build has the lock. It builds the image, or
// returns the earlier artifact if its inputs did not change. A build that is broken off leaves no
// file under a name of an artifact's file.
func (b Prepared) Build(ctx context.Context) (Artifact, error) {
	dir := b.opt.BoardDir(b.spec)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Artifact{}, err
	}
	unlock, err := lockFolder(buildLock(dir))
	if err != nil {
		return Artifact{}, err
	}
	defer unlock()
	if b.spec.Debian == nil {
		return b.buildWithBitbake(ctx)
	}
	return buildDebian(ctx, b.spec, b.opt)
}

// HostPackages returns the Debian packages that the build needs on this machine.
func (b Prepared) HostPackages() []string { return HostPackages(b.spec, b.project.BuildSystem) }

// HostPackages returns the Debian packages that a build of this board needs on this machine. system
// is the project's build system: "" is unknown before a checkout, and means OpenEmbedded.
func HostPackages(spec Spec, system string) []string {
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

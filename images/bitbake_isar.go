package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/host"
	"slipway/layers/run"
)

// This file says what Isar wants of the machine: its bitbake runs mmdebstrap and sbuild
// through sudo.

// isarPrograms are the programs that Isar's recipes run, and the Debian packages that hold
// them.
var isarPrograms = []hostProgram{
	{"apt-ftparchive", "apt-utils"},
	{"arch-test", "arch-test"},
	{"bwrap", "bubblewrap"},
	{"bzip2", "bzip2"},
	{"dpkg-source", "dpkg-dev"},
	{"envsubst", "gettext-base"},
	{"gbp", "git-buildpackage"},
	{"git", "git"},
	{"mmdebstrap", "mmdebstrap"},
	{"pristine-tar", "pristine-tar"},
	{"python3", "python3"},
	{"quilt", "quilt"},
	{"reprepro", "reprepro"},
	{"sbuild", "sbuild"},
	{"schroot", "schroot"},
	{"sudo", "sudo"},
	{"unzip", "unzip"},
	{"wget", "wget"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
}

// isarPackages returns the Debian packages that a build with Isar needs on this machine.
func isarPackages(spec Spec) []string {
	packages := []string{"ca-certificates", "fdisk", "locales"}
	for _, p := range isarPrograms {
		packages = append(packages, p.pkg)
	}
	if spec.Arch != runtime.GOARCH {
		packages = append(packages, "binfmt-support", "qemu-user-static")
	}
	return packages
}

// BuildsWithIsar reports whether a board's project is of Isar. Only the project file and
// those that it includes here are read; without them it is OpenEmbedded's.
func BuildsWithIsar(ctx context.Context, spec Spec) bool {
	p, _, err := Project(ctx, spec, Options{Offline: true})
	return err == nil && strings.HasPrefix(p.BuildSystem, "isar")
}

// isarChecks are what else is checked before a build with Isar.
func isarChecks(ctx context.Context, spec Spec) []func() error {
	checks := []func() error{func() error { return checkForeign(ctx, spec.Arch) }}
	if os.Geteuid() != 0 { // who cannot build at all
		checks = append(checks, func() error { return checkSudo(ctx) }, checkSbuildGroup)
	}
	return checks
}

// checkSudo wants sudo without a password: a password is asked for where nobody sees it.
func checkSudo(ctx context.Context) error {
	if _, err := exec.LookPath("sudo"); err != nil {
		return nil // checkPrograms says so
	}
	_, err := run.Output(ctx, run.Command{Argv: []string{"sudo", "-n", "true"}})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	name := userName()
	return fmt.Errorf("Isar runs sudo, which asks %s for a password here\nnext, as root: echo '%[1]s ALL=(ALL) NOPASSWD: ALL' | tee /etc/sudoers.d/slipway-%[1]s", name)
}

// checkSbuildGroup wants this process to be in the group sbuild. A user who was just added
// is in it after the next login.
func checkSbuildGroup() error {
	group, err := user.LookupGroup("sbuild")
	if err != nil {
		return nil // without sbuild there is no such group, and checkPrograms says so
	}
	id, err := strconv.Atoi(group.Gid)
	if err != nil {
		return err
	}
	groups, err := os.Getgroups()
	if err != nil || slices.Contains(groups, id) || os.Getegid() == id {
		return err
	}
	return fmt.Errorf("sbuild, which builds Isar's packages, is only for its group, and %s is not in it\nnext: sudo usermod -aG sbuild %[1]s && newgrp sbuild", userName())
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// checkForeign wants the kernel to run programs of the board's processor.
func checkForeign(ctx context.Context, arch string) error {
	if arch == runtime.GOARCH {
		return nil
	}
	if _, err := exec.LookPath("arch-test"); err != nil {
		return nil // checkPrograms says so
	}
	_, err := run.Output(ctx, run.Command{Argv: []string{"arch-test", arch}})
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return fmt.Errorf("this machine runs no programs for %s, and Isar's packages are installed by such programs\nnext: %s && sudo systemctl restart binfmt-support", arch, host.AptLine([]string{"binfmt-support", "qemu-user-static"}))
	}
	return err
}

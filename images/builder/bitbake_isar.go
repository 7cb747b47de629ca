package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// This file has Isar's needs: bitbake runs mmdebstrap, sbuild and bubblewrap, and mounts by sudo.

// isarPrograms are the programs of Isar's recipes and the user's newgrp, with their packages.
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
	{"mount", "mount"},
	{"newgrp", "login"},
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

func isIsar(system string) bool { return strings.HasPrefix(system, "isar") }

// isarPackages returns all Debian packages that a build with Isar needs on this machine, present or
// not. system is "isar" or rootless.
func isarPackages(spec images.Spec, system string) []string {
	packages := []string{"ca-certificates", "debian-archive-keyring", "fdisk", "locales"}
	for _, p := range isarPrograms {
		packages = append(packages, p.pkg)
	}
	if system == rootless {
		packages = append(packages, "uidmap")
	}
	if spec.Arch != runtime.GOARCH {
		packages = append(packages, emulationPackages()...)
	}
	return packages
}

// rootless is Isar without sudo, which makes files of other owners in a user namespace.
const rootless = "isar-rootless"

// isarChecks returns the checks of this machine before a build with Isar, besides programs. For
// root it leaves out those of sudo and of groups, as root cannot build with Isar at all.
func isarChecks(ctx context.Context, spec images.Spec, system string) []hostCheck {
	checks := []hostCheck{
		{"emulation", "this machine runs programs for " + spec.Arch, "arch-test", func() error { return checkEmulation(ctx, spec) }, func(ctx context.Context, w io.Writer) error { return fixEmulation(ctx, w, spec.Arch) }},
		{"bubblewrap", "it can make a user namespace with its own /proc", "bwrap", func() error { return checkBubblewrap(ctx) }, nil},
	}
	switch {
	case os.Geteuid() == 0:
		return checks
	case system == rootless:
		return append(checks, ownersCheck(ctx))
	}
	return append(checks,
		hostCheck{"sudo", "without a password, and it can mount", "sudo", func() error { return checkSudo(ctx) }, nil},
		hostCheck{"group sbuild", "this process is in it", "sbuild", checkSbuildGroup, joinSbuildGroup},
		hostCheck{"schroot", "it reads its configuration", "schroot", func() error { return checkSchroot(ctx) }, nil})
}

// checkSudo returns an error unless sudo works without a password, which nobody could type during a
// build, and root may mount, as Isar does. Many containers do not let root mount.
func checkSudo(ctx context.Context) error {
	if _, err := run.Output(ctx, run.Command{Argv: []string{"sudo", "-n", "true"}, Env: []string{"LC_ALL=C"}}); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("sudo, which Isar runs, refuses %s here: %s\nnext: %s", userName(), run.LastLine(err), allowSudo())
	}
	if _, err := run.Output(ctx, run.Command{Argv: []string{"sudo", "-n", "unshare", "--mount", "true"}}); err != nil {
		return fmt.Errorf("root, as whom Isar mounts, may not mount here: %s\nnext: repeat the line  # outside of the container, or in one that was started with --privileged", run.LastLine(err))
	}
	return ctx.Err()
}

// allowSudo returns the command that lets this user run sudo without a password.
func allowSudo() string {
	line := fmt.Sprintf("echo '%s ALL=(ALL) NOPASSWD: ALL' | %%stee -a /etc/sudoers.d/slipway", userName())
	if isMember("sudo") {
		return fmt.Sprintf(line, "sudo ")
	}
	return "su root -c \"" + fmt.Sprintf(line, "") + "\""
}

// checkSbuildGroup returns an error if this process is not in the group sbuild. A user who was just
// added gets the group at the next login, or in the shell of newgrp.
func checkSbuildGroup() error {
	group, err := user.LookupGroup("sbuild")
	if err != nil {
		return fmt.Errorf("sbuild builds Isar's packages, and its group is missing: %w\nnext: sudo apt-get install -y --reinstall sbuild", err)
	}
	id, err := strconv.Atoi(group.Gid)
	if err != nil {
		return err
	}
	groups, err := os.Getgroups()
	switch {
	case err != nil || slices.Contains(groups, id) || os.Getegid() == id:
		return err
	case isMember("sbuild"):
		return fmt.Errorf("sbuild is only for its group: %s was added to it after this login\nnext: newgrp sbuild", userName())
	}
	return fmt.Errorf("sbuild is only for its group: %s is not in it\nnext: sudo usermod -aG sbuild %[1]s && newgrp sbuild", userName())
}

// joinSbuildGroup adds the user to the group sbuild as root, and restarts this process as a member.
func joinSbuildGroup(ctx context.Context, w io.Writer) error {
	group, err := user.LookupGroup("sbuild")
	if err != nil {
		return err
	}
	if !isMember(group.Name) {
		if err := host.RunAsRoot(ctx, w, []string{"usermod", "-aG", group.Name, userName()}); err != nil {
			return err
		}
	}
	return host.RestartInGroup(ctx, w, group.Gid)
}

// isMember reports whether the system lists the user in a group, which an old login may lack.
func isMember(name string) bool {
	group, err := user.LookupGroup(name)
	if err != nil {
		return false
	}
	u, err := user.Current()
	if err != nil {
		return false
	}
	ids, err := u.GroupIds()
	return err == nil && slices.Contains(ids, group.Gid)
}

// userName returns the name of this process's user, or else the user's number.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

var schrootFile = plaintext.Regexp(`/etc/schroot/[A-Za-z0-9._/-]+`)

// checkSchroot returns an error unless schroot is set-user-ID and can read its configuration. One
// unreadable file, as of a broken build, stops all builds.
func checkSchroot(ctx context.Context) error {
	const again = "sudo apt-get install -y --reinstall schroot"
	path, err := exec.LookPath("schroot")
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeSetuid == 0 {
		return errors.Join(err, fmt.Errorf("%s has lost its set-user-ID bit\nnext: %s", path, again))
	}
	if _, err = run.Output(ctx, run.Command{Argv: []string{"schroot", "--list"}, Env: []string{"LC_ALL=C"}}); err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	next, file := again, schrootFile().FindString(err.Error())
	switch {
	case strings.HasPrefix(file, "/etc/schroot/chroot.d/isar-"): // of a build that ended badly
		next = "sudo rm " + file
	case file != "":
		next = "sudoedit " + file
	}
	return fmt.Errorf("schroot does not begin: %s\nnext: %s", run.LastLine(err), next)
}

// checkBubblewrap returns an error unless bwrap can make the namespaces that Isar's commands need.
func checkBubblewrap(ctx context.Context) error {
	err := run.Run(ctx, run.Command{Argv: []string{"bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--", "true"}})
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("bubblewrap, which Isar runs, cannot make a user namespace here: %s\nnext: %s", run.LastLine(err), AllowNamespaces())
}

// AllowNamespaces returns the command or advice that allows user namespaces on this machine.
func AllowNamespaces() string {
	for _, limit := range []struct{ path, refuses, setting string }{
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"},
	} {
		if value, err := os.ReadFile(limit.path); err == nil && strings.TrimSpace(string(value)) == limit.refuses {
			return "echo " + limit.setting + " | sudo tee /etc/sysctl.d/60-bitbake.conf && sudo sysctl --system"
		}
	}
	return "leave the chroot if you are in one, and allow user namespaces on this machine; start a container with --security-opt seccomp=unconfined or as a privileged one"
}

// emulationPackages returns the Debian packages for running programs of another processor.
func emulationPackages() []string { return []string{"qemu-user-static", "binfmt-support", "arch-test"} }

// qemuNames are the processors' names in the files of qemu-user, if they differ.
var qemuNames = map[string]string{"arm64": "aarch64", "amd64": "x86_64"}

// binfmtDir is where the kernel lists the emulators of other processors.
const binfmtDir = "/proc/sys/fs/binfmt_misc"

// fixEmulation mounts binfmt_misc and registers QEMU for an architecture, as root, if that is
// missing. It does not enable an emulator that a person has disabled.
func fixEmulation(ctx context.Context, w io.Writer, arch string) error {
	if name := qemuNames[arch]; name != "" {
		arch = name
	}
	if _, err := os.Stat(binfmtDir + "/register"); err != nil {
		if err := host.RunAsRoot(ctx, w, []string{"mount", "-t", "binfmt_misc", "binfmt_misc", binfmtDir}); err != nil {
			return err
		}
	}
	if _, err := os.Stat(binfmtDir + "/qemu-" + arch); err == nil {
		return nil // it is switched off, and a person did that
	}
	return host.RunAsRoot(ctx, w, []string{"dd", "status=none", "if=/usr/lib/binfmt.d/qemu-" + arch + ".conf", "of=" + binfmtDir + "/register"})
}

// enableEmulation returns a command to let the kernel run an architecture's programs until reboot.
// If QEMU is missing, the command installs it: its packages do so at each boot under systemd.
func enableEmulation(arch string) string {
	if name := qemuNames[arch]; name != "" {
		arch = name
	}
	conf := "/usr/lib/binfmt.d/qemu-" + arch + ".conf"
	if _, err := os.Stat(conf); err != nil {
		return host.AptLine(emulationPackages())
	}
	return "sudo sh -c 'b=/proc/sys/fs/binfmt_misc; [ -e $b/register ] || mount -t binfmt_misc binfmt_misc $b; [ -e $b/qemu-" + arch + " ] || cat " + conf + " >$b/register; echo 1 >$b/qemu-" + arch + "; echo 1 >$b/status'"
}

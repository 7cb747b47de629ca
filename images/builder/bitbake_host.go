package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// hostProgram is a program that a build runs, and the Debian package that holds it.
type hostProgram struct{ program, pkg string }

// hostPrograms are the programs that OpenEmbedded wants here, with their Debian packages.
var hostPrograms = []hostProgram{
	{"bunzip2", "bzip2"},
	{"chrpath", "chrpath"},
	{"cpio", "cpio"},
	{"diffstat", "diffstat"},
	{"file", "file"},
	{"g++", "g++"},
	{"gawk", "gawk"},
	{"gcc", "gcc"},
	{"git", "git"},
	{"lz4c", "lz4"},
	{"make", "make"},
	{"patch", "patch"},
	{"pzstd", "zstd"},
	{"python3", "python3"},
	{"rpcgen", "rpcsvc-proto"},
	{"unzip", "unzip"},
	{"wget", "wget"},
	{"xz", "xz-utils"},
}

// bitbakePackages are the Debian packages that bitbake needs on this machine.
func bitbakePackages() []string {
	packages := []string{"ca-certificates", "libc6-dev", "locales"}
	for _, p := range hostPrograms {
		packages = append(packages, p.pkg)
	}
	return packages
}

// HostCheck is what one check of this machine found.
type HostCheck struct {
	What string // the subject, in a few words
	Fine string // what this machine has, if Err is nil
	Err  error  // its first line says what is wrong, the others what to do
}

// hostCheck is a check of this machine, with the command that fixes it.
type hostCheck struct {
	what, fine string
	program    string // the check runs it; without it there is no check, as programsCheck reports it
	check      func() error
	fix        func(context.Context, io.Writer) error // nil if only a person can fix it
}

// CheckHost runs all checks of this machine for a build, in about a second, and returns their
// results. It leaves out a check whose program is missing. system is as for HostPackages.
func CheckHost(ctx context.Context, spec images.Spec, system string) []HostCheck {
	checks := hostChecks(ctx, spec, system)
	done := make([]HostCheck, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() { done[i] = HostCheck{c.what, c.fine, c.check()} })
	}
	all.Wait()
	return done
}

// hostChecks returns the checks for a build of the board by the build system, without those whose
// program is missing.
func hostChecks(ctx context.Context, spec images.Spec, system string) []hostCheck {
	checks := debianChecks(ctx, spec)
	if spec.Debian == nil {
		checks = bitbakeChecks(ctx, spec, system)
	}
	return slices.DeleteFunc(checks, func(c hostCheck) bool { return c.program != "" && !hasProgram(c.program) })
}

// FixHost runs the fix of each failed host check, and prints each command on w before it runs. If
// a fix adds the user to a group, the program restarts itself in that group. If it cannot become
// root, FixHost stops and returns nil: the build then reports what is missing.
func (b Prepared) FixHost(ctx context.Context, w io.Writer) error {
	err := fixAll(ctx, w, hostChecks(ctx, b.spec, b.project.BuildSystem))
	if errors.Is(err, host.ErrNotRoot) || errors.Is(err, host.ErrForbidden) {
		return nil
	}
	return err
}

// fixAll runs the fix, if there is one, of each check that fails. It stops at the first error.
func fixAll(ctx context.Context, w io.Writer, checks []hostCheck) error {
	for _, c := range checks {
		if c.fix == nil || c.check() == nil {
			continue
		}
		if err := c.fix(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", c.what, err)
		}
	}
	return ctx.Err()
}

// HostErrors runs the host checks and joins their errors, at which Build stops too.
func HostErrors(ctx context.Context, spec images.Spec, system string) error {
	return joinHostErrors(CheckHost(ctx, spec, system))
}

// MissingBesidePackages is HostErrors without the errors that an installed package fixes.
func (b Prepared) MissingBesidePackages(ctx context.Context) error {
	return joinHostErrors(slices.DeleteFunc(CheckHost(ctx, b.spec, b.project.BuildSystem), func(c HostCheck) bool { return c.What == programsCheck }))
}

// joinHostErrors joins the errors of the failed checks. It is nil if all checks passed.
func joinHostErrors(checks []HostCheck) error {
	var all []error
	for _, c := range checks {
		all = append(all, c.Err)
	}
	return errors.Join(all...)
}

// programsCheck is the check that passes once the missing packages are installed.
const programsCheck = "programs"

// debianChecks returns the checks before a build from Debian packages.
func debianChecks(ctx context.Context, spec images.Spec) []hostCheck {
	return []hostCheck{
		{what: "emulation", fine: "this machine runs programs for " + spec.Arch, check: func() error { return checkEmulation(ctx, spec) }},
		ownersCheck(ctx),
	}
}

func ownersCheck(ctx context.Context) hostCheck {
	return hostCheck{what: "owners", fine: "this user can make files of other owners", check: func() error { return checkUserNamespace(ctx) }}
}

// bitbakeChecks returns the checks before a build with bitbake: system is OpenEmbedded's or Isar's.
func bitbakeChecks(ctx context.Context, spec images.Spec, system string) []hostCheck {
	checks := []hostCheck{
		{what: "user", fine: "not root", check: func() error { return CheckUser(spec, "build", images.BuildRequest{}) }},
		{"locale", "en_US.UTF-8", "locale", func() error { return checkLocale(ctx) }, func(ctx context.Context, w io.Writer) error { return host.RunAsRoot(ctx, w, makeLocale) }},
	}
	programs := hostPrograms
	if isIsar(system) {
		programs = isarPrograms
		checks = append(checks, isarChecks(ctx, spec, system)...)
	}
	fine := fmt.Sprintf("all %d that %s runs", len(programs), cmp.Or(system, defaultBuildSystem))
	return append(checks, hostCheck{what: programsCheck, fine: fine, check: func() error { return checkPrograms(programs) }})
}

// defaultBuildSystem is assumed until a project file on this machine names another one.
const defaultBuildSystem = "openembedded"

// ErrRoot is the error of a build as root.
var ErrRoot = errors.New("bitbake does not build as root")

// CheckUser refuses root for bitbake boards. The error's next line is the command for another user.
func CheckUser(spec images.Spec, command string, request images.BuildRequest) error {
	if spec.Debian != nil || os.Geteuid() != 0 {
		return nil
	}
	return rootError(command, plaintext.Quote(spec.TypedName()), requestFlags(request))
}

// rootError returns ErrRoot, with the command for the user who called sudo, or else with doctor.
func rootError(command, name, flags string) error {
	step := "doctor " + name
	if user := os.Getenv("SUDO_USER"); user != "" {
		step = fmt.Sprintf("sudo -u %s -H %s %s %s%s", user, host.ProgramName(), command, name, flags)
	}
	return fmt.Errorf("%w: a normal user who owns the build folder can\nnext: %s", ErrRoot, step)
}

// checkPrograms refuses a machine that lacks a program. bitbake would stop minutes later.
func checkPrograms(programs []hostProgram) error {
	var missing []string
	for _, p := range programs {
		if !hasProgram(p.program) {
			missing = append(missing, p.pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("bitbake needs %d programs that this machine lacks\nnext: %s", len(missing), host.AptLine(missing))
	}
	return nil
}

var makeLocale = []string{"localedef", "-i", "en_US", "-f", "UTF-8", "en_US.UTF-8"}

// checkLocale refuses a machine without the locale en_US.UTF-8, before bitbake takes half a minute.
func checkLocale(ctx context.Context) error {
	out, err := run.Output(ctx, run.Command{Argv: []string{"locale", "-a"}})
	if err != nil {
		return err
	}
	have := strings.Fields(strings.ToLower(string(out)))
	if !slices.Contains(have, "en_us.utf8") && !slices.Contains(have, "en_us.utf-8") {
		return fmt.Errorf("bitbake needs the locale en_US.UTF-8, which this machine lacks\nnext: sudo %s", strings.Join(makeLocale, " "))
	}
	return nil
}

func hasProgram(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

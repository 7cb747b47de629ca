package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"slipway/layers/host"
	"slipway/layers/run"
)

// hostProgram is a program that a build runs, and the Debian package that holds it.
type hostProgram struct{ program, pkg string }

// hostPrograms are the programs that OpenEmbedded wants of a machine, and the
// Debian packages that hold them.
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

// Hindrances are why this machine cannot build the board, as far as that can be told
// in a second. Build stops at the same things. The first line of each says what is
// wrong, the others what to do.
func Hindrances(ctx context.Context, spec Spec) []error {
	checks := []func() error{
		func() error { return runsHere(ctx, spec) },
		func() error { return ownsOthers(ctx) },
	}
	if spec.Debian == nil {
		programs, more := hostPrograms, []func() error(nil)
		if BuildsWithIsar(ctx, spec) {
			programs, more = isarPrograms, isarChecks(ctx, spec)
		}
		checks = append([]func() error{
			func() error { return checkUser(spec.TypedName(), BuildRequest{}, os.Geteuid()) },
			func() error { return checkPrograms(programs) },
			func() error { return checkLocale(ctx) },
		}, more...)
	}
	var all []error
	for _, check := range checks {
		if err := check(); err != nil {
			all = append(all, err)
		}
	}
	return all
}

// ErrRoot is the hindrance that root is.
var ErrRoot = errors.New("bitbake does not build as root")

func checkUser(board string, request BuildRequest, uid int) error {
	if uid == 0 {
		return fmt.Errorf("%w: a normal user who owns the build folder can\nnext: sudo -u NAME -H %s build %s%s", ErrRoot, host.ProgramName(), board, request.flags())
	}
	return nil
}

// checkPrograms finds out now what bitbake would stop at minutes later.
func checkPrograms(programs []hostProgram) error {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p.program); err != nil {
			missing = append(missing, p.pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("bitbake needs %d programs that this machine lacks; run:\n  %s", len(missing), host.AptLine(missing))
	}
	return nil
}

// Without this locale bitbake tries for half a minute before it says so.
func checkLocale(ctx context.Context) error {
	out, err := run.Output(ctx, run.Command{Argv: []string{"locale", "-a"}})
	if err != nil {
		return err
	}
	have := strings.Fields(strings.ToLower(string(out)))
	if !slices.Contains(have, "en_us.utf8") && !slices.Contains(have, "en_us.utf-8") {
		return fmt.Errorf("bitbake needs the locale en_US.UTF-8, which this machine lacks; run:\n  sudo localedef -i en_US -f UTF-8 en_US.UTF-8")
	}
	return nil
}

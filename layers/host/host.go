// Package host finds the Debian packages that this machine lacks, and can install them. It
// runs other commands as root, and starts Slipway again in its user's new groups. It also
// knows by what name Slipway was started. It runs apt, dpkg-query and sudo.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Missing returns the Debian packages that are not installed, in their order. It needs dpkg-query.
func Missing(ctx context.Context, packages ...string) ([]string, error) {
	if len(packages) == 0 {
		return nil, nil
	}
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil, fmt.Errorf("this machine has no dpkg: install by hand what these Debian packages hold: %s", strings.Join(packages, " "))
	}
	// dpkg-query exits with 1 when it does not know one of them, which is an answer.
	out, err := run.Output(ctx, run.Command{
		Argv: append([]string{"dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"}, packages...),
	})
	if ctx.Err() != nil {
		return nil, err
	}
	installed := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if name, status, ok := strings.Cut(strings.TrimSpace(line), " "); ok && status == "installed" {
			installed[name] = true
		}
	}
	var missing []string
	for _, p := range packages {
		if !installed[p] {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// AptLine returns the command by which a person installs packages.
func AptLine(packages []string) string {
	return "sudo apt-get install -y --no-install-recommends " + strings.Join(packages, " ")
}

// CheckMayInstall returns Ensure's error if it may not install the missing packages.
func CheckMayInstall(ctx context.Context, packages ...string) error {
	missing, err := Missing(ctx, packages...)
	if err == nil && len(missing) > 0 {
		_, err = rightsFor(ctx, missing)
	}
	return err
}

// rightsFor returns the words that run apt-get as root, or an error with the command for a person.
func rightsFor(ctx context.Context, missing []string) ([]string, error) {
	rights, err := rootCommand(ctx)
	if err != nil {
		err = fmt.Errorf("this machine lacks %d packages, and Slipway cannot install them: %w\nnext: %s", len(missing), err, AptLine(missing))
	}
	return rights, err
}

// Ensure installs the packages that are missing with apt-get, whose output it appends to the file
// log. It first prints the command to w. If it may not install, the error has that command.
func Ensure(ctx context.Context, w io.Writer, log string, packages ...string) error {
	missing, err := Missing(ctx, packages...)
	if err != nil || len(missing) == 0 {
		return err
	}
	rights, err := rightsFor(ctx, missing)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "This machine lacks %d packages. Installing them:\n  %s\n", len(missing), AptLine(missing))
	return progress.Run(ctx, "packages", func(s *progress.Step) (string, error) {
		return fmt.Sprintf("%d installed", len(missing)), installPackages(ctx, s, rights, log, missing)
	})
}

// installPackages runs apt-get update and install, shows the output in s and appends it to log.
func installPackages(ctx context.Context, s *progress.Step, rights []string, log string, packages []string) error {
	apt := run.Command{
		Argv: append(slices.Clone(rights), "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get", "-q"),
		Log:  log, Keep: true, Gentle: true,
	}
	if err := runUnlocked(ctx, s.Detail, apt, "update"); err != nil {
		return err
	}
	return runUnlocked(ctx, s.Detail, apt, append([]string{"install", "-y", "--no-install-recommends"}, packages...)...)
}

// lockedPause is the time between two tries while another process holds an apt lock. An automatic
// upgrade takes minutes. One that takes longer than lockedLimit hangs.
var lockedPause, lockedLimit = 2 * time.Second, 30 * time.Minute

// runUnlocked runs apt-get, passes its lines to say, and repeats it, up to lockedLimit, while
// another process has one of apt's four locks. apt itself can only wait for two of them.
func runUnlocked(ctx context.Context, say func(string), apt run.Command, args ...string) error {
	apt.Argv = append(slices.Clone(apt.Argv), args...)
	for end := time.Now().Add(lockedLimit); ; {
		locked := ""
		apt.Line = func(line string) {
			if found, ok := strings.CutPrefix(line, "E: Could not get lock "); ok {
				locked = found
				say("waiting for " + found)
			} else if locked == "" {
				say(line)
			}
		}
		err := run.Run(ctx, apt)
		if err == nil || locked == "" || time.Now().After(end) {
			return err
		}
		if err := run.Sleep(ctx, lockedPause); err != nil {
			return err
		}
	}
}

// InstallVariable says whether Slipway may install packages and run as root: yes (or unset) or no.
const InstallVariable = "SLIPWAY_INSTALL"

// CheckInstall returns an error if InstallVariable is set to another value than yes or no.
func CheckInstall() error {
	if said := os.Getenv(InstallVariable); !slices.Contains([]string{"", "yes", "no"}, said) {
		return fmt.Errorf("%s=%s: want yes or no\nnext: unset %[1]s", InstallVariable, plaintext.Quote(said))
	}
	return nil
}

// ErrForbidden means that this run may not change this machine.
var ErrForbidden = errors.New("it may not change this machine")

type forbidden struct{}

// Forbid returns a context in which nothing is installed or run as root. Errors give the reason.
func Forbid(ctx context.Context, why string) context.Context {
	return context.WithValue(ctx, forbidden{}, why)
}

// rootCommand returns the words before a command that make it run as root, none for root. It
// returns an error if this run may not change the machine, or if sudo needs a password.
func rootCommand(ctx context.Context) ([]string, error) {
	if why, ok := ctx.Value(forbidden{}).(string); ok {
		return nil, fmt.Errorf("%w (%s)", ErrForbidden, why)
	}
	if said := os.Getenv(InstallVariable); said != "" && said != "yes" {
		return nil, fmt.Errorf("%w (%s=%s)", ErrForbidden, InstallVariable, plaintext.Quote(said))
	}
	if os.Geteuid() == 0 {
		return nil, nil
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		return nil, fmt.Errorf("%w, and sudo is not installed", ErrNotRoot)
	}
	if _, err := run.Output(ctx, run.Command{Argv: []string{"sudo", "-n", "true"}}); err != nil {
		return nil, fmt.Errorf("%w, and sudo asks for a password (run \"sudo -v\" first)", ErrNotRoot)
	}
	return []string{"sudo", "-n"}, nil
}

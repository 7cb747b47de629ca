package commands

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"slipway/ci/audit"
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// auditHere is the variable by which auditReports makes its child audit an image itself.
const auditHere = "SLIPWAY_AUDIT_HERE"

// auditCommand returns the command audit, which searches an image or a running board for faults.
func auditCommand() *Command {
	c := New("audit TARGET", "Search an image for faults that show on the board, and for secrets")
	c.Long = `TARGET is a board that is built, the folder of an artifact or of a root file system, a disk
image, or an ext4 file system. Slipway mounts and changes nothing.

TARGET can also be a running board: user@host, or with --live a name. tar on the board sends its
root file system, which Slipway keeps in a temporary file until it has read it.

The audit finds:
- programs for another processor, or without their interpreter or libraries
- libraries that are too old for a program, and paths of the build machine
- Python bytecode of another version, GPU code for another GPU (with --sm)
- kernel modules, scripts, units and links that lead nowhere
- private keys, passwords, tokens, host keys, and accounts that everybody knows
- setuid programs, files that everyone may write, and owners that the image lacks

To allow a finding, give its rule and path: --allow="setuid /usr/bin/helper".`
	c.exits = []exit{{4, "there are findings"}}
	c.Example = `slipway audit isar-amd64
slipway audit image.wic --arch=arm64 --sm=87
slipway audit /srv/rootfs --json
slipway audit root@10.0.0.7
slipway audit virt --live`
	arch := c.choice("arch", []string{"amd64", "arm64", "armhf", "i386", "riscv64"}, "the board's architecture; that of most programs if not given")
	sm := c.Text("sm", "", "the board's GPU, as in sm_87: 87 for Orin, 72 for Xavier")
	allow := c.Names("allow", "findings that are wanted: \"RULE PATH\", with * in PATH and commas between them")
	asJSON := c.Switch("json", "print the reports as JSON")
	live := c.Switch("live", "TARGET is a board that runs: a virtual board, or a host of your ssh_config")
	pin := c.pin()
	c.become()
	c.check = func([]string) error { return audit.CheckAllowed(*allow) }
	c.Run = func(ctx context.Context, words []string) error {
		opt := audit.Options{Arch: *arch, SM: *sm, Allow: *allow}
		_, notHere := os.Stat(words[0])
		if *live || strings.Contains(words[0], "@") && notHere != nil {
			return withSignals(ctx, func(ctx context.Context) error {
				one, err := auditBoard(ctx, words[0], *pin, opt)
				if err != nil {
					return fmt.Errorf("audit %s: %w", words[0], err)
				}
				return showAudit(ctx, words[0], []audit.Report{one}, *asJSON)
			})
		}
		found, err := audit.Find(words[0], options.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			return report.Because(ctx, report.ErrWrong, err)
		}
		if err != nil {
			return err
		}
		if os.Getenv(auditHere) != "" {
			return audit.Answer(ctx, os.Stdout, found, opt)
		}
		reports, err := auditReports(ctx, words[0], found, opt)
		if err != nil {
			return fmt.Errorf("audit %s: %w", words[0], err)
		}
		return showAudit(ctx, words[0], reports, *asJSON)
	}
	return c
}

// showAudit prints the reports, and returns an error if there are findings.
func showAudit(ctx context.Context, name string, reports []audit.Report, asJSON bool) error {
	if asJSON {
		if err := plaintext.WriteJSON(stdout, reports); err != nil {
			return err
		}
	}
	found := 0
	for _, r := range reports {
		if found += len(r.Findings); !asJSON {
			if err := r.Write(stdout); err != nil {
				return err
			}
		}
	}
	if found > 0 {
		return report.Because(ctx, report.ErrFailed, fmt.Errorf("audit %s: %d findings; --allow names those that are wanted\nnext: repeat the line  # after doing what the lines say", name, found))
	}
	return nil
}

// auditBoard connects to a running board and audits its root file system.
func auditBoard(ctx context.Context, host, pin string, opt audit.Options) (r audit.Report, err error) {
	spec, err := smokeSpec("", host, nil)
	if err != nil {
		return r, err
	}
	err = reach.WithConnection(ctx, options, spec, host, func(conn *boardssh.Conn) error {
		r, err = audit.AuditBoard(ctx, conn, opt)
		return err
	}, pin)
	return r, err
}

// auditReports audits a folder in this process, or an image in a child process with limits.
func auditReports(ctx context.Context, name string, found audit.Target, opt audit.Options) ([]audit.Report, error) {
	if found.Image == "" {
		return audit.Audit(ctx, found, opt)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argv := []string{self, "audit", name}
	for _, flag := range []struct{ name, value string }{{"arch", opt.Arch}, {"sm", opt.SM}, {"allow", strings.Join(opt.Allow, ",")}} {
		if flag.value != "" {
			argv = append(argv, "--"+flag.name+"="+flag.value)
		}
	}
	return audit.Isolate(ctx, argv, []string{auditHere + "=1"})
}

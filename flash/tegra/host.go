package tegra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/run"
)

// Host names the kernel's folders of the machine that flashes. Tests use folders of their own.
type Host struct {
	Sys, Proc, Run string
}

// Here is this machine.
var Here = Host{Sys: "/sys", Proc: "/proc", Run: "/run"}

// tool is a program that the scripts run, with its Debian package.
type tool struct {
	program, pkg string
	flows        []string // nil: all
	chips        []string // nil: all
}

// newerChips have packages that compile device trees and read YAML to sign, also for a card.
var newerChips = []string{"t186", "t194", "t234", "t264"}

// tools lists programs that the scripts run and that a Debian machine may lack.
var tools = []tool{
	{"bash", "bash", nil, nil},
	{"getopt", "util-linux", nil, nil},
	{"python3", "python3", nil, nil},
	{"dtc", "device-tree-compiler", nil, newerChips},
	{"cpp", "cpp", nil, newerChips},
	{"fdtput", "device-tree-compiler", nil, []string{"t210"}},
	{"sgdisk", "gdisk", []string{Initrd, card}, nil},
	{"partprobe", "parted", []string{Initrd}, nil},
	{"udevadm", "udev", []string{Initrd}, nil},
	{"udisksctl", "udisks2", []string{Initrd}, nil},
	{"blockdev", "util-linux", []string{Initrd}, nil},
	{"xmllint", "libxml2-utils", []string{Unified}, nil},
}

// isNeeded reports whether a flow's scripts run the program for a chip, or for any if chip is "".
func (t tool) isNeeded(flow, chip string) bool {
	return (t.flows == nil || slices.Contains(t.flows, flow)) && (t.chips == nil || chip == "" || slices.Contains(t.chips, chip))
}

// missingTools returns an error that names the programs and Python modules that a flow's scripts
// need and this machine lacks, with their Debian packages.
func (p *Package) missingTools(ctx context.Context, flow string) error {
	var missing, packages []string
	for _, t := range tools {
		if !t.isNeeded(flow, p.Chip) {
			continue
		}
		if _, err := run.LookPath(t.program); err != nil {
			missing, packages = append(missing, t.program), append(packages, t.pkg)
		}
	}
	if _, err := run.LookPath("python3"); err == nil && p.Chip != "t210" {
		if _, err := run.Output(ctx, run.Command{Argv: []string{"python3", "-c", "import yaml"}}); err != nil {
			missing, packages = append(missing, "yaml of python3"), append(packages, "python3-yaml")
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(packages)
	return fmt.Errorf("this machine lacks what the package's scripts run: %s; apt install %s", strings.Join(missing, ", "), strings.Join(slices.Compact(packages), " "))
}

// checkRoot returns an error unless this process is root or sudo works without a password. The
// scripts call sudo, and nobody can type a password.
func checkRoot(ctx context.Context) error {
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := run.Output(ctx, run.Command{Argv: []string{"sudo", "-n", "true"}}); err != nil {
		return errors.New("the package's scripts need root for some steps; run this as root, or let sudo work without a password")
	}
	return nil
}

// Cautions returns a warning for each thing at the USB port that is known to disturb a flash: a
// hub, power saving, or a connection below 480 Mbit/s.
func (h Host) Cautions(port string) []string {
	var found []string
	if strings.Contains(port, ".") {
		found = append(found, "the board is behind a USB hub; many lose it in the middle: use a port of the computer itself if it fails")
	}
	if readAttribute(h.Sys, port, "power/control") == "auto" {
		found = append(found, "power saving may put the board's USB port to sleep; echo on > /sys/bus/usb/devices/"+port+"/power/control")
	}
	if speed := parseCount(readAttribute(h.Sys, port, "speed")); speed > 0 && speed < 480 {
		found = append(found, fmt.Sprintf("the board is connected at %d Mbit/s only; use another cable", speed))
	}
	return found
}

// quietRule is a udev rule that stops udisks from mounting the disks of a Jetson's flashing system.
const quietRule = `SUBSYSTEM=="block", ATTRS{idVendor}=="1d6b", ATTRS{idProduct}=="0104", ENV{UDISKS_AUTO}="0"` + "\n"

// Quiet writes a udev rule that keeps desktops from mounting the boards' disks, until undo removes
// the rule. It also removes the rules of dead Slipway processes. Without udev it does nothing. said
// is a warning if it fails. The scripts still mount the disks, through udisks.
func (h Host) Quiet(ctx context.Context) (undo func(), said string) {
	nothing := func() {}
	if _, err := os.Stat(filepath.Join(h.Run, "udev")); err != nil {
		return nothing, "" // no udev, so nothing mounts
	}
	dir, rule := filepath.Join(h.Run, "udev/rules.d"), ""
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		h.removeStaleRules(dir)
		rule, err = writeRule(dir)
	}
	if err != nil {
		return nothing, "a desktop may mount the board's disks in between, as its udev rule could not be set: " + err.Error()
	}
	h.reloadUdev(ctx)
	return func() {
		_ = os.Remove(rule)
		h.reloadUdev(context.WithoutCancel(ctx))
	}, ""
}

// writeRule writes the rule to a new file of dir, as this process may flash several boards. It returns
// the file's path.
func writeRule(dir string) (string, error) {
	f, err := os.CreateTemp(dir, fmt.Sprintf("99-slipway-flash-%d.*.rules", os.Getpid()))
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(quietRule)
	return f.Name(), errors.Join(err, f.Close())
}

// removeStaleRules removes the udev rules of Slipway processes that no longer run.
func (h Host) removeStaleRules(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, "99-slipway-flash-*.rules")) // the pattern is well-formed
	for _, path := range found {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), "99-slipway-flash-"), ".")
		if _, err := os.Stat(filepath.Join(h.Proc, pid)); parseCount(pid) > 0 && errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(path)
		}
	}
}

// reloadUdev has udev read its rules again, if h.Run is this machine's /run. It ignores errors.
func (h Host) reloadUdev(ctx context.Context) {
	if h.Run == Here.Run {
		_, _ = run.Output(ctx, run.Command{Argv: []string{"udevadm", "control", "--reload"}})
	}
}

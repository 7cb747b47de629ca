package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/plaintext"
)

// identityFiles are the board's files from which readIdentity learns its hardware and software.
var identityFiles = []string{
	"/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/random/boot_id", "/proc/cmdline", "/proc/uptime",
	"/etc/machine-id", "/etc/os-release", "/etc/nv_tegra_release", "/etc/mlnx-release",
	"/sys/class/dmi/id/product_name", "/sys/class/dmi/id/product_serial", "/sys/class/dmi/id/bios_version",
	"/proc/device-tree/model", "/proc/device-tree/serial-number",
}

// identityScript prints all files with one grep, because each process costs time on a slow board.
// Then it runs the programs that know the running slot. It writes the name of each program to
// stderr. RAUC starts a service, so it runs only if the kernel's command line has no slot.
const identityScript = `grep -aHs "" "$@"
told() { command -v "$1" >/dev/null 2>&1 && echo "runs $1" >&2 && "$@" 2>/dev/null | sed "s/^/$1:/"; }
grep -qs rauc.slot= /proc/cmdline || told rauc status --output-format=shell
told nvbootctrl get-current-slot
told mlxbf-bootctl
true`

// readIdentity runs identityScript on the board and returns the board's identity, with a's key.
// What the board does not tell stays empty. The only error that it returns is boardssh.ErrSilent.
func (s *Session) readIdentity(ctx context.Context, a images.Artifact) (id report.Identity, err error) {
	err = boardssh.Answer(ctx, 0, "read the board's identity", func(ctx context.Context) error {
		// An error may come with the output until then.
		r, err := s.Board.Run(ctx, slices.Concat([]string{"sh", "-c", identityScript, "sh"}, identityFiles)...)
		id = parseIdentity(string(r.Stdout))
		program := "grep"
		for _, line := range plaintext.Lines(string(r.Stderr)) {
			if name, ok := strings.CutPrefix(line, "runs "); ok {
				program = plaintext.Clean(name, 40)
			}
		}
		if err != nil {
			err = fmt.Errorf("%s, for the board's identity: %w", program, err)
		}
		return err
	})
	id.ImageKey = a.Key
	if !errors.Is(err, boardssh.ErrSilent) {
		err = nil
	}
	return id, err
}

// parseIdentity parses identityScript's output: lines NAME:TEXT, with NAME of a file or program.
func parseIdentity(text string) report.Identity {
	texts := parseGrepOutput(text)
	for from, text := range texts {
		texts[from] = plaintext.Clean(plaintext.TrimNewline(text), 4096)
	}
	return identityOf(texts)
}

// identityOf returns the identity from the texts of files and programs, by their names.
func identityOf(texts map[string]string) (id report.Identity) {
	id.Hostname, id.Kernel = texts["/proc/sys/kernel/hostname"], texts["/proc/sys/kernel/osrelease"]
	id.BootID, id.MachineID = texts["/proc/sys/kernel/random/boot_id"], texts["/etc/machine-id"]
	id.Model = cmp.Or(dropPlaceholder(texts["/sys/class/dmi/id/product_name"]), texts["/proc/device-tree/model"])
	id.Serial = cmp.Or(dropPlaceholder(texts["/sys/class/dmi/id/product_serial"]), texts["/proc/device-tree/serial-number"])
	id.Firmware = dropPlaceholder(texts["/sys/class/dmi/id/bios_version"])
	id.L4T, id.BlueField = parseL4T(texts["/etc/nv_tegra_release"]), plaintext.FirstLine(texts["/etc/mlnx-release"])
	os := plaintext.Properties(texts["/etc/os-release"])
	id.OS = trimQuotes(os["PRETTY_NAME"])
	id.Image = strings.TrimSpace(trimQuotes(os["IMAGE_ID"]) + " " + trimQuotes(os["IMAGE_VERSION"]))
	id.Slot = findSlot(texts)
	seconds, _, _ := strings.Cut(texts["/proc/uptime"], " ")
	if up, err := strconv.ParseFloat(seconds, 64); err == nil && up >= 0 && up < 1e10 {
		id.UptimeSec = int64(up)
	}
	return id
}

func trimQuotes(text string) string { return strings.Trim(text, `"'`) }

// dropPlaceholder returns the trimmed text, or "" for a placeholder like "To be filled by O.E.M.".
func dropPlaceholder(text string) string {
	for _, empty := range []string{"", "0", "none", "not specified", "not applicable", "default string", "to be filled by o.e.m.", "system serial number", "unknown"} {
		if strings.EqualFold(strings.TrimSpace(text), empty) {
			return ""
		}
	}
	return strings.TrimSpace(text)
}

var tegraRelease = plaintext.Regexp(`^# R([0-9]+) \(release\), REVISION: ([0-9.]+)`)

// parseL4T returns a release like "R36.4.3" from NVIDIA's release file, or "".
func parseL4T(text string) string {
	m := tegraRelease().FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return "R" + m[1] + "." + m[2]
}

// findSlot returns the running slot or "", by kernel command line, RAUC, nvbootctrl, mlxbf-bootctl.
func findSlot(texts map[string]string) string {
	if slot := bootedSlot(texts["/proc/cmdline"]); slot != "" {
		return slot
	}
	if slot := trimQuotes(plaintext.Properties(texts["rauc"])["RAUC_SYSTEM_BOOTED_BOOTNAME"]); slot != "" {
		return slot
	}
	switch number := texts["nvbootctrl"]; number {
	case "0", "1":
		return map[string]string{"0": "A", "1": "B"}[number]
	}
	for _, line := range plaintext.Lines(texts["mlxbf-bootctl"]) {
		if device, ok := strings.CutPrefix(line, "primary:"); ok {
			return strings.TrimPrefix(strings.TrimSpace(device), "/dev/") // the slot of the boot stream only
		}
	}
	return ""
}

package ci

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"slipway/images"
)

// identityFiles say which board this is and what runs on it. One grep reads them
// all, because each question costs a process on a slow board.
var identityFiles = []string{
	"/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/random/boot_id", "/proc/cmdline",
	"/proc/uptime", "/etc/machine-id", "/etc/os-release", "/sys/class/dmi/id/product_name", "/sys/class/dmi/id/product_serial",
}

// identify asks the board who it is. What it does not say stays empty: the checks
// judge the board, not this.
func (s *session) identify(ctx context.Context, a images.Artifact) Identity {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	id := Identity{ImageKey: a.Key}
	r, err := s.board.Run(ctx, slices.Concat([]string{"grep", "-Hs", ""}, identityFiles)...)
	if err != nil {
		return id
	}
	files := map[string]string{}
	for _, line := range lines(string(r.Stdout)) {
		if file, text, ok := strings.Cut(line, ":"); ok {
			files[file] += text + "\n"
		}
	}
	for file, text := range files {
		files[file] = clean(chomp(text), 4096)
	}
	id.read(files)
	return id
}

func (id *Identity) read(files map[string]string) {
	id.Hostname, id.Kernel = files["/proc/sys/kernel/hostname"], files["/proc/sys/kernel/osrelease"]
	id.BootID, id.MachineID = files["/proc/sys/kernel/random/boot_id"], files["/etc/machine-id"]
	id.Model, id.Serial = files["/sys/class/dmi/id/product_name"], files["/sys/class/dmi/id/product_serial"]
	id.OS = strings.Trim(properties(files["/etc/os-release"])["PRETTY_NAME"], `"'`)
	id.Slot = bootedSlot(files["/proc/cmdline"])
	seconds, _, _ := strings.Cut(files["/proc/uptime"], " ")
	if up, err := strconv.ParseFloat(seconds, 64); err == nil && up >= 0 && up < 1e10 {
		id.UptimeSec = int64(up)
	}
}

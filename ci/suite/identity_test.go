package suite

import (
	"os/exec"
	"strings"
	"testing"

	"slipway/ci/report"

	"github.com/google/go-cmp/cmp"
)

const orinSays = "/proc/sys/kernel/hostname:orin\n/proc/sys/kernel/osrelease:5.15.148-l4t-r36.4\n/proc/uptime:61.04 200.1\n" +
	"/etc/os-release:PRETTY_NAME=\"Slipway 5.0\"\n/etc/os-release:IMAGE_ID=slipway-image-full\n/etc/os-release:IMAGE_VERSION='7'\n" +
	"/etc/nv_tegra_release:# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n" +
	"/sys/class/dmi/id/product_name:NVIDIA Jetson Orin Nano Developer Kit\n/sys/class/dmi/id/product_serial:Not Specified\n" +
	"/sys/class/dmi/id/bios_version:36.4.3-gcid-38968081\n/proc/device-tree/model:NVIDIA Jetson Orin Nano\x00\n/proc/device-tree/serial-number:1424523012345\x00\n" +
	"/proc/cmdline:root=PARTUUID=x rw\nnvbootctrl:1\n"

func TestParseIdentity(t *testing.T) {
	for _, tt := range []struct {
		name, texts string
		want        report.Identity
	}{
		{"nothing", "", report.Identity{}},
		{"a Jetson", orinSays, report.Identity{
			Hostname: "orin", Kernel: "5.15.148-l4t-r36.4", UptimeSec: 61, OS: "Slipway 5.0", Image: "slipway-image-full 7", L4T: "R36.4.3",
			Model: "NVIDIA Jetson Orin Nano Developer Kit", Serial: "1424523012345", Firmware: "36.4.3-gcid-38968081", Slot: "B",
		}},
		{
			"a BlueField", "/etc/mlnx-release:bf-bundle-2.9.1-40_24.11_prod\n/sys/class/dmi/id/product_serial:MT2233X00123\nmlxbf-bootctl:primary: /dev/mmcblk0boot1\nmlxbf-bootctl:backup: /dev/mmcblk0boot0\n",
			report.Identity{BlueField: "bf-bundle-2.9.1-40_24.11_prod", Serial: "MT2233X00123", Slot: "mmcblk0boot1"},
		},
		{"the engine before the firmware", "rauc:RAUC_SYSTEM_COMPATIBLE='x'\nrauc:RAUC_SYSTEM_BOOTED_BOOTNAME='A'\nnvbootctrl:1\n", report.Identity{Slot: "A"}},
		{"the command line before the engine", "/proc/cmdline:quiet rauc.slot=B\nrauc:RAUC_SYSTEM_BOOTED_BOOTNAME='A'\n", report.Identity{Slot: "B"}},
		{"noise", "no colon\n:\nnvbootctrl:7\n/proc/uptime:NaN\n/etc/nv_tegra_release:R36\n/sys/class/dmi/id/product_serial:To Be Filled By O.E.M.\n/proc/sys/kernel/hostname:\x1b[2Jx\n", report.Identity{Hostname: "x"}},
	} {
		if diff := cmp.Diff(tt.want, parseIdentity(tt.texts)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// The script runs in this machine's shell and in BusyBox.
func TestIdentityScript(t *testing.T) {
	args := append([]string{"sh", "-c", identityScript, "sh"}, identityFiles...)
	shells := map[string]*exec.Cmd{"sh": exec.CommandContext(t.Context(), args[0], args[1:]...)}
	if busybox, err := exec.LookPath("busybox"); err == nil {
		shells["busybox"] = exec.CommandContext(t.Context(), busybox, args...)
	}
	for name, cmd := range shells {
		out, err := cmd.Output()
		if id := parseIdentity(string(out)); err != nil || id.Hostname == "" || id.Kernel == "" || id.OS == "" || id.BootID == "" || id.UptimeSec == 0 {
			t.Errorf("%s: %v, %+v of\n%s", name, err, id, out)
		}
	}
}

func FuzzParseIdentity(f *testing.F) {
	f.Add(orinSays)
	f.Add("rauc:RAUC_SYSTEM_BOOTED_BOOTNAME=\nmlxbf-bootctl:primary:")
	f.Fuzz(func(t *testing.T, texts string) {
		for _, fact := range parseIdentity(texts).Facts() {
			if strings.ContainsAny(fact.Value, "\x00\x1b\r") {
				t.Errorf("%s is %q", fact.Name, fact.Value)
			}
		}
	})
}

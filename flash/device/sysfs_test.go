package device

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"slipway/flash/flashtest"
)

const mib = 1 << 20

// fake lays out a machine as its kernel would: below /sys/devices by bus, with
// links in /sys/class/block. Its lines are "path = content" or "path -> target".
func fake(t *testing.T, lines string) machine {
	t.Helper()
	root := t.TempDir()
	m := machine{sys: filepath.Join(root, "sys"), proc: filepath.Join(root, "proc"), dev: "/dev", nodes: filepath.Join(root, "dev")}
	for _, dir := range []string{m.sys + "/class/block", m.proc + "/self"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if name, target, ok := strings.Cut(line, " -> "); ok {
			flashtest.Link(t, root, name, target)
		} else if name, content, ok := strings.Cut(line, " = "); ok {
			flashtest.Put(t, filepath.Join(root, name), strings.ReplaceAll(content, `\n`, "\n")+"\n")
		}
	}
	numbers, err := filepath.Glob(filepath.Join(m.sys, "class/block/*/dev"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range numbers {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		flashtest.Link(t, "", filepath.Join(m.sys, "dev/block", readAttribute(dir, "dev")), dir)
		node := filepath.Join(m.nodes, filepath.Base(dir))
		flashtest.Put(t, node, "")
		if err := os.Truncate(node, sizeBytes(dir)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// A laptop with two NVMe disks, a card reader with a card, and a USB stick with
// two partitions.
const laptop = `
sys/class/block/nvme0n1 -> sys/devices/pci0/nvme/nvme0/nvme0n1
sys/devices/pci0/nvme/nvme0/serial = S4EWNX0N
sys/devices/pci0/nvme/nvme0/model = Fast Disk 1TB
sys/devices/pci0/nvme/nvme0/nvme0n1/device -> sys/devices/pci0/nvme/nvme0
sys/devices/pci0/nvme/nvme0/nvme0n1/dev = 259:0
sys/devices/pci0/nvme/nvme0/nvme0n1/size = 2000409264
sys/devices/pci0/nvme/nvme0/nvme0n1/removable = 0
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/partition = 1
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/dev = 259:1
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1/size = 2048
sys/class/block/nvme0n1p1 -> sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2/partition = 2
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2/dev = 259:2
sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2/size = 4096
sys/class/block/nvme0n1p2 -> sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2

sys/class/block/nvme1n1 -> sys/devices/pci0/nvme/nvme1/nvme1n1
sys/devices/pci0/nvme/nvme1/serial = S5SPARE
sys/devices/pci0/nvme/nvme1/model = Spare Disk
sys/devices/pci0/nvme/nvme1/nvme1n1/device -> sys/devices/pci0/nvme/nvme1
sys/devices/pci0/nvme/nvme1/nvme1n1/dev = 259:8
sys/devices/pci0/nvme/nvme1/nvme1n1/size = 2097152
sys/devices/pci0/nvme/nvme1/nvme1n1/removable = 0

sys/class/block/mmcblk0 -> sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/name = SD64G
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/type = SD
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/serial = 0x1234abcd
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/device -> sys/devices/pci0/mmc_host/mmc0/mmc0:0001
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/dev = 179:0
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/size = 2097152
sys/devices/pci0/mmc_host/mmc0/mmc0:0001/block/mmcblk0/removable = 0

sys/class/block/sda -> sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda
sys/devices/pci0/usb1/1-2/idVendor = 0781
sys/devices/pci0/usb1/1-2/serial = 4C530001
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/vendor = SanDisk
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/model = Ultra` + "\x1b[31m" + `
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/device -> sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/dev = 8:0
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/size = 2097152
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/removable = 1
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/sda1/partition = 1
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/sda1/dev = 8:1
sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/sda1/size = 1024
sys/class/block/sda1 -> sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda/sda1

proc/self/mountinfo = 1 0 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n2 1 0:24 / /run rw - tmpfs tmpfs rw
proc/swaps = Filename Type Size Used Priority
`

const stick = "sys/devices/pci0/usb1/1-2/1-2:1.0/host4/target4:0:0/4:0:0:0/block/sda"

func TestDevices(t *testing.T) {
	got, err := fake(t, laptop).listBlockDevices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{
		{
			Path: "/dev/mmcblk0", Kind: Block, Bus: "mmc", Model: "SD64G", Serial: "0x1234abcd", Port: "mmc0",
			SizeBytes: 1 << 30, Removable: true, Number: "179:0",
		},
		{
			Path: "/dev/nvme0n1", Kind: Block, Bus: "nvme", Model: "Fast Disk 1TB", Serial: "S4EWNX0N", Port: "pci0/nvme/nvme0/nvme0n1",
			SizeBytes: 2000409264 * 512, Number: "259:0",
			Partitions: []Content{
				{Name: "nvme0n1p1", SizeBytes: 1 << 20},
				{Name: "nvme0n1p2", SizeBytes: 2 << 20, Uses: []string{"holds the running system: /"}},
			},
			Refused: "holds the running system: /",
		},
		{
			Path: "/dev/nvme1n1", Kind: Block, Bus: "nvme", Model: "Spare Disk", Serial: "S5SPARE", Port: "pci0/nvme/nvme1/nvme1n1",
			SizeBytes: 1 << 30, Number: "259:8",
		},
		{
			Path: "/dev/sda", Kind: Block, Bus: "usb", Model: "SanDisk Ultra[31m", Serial: "4C530001", Port: "usb:1-2",
			SizeBytes: 1 << 30, Removable: true, Number: "8:0",
			Partitions: []Content{{Name: "sda1", SizeBytes: 512 << 10}},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Device{})); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	var b strings.Builder
	if err := Table(&b, got); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(b.String(), "\n"); len(lines) != 6 || !strings.Contains(lines[2], "refused: holds the running system") || !strings.Contains(lines[3], "only when named by its serial") {
		t.Errorf("Table:\n%s", b.String())
	}
}

func TestConfirm(t *testing.T) {
	card := Device{Path: "/dev/sda", Kind: Block, Bus: "usb", Serial: "4C53", Removable: true, exists: true}
	disk := Device{Path: "/dev/nvme0n1", Kind: Block, Bus: "nvme", Serial: "S4EW", exists: true}
	nameless := Device{Path: "/dev/vda", Kind: Block, Bus: "virtio", exists: true}
	unlabelled := Device{Path: "/dev/sdb", Kind: Block, Bus: "usb", Removable: true, exists: true}
	agree := func([]Device) error { return nil }
	tests := []struct {
		name    string
		device  Device
		yes     []string
		ask     func([]Device) error
		wantErr string
	}{
		{name: "card by its serial", device: card, yes: []string{"4C53"}},
		{name: "card by answer", device: card, ask: agree},
		{name: "card by its path", device: card, yes: []string{"/dev/sda"}, wantErr: "its serial"},
		{name: "card by another's serial, though answered", device: card, yes: []string{"4C54"}, ask: agree, wantErr: "--yes names"},
		{name: "card unasked", device: card, wantErr: "not confirmed"},
		{name: "card without a serial by its path", device: unlabelled, yes: []string{"/dev/sdb"}},
		{name: "card without a serial by another path", device: unlabelled, yes: []string{"/dev/sdc"}, wantErr: "its path"},
		{name: "card without a serial, unasked", device: unlabelled, wantErr: "its path; nothing"},
		{name: "disk by its serial", device: disk, yes: []string{"S4EW"}},
		{name: "disk by answer", device: disk, ask: agree, wantErr: "not removable"},
		{name: "disk without a serial", device: nameless, ask: agree, wantErr: "not removable"},
		{name: "disk without a serial by its path", device: nameless, yes: []string{"/dev/vda"}, wantErr: "--yes names"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := Confirm(t.Context(), []Device{test.device}, test.yes, test.ask)
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("confirm = %v; want an error with %q", err, test.wantErr)
			}
		})
	}
}

// An answer from a pipe ends the line of the question. After Ctrl-C the error says that nothing was
// written.
func TestQuestionEnds(t *testing.T) {
	card := []Device{{Path: "/dev/sda", Kind: Block, Bus: "usb", Serial: "4C53", Removable: true, exists: true}}
	var out strings.Builder
	if err := Confirm(t.Context(), card, nil, Ask(strings.NewReader("y\n"), &out)); err == nil || !strings.HasSuffix(out.String(), "to go on: \n") {
		t.Errorf("Confirm = %v, and it printed %q; want whole lines", err, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Confirm(ctx, card, nil, func([]Device) error { select {} })
	if !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "; nothing was written") {
		t.Errorf("Confirm = %v; want it to say that nothing was written", err)
	}
}

// A line that did not confirm a device does not read in the refusal how it would.
func TestConfirmTellsNoToken(t *testing.T) {
	card := Device{Path: "/dev/sda", Kind: Block, Bus: "usb", Serial: "4C53", Removable: true, exists: true}
	second := Device{Path: "/dev/sdb", Kind: Block, Bus: "usb", Serial: "7E21", Removable: true, exists: true}
	disk := Device{Path: "/dev/nvme0n1", Kind: Block, Bus: "nvme", Serial: "S4EW", exists: true}
	twin := Device{Path: "/dev/sdd", Kind: Block, Bus: "usb", Serial: "1111", Removable: true, exists: true, Twin: "/dev/sde", Port: "usb:1-2"}
	loop := Device{Path: "/dev/loop3", Kind: Block, Bus: "loop", exists: true}
	jetson := Device{Path: "usb:1-2.3", Kind: Tegra, exists: true}
	dpu := Device{Path: "/dev/rshim0", Kind: RShim, exists: true}
	ended := Ask(strings.NewReader(""), io.Discard)
	tests := []struct {
		name    string
		devices []Device
		yes     []string
		ask     func([]Device) error
		want    string // after --yes=; "": the line names a device that is none of them
	}{
		{"first of two", []Device{card, second}, []string{"4C53"}, nil, "4C53,<serial of /dev/sdb>"},
		{"second of two", []Device{card, second}, []string{"7E21"}, nil, "<serial of /dev/sda>,7E21"},
		{"another card", []Device{card}, []string{"7E21"}, nil, "<serial of /dev/sda>"},
		{"the path of a disk", []Device{disk}, []string{"/dev/nvme0n1"}, nil, "<serial of /dev/nvme0n1>"},
		{"a serial that two have", []Device{twin}, []string{"1111"}, nil, "<port of /dev/sdd>"},
		{"two loop devices", []Device{loop, {Path: "/dev/loop4", Kind: Block, Bus: "loop", exists: true}}, []string{"/dev/loop3"}, nil, "/dev/loop3,<path of /dev/loop4>"},
		{"two Jetsons", []Device{jetson, {Path: "usb:1-4", Kind: Tegra, exists: true}}, []string{"usb:1-2.3"}, nil, "usb:1-2.3,<path of usb:1-4>"},
		{"two DPUs", []Device{dpu, {Path: "/dev/rshim1", Kind: RShim, exists: true}}, []string{"/dev/rshim1"}, nil, "<path of /dev/rshim0>,/dev/rshim1"},
		{"one word too many", []Device{card}, []string{"4C53", "7E21"}, nil, ""},
		{"nobody can type", []Device{card, second}, nil, ended, "<serial of /dev/sda>,<serial of /dev/sdb>"},
		{"no question", []Device{card}, nil, nil, "<serial of /dev/sda>"},
		{"a disk that no answer confirms", []Device{disk}, nil, ended, "<serial of /dev/nvme0n1>"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := Confirm(t.Context(), test.devices, test.yes, test.ask)
			if err == nil {
				t.Fatal("confirmed")
			}
			_, line, _ := strings.Cut(err.Error(), "--yes=")
			if line, _, _ = strings.Cut(line, "\n"); line != test.want {
				t.Errorf("--yes=%s; want %s, in %v", line, test.want, err)
			}
			for _, d := range test.devices {
				token, _ := d.confirmationToken()
				if token != d.Path && !slices.Contains(test.yes, token) && strings.Contains(err.Error(), token) {
					t.Errorf("it tells %q, which the line did not name: %v", token, err)
				}
			}
			if !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), "\nnext: devices") {
				t.Errorf("no next step: %v", err)
			}
		})
	}
}

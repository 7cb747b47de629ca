package builder

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"strings"

	"slipway/images"

	"slipway/layers/plaintext"
)

// loaders holds, by firmware and processor, GRUB's name for the platform and the Debian packages of
// this machine that GRUB comes in. Debian offers the GRUB of another processor only to that
// processor: inImage then says that GRUB is one of the image's own packages.
var loaders = map[string]map[string]struct {
	format   string
	packages []string
	efiName  string
	inImage  bool
}{
	"bios": {
		"amd64": {format: "i386-pc", packages: []string{"grub-common", "grub-pc-bin"}},
	},
	"uefi": {
		"amd64": {format: "x86_64-efi", packages: []string{"grub-common", "grub-efi-amd64-bin", "dosfstools", "mtools"}, efiName: "BOOTX64.EFI"},
		"arm64": {format: "arm64-efi", packages: []string{"grub-common", "dosfstools", "mtools"}, efiName: "BOOTAA64.EFI", inImage: true},
	},
}

// maxTries is how often GRUB tries a slot that is not marked good, by RAUC's protocol.
const maxTries = 3

// grubConfig returns grub.cfg. It boots the first slot in ORDER that is good and has tries left,
// and counts the try before. If no slot has tries left, it boots the first good one, preferring one
// that was proved: another may be half written. If no slot is good, it boots the first slot anyway,
// as that may still work. Every failure reboots, and the next try counts.
func (d disk) grubConfig() string {
	slots := d.rootSlots()
	var b strings.Builder
	b.WriteString("set timeout=0\nload_env --file $prefix/" + envName + "\n")
	fmt.Fprintf(&b, "if [ -z \"$ORDER\" ]; then load_env --file $prefix/%s; fi\nset chosen=\n%s", keptName, proveScript(slots))
	b.WriteString(chooseScript(slots, func(slot string) string { return fmt.Sprintf(` -a "$%s_TRY" -lt %d`, slot, maxTries) }))
	for _, s := range slots {
		fmt.Fprintf(&b, "if [ \"$chosen\" = %[1]s ]; then\n  %[2]s\n  save_env --file $prefix/%[3]s %[1]s_TRY\nfi\n", s.name, countTry(s.name), envName)
	}
	b.WriteString(chooseScript(slots, func(slot string) string { return fmt.Sprintf(` -a "$%s_PROVED" = 1`, slot) }))
	b.WriteString(chooseScript(slots, func(string) string { return "" }))
	fmt.Fprintf(&b, "if [ -z \"$chosen\" ]; then echo 'no slot is good; booting %[1]s all the same'; set chosen=%[1]s; fi\n", slots[0].name)
	fmt.Fprintf(&b, "set LAST=$chosen\nsave_env --file $prefix/%s LAST", envName)
	for _, s := range slots {
		fmt.Fprintf(&b, " %s_PROVED", s.name)
	}
	b.WriteString("\n" + keepScript(slots))
	for _, s := range slots {
		fmt.Fprintf(&b, "if [ \"$chosen\" = %[1]s ]; then\n  set proved=\n  if [ \"$%[1]s_PROVED\" = 1 ]; then set proved=%[5]s; fi\n"+
			"  linux (hd0,gpt%[2]d)/vmlinuz %[3]s root=PARTLABEL=%[4]s rauc.slot=%[1]s $proved\nfi\n",
			s.name, s.number, d.spec.Disk.Cmdline, s.label, provedWord)
	}
	b.WriteString("boot\nreboot\n")
	return b.String()
}

// envName is GRUB's environment block, which RAUC writes. RAUC empties the file first, so a power
// cut can leave a block that neither can read. GRUB then reads keptName, which GRUB itself writes,
// and the board replaces the damaged file by it (rauc-still-good.service).
const (
	envName  = "grubenv"
	keptName = envName + ".good"
)

// keepScript returns GRUB commands that save a proved slot as the only good one to grubenv.good
// when it is booted. GRUB overwrites the file in place, so nothing that the board does damages it.
func keepScript(slots []slot) string {
	names, none := "ORDER LAST", ""
	for _, s := range slots {
		names += fmt.Sprintf(" %[1]s_OK %[1]s_TRY %[1]s_PROVED", s.name)
		none += fmt.Sprintf("set %[1]s_OK=0; set %[1]s_TRY=0; set %[1]s_PROVED=0; ", s.name)
	}
	var b strings.Builder
	for _, s := range slots {
		order := s.name
		for _, other := range slots {
			if other != s {
				order += " " + other.name
			}
		}
		fmt.Fprintf(&b, "if [ \"$chosen\" = %[1]s -a \"$%[1]s_PROVED\" = 1 ]; then\n  %[2]sset %[1]s_OK=1; set %[1]s_PROVED=1; set ORDER='%[3]s'\n"+
			"  save_env --file $prefix/%[4]s %[5]s\nfi\n", s.name, none, order, keptName, names)
	}
	return b.String()
}

// provedWord on the kernel's command line tells the board that this slot was marked good since its
// last update. The board then marks it good at each boot. Any other slot has only its tries.
const provedWord = "slipway.proved"

// proveScript returns GRUB commands that set PROVED of each slot. RAUC's variables are the same for
// a slot that it has just written and for one that was marked good: no tries. If that slot ran
// last, somebody marked it good, because RAUC never writes the running slot. If it is first in
// ORDER while another good slot ran last, RAUC has just written it: a fallback does not change
// ORDER, and whoever takes an update back marks the slot that ran as bad.
func proveScript(slots []slot) string {
	var b strings.Builder
	b.WriteString("set first=\nfor slot in $ORDER; do\n  if [ -z \"$first\" ]; then set first=$slot; fi\ndone\n")
	for _, s := range slots {
		fmt.Fprintf(&b, "if [ \"$LAST\" = %[1]s -a \"$%[1]s_OK\" = 1 -a \"$%[1]s_TRY\" = 0 ]; then set %[1]s_PROVED=1; fi\n", s.name)
		for _, ran := range slots {
			if ran != s {
				fmt.Fprintf(&b, "if [ \"$LAST\" = %[1]s -a \"$%[1]s_OK\" = 1 -a \"$first\" = %[2]s ]; then set %[2]s_PROVED=0; fi\n", ran.name, s.name)
			}
		}
	}
	return b.String()
}

// chooseScript returns GRUB commands that choose the first good slot in ORDER, if none is chosen
// yet. and returns one more condition for a slot.
func chooseScript(slots []slot, and func(slot string) string) string {
	var b strings.Builder
	b.WriteString("for slot in $ORDER; do\n  if [ -z \"$chosen\" ]; then\n")
	for _, s := range slots {
		fmt.Fprintf(&b, "    if [ \"$slot\" = %[1]s -a \"$%[1]s_OK\" = 1%[2]s ]; then set chosen=%[1]s; fi\n", s.name, and(s.name))
	}
	b.WriteString("  fi\ndone\n")
	return b.String()
}

// countTry returns commands that add one to a slot's tries, up to maxTries: GRUB cannot calculate.
func countTry(slot string) string {
	var b strings.Builder
	for n := range maxTries {
		word := plaintext.Either(n == 0, "if", "elif")
		fmt.Fprintf(&b, "%[1]s [ \"$%[2]s_TRY\" = %[3]d ]; then set %[2]s_TRY=%[4]d; ", word, slot, n, n+1)
	}
	return b.String() + "fi"
}

type slot struct {
	name   string // RAUC's bootname
	label  string
	number int
}

// rootSlots returns the root and spare partitions in the disk's order, as slots A, B and so on.
func (d disk) rootSlots() []slot {
	var all []slot
	for i, p := range d.layOutPartitions() {
		if p.Use == images.UseRoot || p.Use == images.UseSpare {
			all = append(all, slot{string(rune('A' + len(all))), p.Name, i + 1})
		}
	}
	return all
}

// installLoader makes GRUB's core image and installs it in the loader partition. For a BIOS it also
// writes the first sector.
func (d disk) installLoader(ctx context.Context) error {
	kind, ok := loaders[d.spec.Disk.Firmware][d.spec.Arch]
	if !ok {
		return fmt.Errorf("%s: no boot loader for firmware %s on %s", d.spec.BoardFile(), d.spec.Disk.Firmware, d.spec.Arch)
	}
	modules := path.Join(plaintext.Either(kind.inImage, d.root, "/"), "usr/lib/grub", kind.format)
	core := d.path("core.img")
	if err := d.makeCore(ctx, kind.format, modules, core); err != nil {
		return err
	}
	if d.spec.Disk.Firmware == "uefi" {
		return d.espLoader(ctx, core, kind.efiName)
	}
	return d.biosLoader(core, path.Join(modules, "boot.img"))
}

// makeCore runs grub-mkimage to write GRUB's core image to out. modules is the modules' folder.
func (d disk) makeCore(ctx context.Context, format, modules, out string) error {
	_, number := d.partitionFor(images.UseBoot)
	early := d.path("early.cfg")
	config := fmt.Sprintf("set root=(hd0,gpt%[1]d)\nset prefix=(hd0,gpt%[1]d)\nnormal /grub.cfg\n", number)
	if err := os.WriteFile(early, []byte(config), 0o644); err != nil {
		return err
	}
	argv := []string{
		"grub-mkimage", "-O", format, "-d", modules, "-o", out, "-c", early, "-p", fmt.Sprintf("(hd0,gpt%d)", number),
		"part_gpt", "ext2", "normal", "linux", "loadenv", "test", "echo", "reboot",
	}
	if format == "i386-pc" {
		argv = append(argv, "biosdisk")
	}
	return d.runProgram(ctx, argv...)
}

// espLoader makes the EFI system partition with GRUB under the removable media's name, which every
// firmware tries. Clusters of one sector make it FAT32 from 33 MiB on, with the usual size FAT16.
func (d disk) espLoader(ctx context.Context, core, name string) error {
	p, _ := d.partitionFor(images.UseLoader)
	at := fmt.Sprintf("%s@@%d", d.path(diskName), p.OffsetBytes)
	for _, argv := range [][]string{
		{"mkfs.vfat", "-F", "32", "-s", "1", "--offset", fmt.Sprint(p.OffsetBytes / sectorBytes), d.path(diskName), fmt.Sprint(p.SizeBytes / 1024)},
		{"mmd", "-i", at, "::/EFI", "::/EFI/BOOT"},
		{"mcopy", "-i", at, core, "::/EFI/BOOT/" + name},
	} {
		if err := d.runProgram(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}

// The places in GRUB's first sectors that its installer fills in.
const (
	bootCodeBytes    = 440  // of the first sector; the disk's signature follows
	kernelSectorAt   = 0x5c // in boot.img: the sector of the second stage
	driveCheckAt     = 0x66 // in boot.img: a jump that only floppies need
	coreBlocklistAt  = sectorBytes - 12
	coreSegment      = 0x820
	twoByteNop       = 0x9090
	maxCoreSizeBytes = 512 << 10 // what the BIOS can load below 640 KiB
)

// biosLoader installs GRUB like grub-bios-setup, which insists on a block device. It writes
// boot.img to the disk's first sector, with the sector of the core image, and the core image to the
// loader partition, with the sector of its own rest.
func (d disk) biosLoader(corePath, bootPath string) error {
	p, _ := d.partitionFor(images.UseLoader)
	core, err := os.ReadFile(corePath)
	if err != nil {
		return err
	}
	boot, err := os.ReadFile(bootPath)
	if err != nil {
		return err
	}
	if len(boot) != sectorBytes || len(core) <= sectorBytes || int64(len(core)) > min(maxCoreSizeBytes, p.SizeBytes) {
		return fmt.Errorf("GRUB's boot.img (%d bytes) or core image (%d bytes) is not of a size that fits the %s partition", len(boot), len(core), p.Name)
	}
	first := p.OffsetBytes / sectorBytes
	binary.LittleEndian.PutUint64(boot[kernelSectorAt:], uint64(first))
	binary.LittleEndian.PutUint16(boot[driveCheckAt:], twoByteNop)
	rest := (len(core) - 1) / sectorBytes
	binary.LittleEndian.PutUint64(core[coreBlocklistAt:], uint64(first+1))
	binary.LittleEndian.PutUint16(core[coreBlocklistAt+8:], uint16(rest))
	binary.LittleEndian.PutUint16(core[coreBlocklistAt+10:], coreSegment)
	f, err := os.OpenFile(d.path(diskName), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt(boot[:bootCodeBytes], 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(core, p.OffsetBytes); err != nil {
		return err
	}
	return f.Close()
}

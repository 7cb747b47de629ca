package tegra

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// These run meta-tegra's own scripts as they are on its branches; NVIDIA's programs,
// udisks and the board are simulated by scripts beside them. SLIPWAY_LAYER_CLONES is
// NAME=FOLDER,... with git clones:
//
//	SLIPWAY_LAYER_CLONES=meta-tegra=/src/meta-tegra go test ./flash/tegra -run Real -v

func clone(t *testing.T) string {
	t.Helper()
	for _, pair := range strings.Split(os.Getenv("SLIPWAY_LAYER_CLONES"), ",") {
		if name, dir, _ := strings.Cut(pair, "="); name == "meta-tegra" {
			return dir
		}
	}
	t.Skip("SLIPWAY_LAYER_CLONES has no meta-tegra: it is NAME=FOLDER,... with git clones")
	return ""
}

// scripts takes meta-tegra's scripts of a branch into a package, under the names that
// they have there.
func scripts(t *testing.T, branch, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		ending := ".sh"
		if name == "nvflashxmlparse" {
			ending = ".py"
		}
		out, err := exec.Command("git", "-C", clone(t), "show", branch+":recipes-bsp/tegra-binaries/tegra-helper-scripts/"+name+ending).Output()
		if err != nil {
			t.Fatalf("%s of %s: %v", name, branch, err)
		}
		write(t, filepath.Join(dir, name), string(out))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(path)
	if err := run.WriteProgram(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// helper simulates tegra-flash-helper.sh: it leaves the files of the signing step.
const helper = `#!/bin/bash
touch ran-helper
cat > boardvars.sh <<END
BOARDID="3767"
FAB="300"
BOARDSKU="0005"
BOARDREV="F.1"
CHIPREV="1"
CHIP_SKU="00:00:00:D5"
RAMCODE=2
serial_number=@SERIAL@
END
case "$*" in *--get-board-info*) exit 0 ;; esac
cat > flash.idx <<END
0, 3:0:BCT, 0, 1048576, bct.bin, fixed-<reserved>-1, 1234
END
echo bct > bct.bin
sed -e's,APPFILE,image.ext4,' flash.xml.in > secureflash.xml
echo 'echo secureflash' > flashcmd.txt
mkdir -p rcmboot_blob applet
echo 'echo "BR_CID: 0x80012344705DE8033400000003FF8100"; echo flashpkg > "$BOARD/shows"' > rcmboot_blob/rcmbootcmd.txt
echo "helper: $*"
`

// The board and udisks: what the board shows itself as is in a file. As the script
// releases the command disk, the board does what stands on it.
var simulatedPrograms = map[string]string{
	"udevadm": `#!/bin/bash
[ "${!#}" = "$BOARD_DISK" ] && [ -e "$BOARD/shows" ] || exit 1
echo "ID_MODEL=$(cat "$BOARD/model")"
echo "ID_VENDOR=$(cat "$BOARD/shows")"
echo "DEVPATH=/devices/usb1/1-2/1-2.3/host0/block/sdz"
`,
	"udisksctl": `#!/bin/bash
case "$1" in
mount)
	mkdir -p "$BOARD/mnt" && mount -t tmpfs -o size=8m "$BOARD_DISK" "$BOARD/mnt" || exit 1
	mkdir -p "$BOARD/disk/flashpkg/logs" && cp -a "$BOARD/disk/." "$BOARD/mnt/" ;;
unmount)
	cp -a "$BOARD/mnt/." "$BOARD/disk/" && umount "$BOARD/mnt" && echo "Unmounted $BOARD_DISK." ;;
power-off)
	case $(cat "$BOARD/shows") in
	flashpkg)
		if [ -e "$BOARD/done" ]; then rm "$BOARD/shows"; else
			cp "$BOARD/disk/flashpkg/conf/command_sequence" "$BOARD/did"
			echo nvme0n1 > "$BOARD/shows"
		fi ;;
	*)
		echo "Erasing /dev/mtd0" > "$BOARD/disk/flashpkg/logs/bootloader.log"
		cp "$BOARD/word" "$BOARD/disk/flashpkg/status"
		touch "$BOARD/done"
		echo flashpkg > "$BOARD/shows" ;;
	esac ;;
esac
`,
}

// freeDisk makes a device node that scripts regard as a USB disk. It has no driver.
func freeDisk(t *testing.T) string {
	t.Helper()
	for letter := 'z'; letter > 'f'; letter-- {
		path := fmt.Sprintf("/dev/sd%c", letter)
		err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(8, uint32(letter-'a')*16)))
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			t.Skipf("no node can be made in /dev, which needs root outside of a user namespace: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		return path
	}
	t.Skip("all names of disks are taken")
	return ""
}

// realPackage is a package with the scripts of a branch.
func realPackage(t *testing.T, branch, chip, serial string) *Package {
	t.Helper()
	clone(t)
	files := orin()
	files[".env.initrd-flash"] = envFile(chip, "nvme0n1")
	files["create_l4t_bsp_images.py"] = "#!/bin/sh\n"
	dir := pack(t, files)
	scripts(t, branch, dir, "initrd-flash", "make-sdcard", "nvflashxmlparse")
	write(t, filepath.Join(dir, "find-jetson-usb"), "#!/bin/bash\necho \"Found Jetson device in recovery mode at USB $2\"\n")
	write(t, filepath.Join(dir, "tegra-flash-helper.sh"), strings.ReplaceAll(helper, "@SERIAL@", serial))
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// around simulates the scripts' surroundings: the board, its disk, and udisks.
func around(t *testing.T, word, model string) string {
	t.Helper()
	board, bin := t.TempDir(), t.TempDir()
	for name, text := range simulatedPrograms {
		write(t, filepath.Join(bin, name), text)
	}
	write(t, filepath.Join(board, "word"), word+"\n")
	write(t, filepath.Join(board, "model"), model+"\n")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("BOARD", board)
	t.Setenv("BOARD_DISK", freeDisk(t))
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(board, "mnt"), unix.MNT_DETACH) })
	return board
}

// setLimits sets the limits of stages, by their names, for one test.
func setLimits(t *testing.T, limits map[string]time.Duration) {
	t.Helper()
	usual := stageLimit
	t.Cleanup(func() { stageLimit = usual })
	stageLimit = func(s stage) time.Duration { return cmp.Or(limits[s.name], s.limit) }
}

// limitsOf returns limits that are generous for a busy machine, and end a hang.
func limitsOf(f flow) map[string]time.Duration {
	limits := map[string]time.Duration{}
	for _, s := range f.stages {
		limits[s.name] = time.Minute
	}
	return limits
}

func TestRealInitrdFlash(t *testing.T) {
	tests := []struct {
		name, branch, word string
		sdcard             string // simulates make-sdcard, which would look for the disk in sysfs
		serial             string
		want               string
	}{
		{"R36", "scarthgap", "SUCCESS", "exit 0", "1421320012345", ""},
		{"R39", "wrynose", "SUCCESS", "exit 0", "1421320012345", ""},
		{"R36, the board fails", "scarthgap", "FAILED", "exit 0", "1421320012345", "the board reports: FAILED"},
		{"R39, the board fails", "wrynose", "FAILED", "exit 0", "1421320012345", "the board reports: FAILED"},
		{"R36, writing fails", "scarthgap", "SUCCESS", `echo "ERR: failed to write image.ext4 to /dev/sdz1" >&2; exit 1`, "1421320012345", "writing to the board's storage failed"},
		{"R36, a serial number that is none", "scarthgap", "SUCCESS", "exit 0", "14X", "serial number is no number"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := realPackage(t, tt.branch, "0x23", tt.serial)
			model := fmt.Sprintf("%x", 1421320012345)
			board := around(t, tt.word, model[max(0, len(model)-8):])
			write(t, filepath.Join(p.Dir, "make-sdcard"), "#!/bin/bash\necho 'Creating partitions'\necho 'Writing partitions'\n"+tt.sdcard+"\n")
			h, _ := host(t, "1-2.3", "7523")
			logs := t.TempDir()
			limits := limitsOf(flows[p.Flow])
			if tt.serial == "14X" { // the script then waits for ever
				limits["commands"] = 100 * time.Millisecond
			}
			setLimits(t, limits)
			_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: logs})
			output, readErr := os.ReadFile(filepath.Join(logs, "output.log"))
			t.Logf("%v\n%s", readErr, output)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("Flash = %v; want %q", err, tt.want)
			}
			if tt.want != "" && tt.word == "SUCCESS" {
				return
			}
			did, err := os.ReadFile(filepath.Join(board, "did"))
			if want := "bootloader\nextra-pre-wipe\nexport-devices nvme0n1\nextra\nreboot\n"; err != nil || string(did) != want {
				t.Errorf("the board was told %q, %v; want %q", did, err, want)
			}
			if got, err := os.ReadFile(filepath.Join(logs, "device-logs", "bootloader.log")); err != nil || !bytes.Contains(got, []byte("Erasing")) {
				t.Errorf("the board's log is %q, %v", got, err)
			}
		})
	}
}

// The unified flash of Thor fails in NVIDIA's tool or before it, and the script ends
// well all the same.
func TestRealUnifiedFlash(t *testing.T) {
	tests := []struct{ name, tool, images, want string }{
		{"good", "exit 0", "exit 0", ""},
		{"the tool fails", "echo 'Error: no device'; exit 3", "exit 0", "a command of the script failed, and the script went on: status 3"},
		{"the images fail", "exit 0", "exit 5", "a command of the script failed, and the script went on: status 5"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := realPackage(t, "wrynose", "0x26", "1421320012345")
			write(t, filepath.Join(p.Dir, "rcmboot-flash.xml.in"), layoutXML)
			write(t, filepath.Join(p.Dir, "create_l4t_bsp_images.py"), "#!/bin/sh\nfor last; do :; done\n"+
				`[ "$last" = --rcm-boot ] && mkdir -p out/flash_workspace/rcm-boot`+"\n"+tt.images+"\n")
			write(t, filepath.Join(p.Dir, "unified_flash/tools/flashtools/bootburn/create_bsp_images.py"), `#!/bin/sh
mkdir -p out/tools/flashtools/bootburn
printf '#!/bin/sh\n`+strings.ReplaceAll(tt.tool, "'", `'\''`)+`\n' > out/tools/flashtools/bootburn/flash_bsp_images.py
chmod +x out/tools/flashtools/bootburn/flash_bsp_images.py
`)
			h, _ := host(t, "1-2.3", "7026")
			logs := t.TempDir()
			setLimits(t, limitsOf(flows[p.Flow]))
			_, err := p.Flash(t.Context(), h, Board{Port: "1-2.3", Dir: p.Dir, Logs: logs})
			output, readErr := os.ReadFile(filepath.Join(logs, "output.log"))
			t.Logf("%v\n%s", readErr, output)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Flash = %v; want %q", err, tt.want)
			}
		})
	}
}

// A card's image by the real make-sdcard and sgdisk has the package's root file system
// in its partition.
func TestRealCard(t *testing.T) {
	for _, name := range []string{"sgdisk", "sfdisk"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing (Debian packages gdisk and fdisk)", name)
		}
	}
	for branch, script := range map[string]string{
		"scarthgap":             `exec ./tegra-flash-helper.sh --sdcard -s 16G -b image flash.xml.in "$@"`,
		"wrynose":               `./tegra-flash-helper.sh --no-flash --sign flash.xml.in && ./make-sdcard secureflash.xml "$@"`,
		"kirkstone-l4t-r32.7.x": `exec ./tegra-flash-helper.sh --sdcard -s 16G -b image flash.xml.in "$@"`,
	} {
		t.Run(branch, func(t *testing.T) {
			clone(t)
			dir := pack(t, with(orin(), "image.ext4", strings.Repeat("root file system", 1<<16)))
			scripts(t, branch, dir, "make-sdcard", "nvflashxmlparse")
			write(t, filepath.Join(dir, "dosdcard.sh"), "#!/bin/sh\n"+script+"\n")
			write(t, filepath.Join(dir, "tegra-flash-helper.sh"), `#!/bin/bash
sed -e's,APPFILE,image.ext4,' flash.xml.in > secureflash.xml
case "$*" in
--sdcard*) shift 6; exec ./make-sdcard -s 16G -b image secureflash.xml "$@" ;;
esac
`)
			p, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			out, logs := filepath.Join(t.TempDir(), "card.img"), t.TempDir()
			err = p.Card(t.Context(), out, Board{Dir: p.Dir, Logs: logs})
			said, _ := os.ReadFile(filepath.Join(logs, "card.log"))
			if err != nil {
				t.Fatalf("Card = %v\n%s", err, said)
			}
			table, err := exec.Command("sfdisk", "--dump", out).CombinedOutput()
			if err != nil || !bytes.Contains(table, []byte(`name="APP"`)) || !bytes.Contains(table, []byte(`name="A_kernel"`)) {
				t.Errorf("the card's table is %s, %v", table, err)
			}
			data, err := os.ReadFile(out)
			if err != nil || !bytes.Contains(data, []byte("root file systemroot file system")) {
				t.Errorf("the card lacks the root file system (%d bytes, %v)", len(data), err)
			}
		})
	}
}

// Which of meta-tegra's helpers ask a board for something without saying which board is
// meant.
func TestRealAim(t *testing.T) {
	for _, tt := range []struct {
		branch, helper, chip string
		want                 bool
	}{
		{"kirkstone-l4t-r32.7.x", "tegra210-flash-helper", "0x21", true},
		{"kirkstone-l4t-r32.7.x", "tegra186-flash-helper", "0x18", false},
		{"kirkstone-l4t-r32.7.x", "tegra194-flash-helper", "0x19", false},
		{"kirkstone", "tegra234-flash-helper", "0x23", false},
		{"scarthgap", "tegra-flash-helper", "0x23", false},
		{"wrynose", "tegra-flash-helper", "0x23", true},
	} {
		dir := pack(t, without(orin(), "tegra-flash-helper.sh"))
		scripts(t, tt.branch, dir, tt.helper)
		if err := os.Rename(filepath.Join(dir, tt.helper), filepath.Join(dir, tt.helper+".sh")); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, ".env.initrd-flash"), "CHIPID="+tt.chip+"\nFLASH_HELPER="+tt.helper+".sh\n")
		p, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if p.AcceptsAnyBoard() != tt.want {
			t.Errorf("AcceptsAnyBoard of %s's %s = %v; want %v", tt.branch, tt.helper, p.AcceptsAnyBoard(), tt.want)
		}
	}
}

package flash

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
)

var armBoard = images.Spec{Board: "raspberrypi5", Arch: "arm64", Flash: images.Flash{Kinds: []string{device.File}}}

// diskWith is an image of a disk with content at an offset.
func diskWith(t *testing.T, dir string, content []byte, off int) string {
	t.Helper()
	p := make([]byte, 8*mib)
	copy(p[off:], content)
	path := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(path, tabled(p), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// elfHead begins a program for a machine of 64 bits.
func elfHead(machine byte) []byte {
	p := make([]byte, 512)
	copy(p, "\x7fELF\x02\x01\x01")
	p[16], p[18] = 3, machine
	return p
}

// espWith is a FAT file system with one file for EFI, as real tools make it.
func espWith(t *testing.T, name string) []byte {
	t.Helper()
	for _, tool := range []string{"mkfs.vfat", "mcopy", "mmd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing (Debian packages dosfstools and mtools)", tool)
		}
	}
	path := filepath.Join(t.TempDir(), "esp")
	run := func(argv ...string) {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	run("mkfs.vfat", "-C", path, "2048")
	run("mmd", "-i", path, "::EFI", "::EFI/BOOT")
	run("mcopy", "-i", path, writeFile(t, "loader", "x"), "::EFI/BOOT/"+name)
	return read(t, path)
}

func packedBeside(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path+".gz", gzipped(t, read(t, path)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path + ".gz"
}

func describedAs(t *testing.T, dir string, a images.Artifact) {
	t.Helper()
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
}

// An image of another board or architecture is refused, in a dry run too, and leaves
// nothing behind. Allowed, the receipt says so. What says nothing is written as ever.
func TestImageOfAnotherBoard(t *testing.T) {
	amd64, arm64 := elfHead(62), elfHead(183)
	tests := []struct {
		name string
		make func(t *testing.T, dir string) string
		want string // in the refusal; "": written
	}{
		{"a program for amd64", func(t *testing.T, dir string) string { return diskWith(t, dir, amd64, 4*mib) }, "for amd64, and board raspberrypi5 is arm64"},
		{"the same, packed", func(t *testing.T, dir string) string { return packedBeside(t, diskWith(t, dir, amd64, 4*mib)) }, "for amd64, and board raspberrypi5 is arm64"},
		{"EFI's loader of amd64", func(t *testing.T, dir string) string { return diskWith(t, dir, espWith(t, "BOOTX64.EFI"), mib) }, "for amd64, and board raspberrypi5 is arm64"},
		{"the same in small letters", func(t *testing.T, dir string) string { return diskWith(t, dir, espWith(t, "bootx64.efi"), mib) }, "for amd64, and board raspberrypi5 is arm64"},
		{"the artifact.json of another board", func(t *testing.T, dir string) string {
			describedAs(t, dir, images.Artifact{Board: "virt", Arch: "arm64"})
			return diskWith(t, dir, arm64, 4*mib)
		}, `artifact.json says that the files are for board "virt", and not for raspberrypi5`},
		{"the artifact.json of another board, whose name forges a line", func(t *testing.T, dir string) string {
			describedAs(t, dir, images.Artifact{Board: "virt\x1b[2K\nnext: rm"})
			return diskWith(t, dir, nil, 0)
		}, `board "virt\x1b[2K\nnext: rm"`},
		{"the artifact.json of another architecture", func(t *testing.T, dir string) string {
			describedAs(t, dir, images.Artifact{Board: "raspberrypi5", Arch: "amd64"})
			return diskWith(t, dir, nil, 0)
		}, `artifact.json says that the files are for "amd64", and board raspberrypi5 is arm64`},
		{"a program for arm64", func(t *testing.T, dir string) string { return diskWith(t, dir, arm64, 4*mib) }, ""},
		{"EFI's loader of arm64", func(t *testing.T, dir string) string { return diskWith(t, dir, espWith(t, "BOOTAA64.EFI"), mib) }, ""},
		{"programs for both", func(t *testing.T, dir string) string {
			return diskWith(t, dir, slices.Concat(amd64, arm64), 4*mib)
		}, ""},
		{"nothing that is known", func(t *testing.T, dir string) string { return diskWith(t, dir, nil, 0) }, ""},
		{"an artifact.json that is none", func(t *testing.T, dir string) string {
			if err := os.WriteFile(filepath.Join(dir, images.ArtifactName), []byte("{"), 0o644); err != nil {
				t.Fatal(err)
			}
			return diskWith(t, dir, nil, 0)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image, to := tt.make(t, t.TempDir()), filepath.Join(t.TempDir(), "out.img")
			none := images.NoArtifact(armBoard, t.TempDir())
			for _, dry := range []bool{true, false} {
				var shown strings.Builder
				_, err := Write(t.Context(), armBoard, none, to, Options{Image: image, DryRun: dry, Out: &shown})
				if _, written := os.Stat(to); tt.want != "" && written == nil {
					t.Errorf("dry run %v: %s was written", dry, to)
				}
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--other-board")) {
					t.Errorf("dry run %v: Write = %v; want %q", dry, err, tt.want)
				}
				if strings.Contains(tt.name, "known") && !strings.Contains(shown.String(), "for an architecture that is not known") {
					t.Errorf("shown is %q; want that the architecture is not known", shown.String())
				}
			}
			if tt.want == "" {
				return
			}
			var shown strings.Builder
			r, err := Write(t.Context(), armBoard, none, to, Options{Image: image, OtherBoard: true, Out: &shown})
			if err != nil || len(r.OtherBoard) == 0 || !strings.Contains(r.OtherBoard[0], tt.want) || !strings.Contains(shown.String(), "Allowed by --other-board: ") {
				t.Fatalf("with OtherBoard: %v, receipt %q, shown %q", err, r.OtherBoard, shown.String())
			}
			var saved []Receipt
			if err := json.Unmarshal(read(t, receiptOf(t, none)), &saved); err != nil || len(saved) != 1 || len(saved[0].OtherBoard) == 0 {
				t.Errorf("the receipt that was kept is %+v, %v", saved, err)
			}
		})
	}
}

// The build of a board whose artifact.json or content is of another architecture.
func TestArtifactOfAnotherArchitecture(t *testing.T) {
	a := artifact(t)
	board := spec
	board.Arch, a.Arch = "arm64", "amd64"
	to := filepath.Join(t.TempDir(), "out.img")
	if _, err := Write(t.Context(), board, a, to, Options{}); err == nil || !strings.Contains(err.Error(), `for "amd64", and board toy is arm64`) {
		t.Errorf("Write = %v; want a refusal of another architecture", err)
	}
	a.Arch = ""
	if _, err := Write(t.Context(), board, a, to, Options{}); err != nil {
		t.Errorf("Write of an artifact that names no architecture = %v", err)
	}
}

func TestRefuseOther(t *testing.T) {
	dir := t.TempDir()
	describedAs(t, dir, images.Artifact{Board: "virt"})
	bundle := filepath.Join(dir, "new.raucb")
	if _, err := RefuseOther(armBoard, bundle, false); err == nil || !strings.Contains(err.Error(), "--other-board") {
		t.Errorf("RefuseOther = %v; want a refusal", err)
	}
	if said, err := RefuseOther(armBoard, bundle, true); err != nil || len(said) != 1 {
		t.Errorf("allowed: %q, %v", said, err)
	}
	if said, err := RefuseOther(images.Spec{Board: "virt", Arch: "amd64"}, bundle, false); err != nil || len(said) != 0 {
		t.Errorf("the own board's: %q, %v", said, err)
	}
	if _, err := RefuseOther(armBoard, filepath.Join(t.TempDir(), "new.raucb"), false); err != nil {
		t.Errorf("nothing beside it: %v", err)
	}
}

// makeCard does what make-sdcard does for a file: the last partition fills it.
const makeCard = `#!/bin/sh
echo "Creating partitions"
truncate -s $(($2 * 512)) "$4" || exit 1
sgdisk "$4" --clear --new=2:0:+1M -c 2:A_kernel --largest-new=1 -c 1:APP >&2 || exit 1
echo "Writing partitions"
mke2fs -q -F -t ext4 -b 1024 -E offset=2097152 "$4" 8M || exit 1
echo "[OK: $4]"
`

func gptCards(t *testing.T) *jetsons {
	t.Helper()
	for _, name := range []string{"sgdisk", "sfdisk", "addpart"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing (Debian packages gdisk, fdisk and util-linux)", name)
		}
	}
	needMke2fs(t)
	j := newJetsons(t, nil)
	j.artifact = j.build(t, map[string]string{
		".env.initrd-flash": "CHIPID=\"0x23\"\nROOTFS_IMAGE=\"image.ext4\"\nFLASH_HELPER=tegra-flash-helper.sh\n",
		"flash.xml.in":      jetsonLayout, "image.ext4": "rootfs", "tegra-flash-helper.sh": "", "initrd-flash.img": "", "initrd-flash": "", "dosdcard.sh": makeCard,
	})
	return j
}

// A card for a Jetson is made of a package for its chip alone.
func TestCardOfAnotherChip(t *testing.T) {
	j := gptCards(t)
	j.spec.Flash.Kinds, j.spec.Flash.Chip = []string{device.File}, "t194"
	to := filepath.Join(t.TempDir(), "card.img")
	if _, _, err := j.flash(t.Context(), Options{}, to); err == nil || !strings.Contains(err.Error(), "the package is for chip t234") {
		t.Errorf("WriteAll = %v; want a refusal of the chip", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("the card was written")
	}
}

// A boot stream whose boot loaders are another card's is not pushed.
func TestStreamOfAnotherCard(t *testing.T) {
	for parts, want := range map[string]string{
		"bl2-v2==x":                 "of version 2, and a BlueField-2 takes version 1",
		"bl2-v1==x,boot-args==y":    "",
		"bl2==w,bl2-v1==x,bl2-v2=y": "",
		"bl2==x":                    "",
		"boot-args-v2==quiet":       "",
	} {
		card := &flashtest.DPU{Says: flashtest.Boots}
		names := dpus(t, card, &flashtest.DPU{Says: flashtest.Boots})
		dir := t.TempDir()
		parsed, err := bfb.ParseParts(strings.Replace(parts, "bl2-v2=y", "bl2-v2==y", 1))
		if err != nil {
			t.Fatal(err)
		}
		stream := filepath.Join(dir, "other.bfb")
		if _, err := bfb.Make(t.Context(), stream, bfb.Recipe{Parts: parsed}); err != nil {
			t.Fatal(err)
		}
		o := Options{Image: stream, Yes: names}
		_, err = WriteAll(t.Context(), dpuSpec, images.NoArtifact(dpuSpec, dir), names, o)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: WriteAll = %v; want %q", parts, err, want)
		}
		if want != "" && card.Resets() > 0 {
			t.Errorf("%s: the card was reset", parts)
		}
		if want == "" {
			continue
		}
		o.OtherBoard = true
		if r, err := WriteAll(t.Context(), dpuSpec, images.NoArtifact(dpuSpec, dir), names, o); err != nil || len(r[0].OtherBoard) != 1 || len(r[1].OtherBoard) != 1 {
			t.Errorf("%s: allowed: %+v, %v", parts, r, err)
		}
	}
}

// A packed image that is cut off where its table or its architecture is looked for is refused
// for that, and before the question.
func TestCutImageIsRefusedBeforeTheQuestion(t *testing.T) {
	image := diskWith(t, t.TempDir(), nil, 0)
	content := read(t, image)
	rand.NewChaCha8([32]byte{1}).Read(content[mib:]) // so that it packs to as much
	packed := gzipped(t, content)
	for name, length := range map[string]int{"first MiB": 100, "behind the table": 6 * mib} {
		path := writeFile(t, "disk.img.gz", string(packed[:length]))
		var shown strings.Builder
		_, err := Write(t.Context(), armBoard, images.NoArtifact(armBoard, t.TempDir()), filepath.Join(t.TempDir(), "out.img"),
			Options{Image: path, Out: &shown})
		if err == nil || !strings.Contains(err.Error(), "the file is cut off") || shown.Len() > 0 {
			t.Errorf("%s: Write = %v, shown %q; want a refusal before that", name, err, shown.String())
		}
	}
}

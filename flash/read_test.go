package flash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/device"
	"slipway/flash/dump"
	"slipway/flash/flashtest"
	"slipway/flash/write"
	"slipway/layers/progress"
)

const (
	cardSize  = 62 * mib
	vfatStart = 2 * mib
	vfatSize  = 8 * mib
	extStart  = 12 * mib
	extSize   = 48 * mib
	larger    = 96*mib + 4096
)

// usedCard returns a loop device with FAT and ext4, from both of which files were deleted. The rest
// holds what an earlier use left.
func usedCard(t *testing.T, label string) string {
	t.Helper()
	needMke2fs(t)
	card, _ := flashtest.Loop(t, cardSize)
	table(t, card, fmt.Sprintf("label: %s\nstart=%d, size=%d, type=uefi\nstart=%d, size=%d, type=linux\n", label, vfatStart/512, vfatSize/512, extStart/512, extSize/512))
	dir := t.TempDir()
	fat, ext := filepath.Join(dir, "fat"), filepath.Join(dir, "ext")
	flashtest.Put(t, filepath.Join(dir, "kept"), string(flashtest.Random(3*mib)))
	flashtest.Put(t, filepath.Join(dir, "gone"), strings.Repeat("deleted ", mib/4))
	for name, size := range map[string]int64{fat: vfatSize, ext: extSize} {
		if err := errors.Join(os.WriteFile(name, bytes.Repeat([]byte{0xa5}, int(size)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("mcopy"); err != nil {
		t.Skip("mcopy is missing (Debian package mtools)")
	}
	flashtest.MustRun(t, "/sbin/mkfs.vfat", "-F", "16", "-s", "2", "-n", "BOOT", fat)
	flashtest.MustRun(t, "mcopy", "-i", fat, filepath.Join(dir, "kept"), filepath.Join(dir, "gone"), "::/")
	flashtest.MustRun(t, "mdel", "-i", fat, "::/gone")
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-t", "ext4", "-L", "root", ext)
	debugfs := flashtest.E2fs(t, "debugfs")
	for _, request := range []string{"write %s/gone gone", "write %s/kept kept", "rm gone"} {
		flashtest.MustRun(t, debugfs, "-w", "-R", strings.ReplaceAll(request, "%s", dir), ext)
	}
	flashtest.Scribble(t, card, vfatStart, read(t, fat))
	flashtest.Scribble(t, card, extStart, read(t, ext))
	return card
}

// stampCard puts a stamp on a card, as a flash of a place does.
func stampCard(t *testing.T, card string) error {
	disk, err := write.OpenDisk(flashtest.Open(t, card, 0))
	if err != nil {
		return err
	}
	defer disk.Close()
	flashtest.Scribble(t, card, mib/2, make([]byte, mib/2)) // room for it
	c, err := write.NewCopy(disk, write.CopyOptions{Marked: true})
	if err != nil {
		return err
	}
	first, last := c.Ends()
	copy(first, read(t, card))
	copy(last, read(t, card)[cardSize-mib:])
	return errors.Join(c.Stamp(strings.Repeat("7", 32)), c.Complete(t.Context()))
}

// table writes a partition table by sfdisk.
func table(t *testing.T, disk, script string) {
	t.Helper()
	cmd := exec.Command("/sbin/sfdisk", "--quiet", "--wipe=never", "--no-reread", "--no-tell-kernel", disk)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
}

// wholeCard checks the file systems on a disk or image with the programs of Debian, that the kept
// file is on both, and that nothing is left of the other. It returns the size of the ext4.
func wholeCard(t *testing.T, disk string) (extBytes int) {
	t.Helper()
	data := read(t, disk)
	if stamp := write.ReadStamp(bytes.NewReader(data)); stamp != "" {
		t.Errorf("the stamp %s of another card is on it", stamp)
	}
	fat := filepath.Join(t.TempDir(), "fat")
	flashtest.Put(t, fat, string(data[vfatStart:][:vfatSize]))
	flashtest.MustRun(t, "/sbin/fsck.vfat", "-n", fat)
	flashtest.MustRun(t, flashtest.E2fs(t, "e2fsck"), "-f", "-n", fmt.Sprintf("%s?offset=%d", disk, extStart))
	flashtest.MustRun(t, "/sbin/sfdisk", "--verify", disk)
	want := flashtest.Random(3 * mib)
	for _, argv := range [][]string{{"mtype", "-i", fat, "::/kept"}, {flashtest.E2fs(t, "debugfs"), "-R", "cat kept", fmt.Sprintf("%s?offset=%d", disk, extStart)}} {
		if out, err := exec.Command(argv[0], argv[1:]...).Output(); err != nil || !bytes.Equal(out, want) {
			t.Errorf("%q = %d bytes, %v; want the file", argv, len(out), err)
		}
	}
	if bytes.Contains(data, []byte("deleted deleted ")) || bytes.Contains(data[vfatStart:vfatStart+vfatSize], bytes.Repeat([]byte{0xa5}, 4096)) {
		t.Error("unused blocks are in the image; want zeros")
	}
	shown := flashtest.MustRun(t, flashtest.E2fs(t, "dumpe2fs"), "-h", fmt.Sprintf("%s?offset=%d", disk, extStart))
	_, count, _ := strings.Cut(shown, "Block count:")
	_, size, _ := strings.Cut(shown, "Block size:")
	var blocks, each int
	_, _ = fmt.Sscan(count, &blocks)
	_, _ = fmt.Sscan(size, &each)
	return blocks * each
}

// A card is read as it is, shrunk, and flashed to a larger card that it fills.
func TestReadShrinkGrow(t *testing.T) {
	for _, label := range []string{"gpt", "dos"} {
		t.Run(label, func(t *testing.T) {
			card, dir := usedCard(t, label), t.TempDir()
			if err := stampCard(t, card); err != nil {
				t.Fatal(err)
			}
			flashtest.MustRun(t, "blockdev", "--setro", card) // a card with its switch on
			t.Cleanup(func() { _ = exec.Command("blockdev", "--setrw", card).Run() })
			before := read(t, card)
			packed, small := filepath.Join(dir, "card.img.zst"), filepath.Join(dir, "small.img")
			full, err := Read(t.Context(), card, packed, false)
			if err != nil || full.ImageBytes != cardSize || full.SHA256 != strings.Fields(flashtest.MustRun(t, "sha256sum", packed))[0] {
				t.Fatalf("Read = %+v, %v", full, err)
			}
			shrunk, err := Read(t.Context(), card, small, true)
			if err != nil || shrunk.ImageBytes >= cardSize*7/10 || shrunk.SHA256 != strings.Fields(flashtest.MustRun(t, "sha256sum", small))[0] {
				t.Fatalf("Read with shrink = %+v, %v", shrunk, err)
			}
			same(t, "the card", read(t, card), before)
			if got := wholeCard(t, small); got >= extSize || int64(len(read(t, small))) != shrunk.ImageBytes {
				t.Errorf("the shrunk ext4 has %d bytes; want less than %d", got, extSize)
			}
			flashtest.MustRun(t, "zstd", "-q", "-d", packed)
			if got := wholeCard(t, strings.TrimSuffix(packed, ".zst")); got != extSize {
				t.Errorf("the ext4 in the image has %d bytes; want %d", got, extSize)
			}
			for n, image := range []string{packed, small} { // the small one over the other, too
				if n == 0 || label == "dos" {
					card, _ = flashtest.Loop(t, larger)
				}
				receipt, err := Write(t.Context(), spec, artifact(t), card, Options{Image: image, Yes: []string{card}, Grow: true, OtherBoard: true})
				if err != nil || receipt.Grown == "" || receipt.Ranges == 0 {
					t.Fatalf("Write of %s = %+v, %v", image, receipt, err)
				}
				if got, want := wholeCard(t, card), larger-mib-extStart; got != want&^(mib-1) {
					t.Errorf("the grown ext4 has %d bytes; want %d", got, want&^(mib-1))
				}
			}
		})
	}
}

// A last partition without ext4 stays as it is. The image ends behind it, with zeros up to a whole MiB.
func TestShrinkOther(t *testing.T) {
	const start, size = 3*mib + 512, 8*mib + 1536
	card, _ := flashtest.Loop(t, 20*mib) // full of 0xa5
	table(t, card, fmt.Sprintf("label: gpt\nstart=%d, size=%d\n", start/512, size/512))
	image := filepath.Join(t.TempDir(), "card.img")
	if taken, err := Read(t.Context(), card, image, true); err != nil || taken.ImageBytes != 14*mib {
		t.Fatalf("Read = %+v, %v; want 14 MiB", taken, err)
	}
	got := read(t, image)
	same(t, "the first MiB", got[64<<10:mib], read(t, card)[64<<10:mib])
	same(t, "the partition and what is before it", got[mib:start+size], read(t, card)[mib:start+size])
	same(t, "the space behind it", got[start+size:13*mib], make([]byte, 13*mib-start-size))
	flashtest.MustRun(t, "/sbin/sfdisk", "--verify", image)
}

// While resize2fs runs, after it fails, and after a kill, the device does not look whole. The next
// flash completes it. A dry run writes nothing.
func TestGrowFails(t *testing.T) {
	if to := os.Getenv("KILLED_CARD"); to != "" {
		_, err := Write(t.Context(), spec, artifact(t), to, Options{Image: os.Getenv("KILLED_IMAGE"), Yes: []string{to}, Grow: true, OtherBoard: true})
		t.Fatalf("the flash went on to its end: %v", err)
	}
	card := usedCard(t, "gpt")
	image := filepath.Join(t.TempDir(), "card.zst")
	if _, err := Read(t.Context(), card, image, false); err != nil {
		t.Fatal(err)
	}
	to, _ := flashtest.Loop(t, larger)
	o := Options{Image: image, Yes: []string{to}, Grow: true, OtherBoard: true, DryRun: true}
	before := read(t, to)
	if r, err := Write(t.Context(), spec, artifact(t), to, o); err != nil || !strings.HasPrefix(r.Grown, "partition 2 from 48.0 MiB to 83.0 MiB") {
		t.Errorf("dry run = %+v, %v", r, err)
	}
	same(t, "the card", read(t, to), before)
	dir := t.TempDir()
	looked := filepath.Join(dir, "looked")
	script := fmt.Sprintf("#!/bin/sh\ncmp -n %d /dev/zero %s && cmp -n %[1]d -i 0:%[3]d /dev/zero %[2]s && touch %[4]s\necho broken; exit 1\n", mib, to, larger-mib, looked)
	if err := os.WriteFile(filepath.Join(dir, "resize2fs"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	o.DryRun, o.Grow = false, false
	if _, err := Write(t.Context(), spec, artifact(t), to, o); err != nil { // then all data is there already
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir+":"+path)
	o.Grow = true
	_, err := Write(t.Context(), spec, artifact(t), to, o)
	if err == nil || !errors.Is(err, ErrImage) || !strings.Contains(err.Error(), "flash it without --grow") || !strings.Contains(err.Error(), to+" is not whole") {
		t.Errorf("Write = %v", err)
	}
	if _, err := os.Stat(looked); err != nil {
		t.Error("the device's ends were not zero when resize2fs ran")
	}
	unusable(t, to)
	flashtest.Put(t, filepath.Join(dir, "resize2fs"), "#!/bin/sh\nkill -9 $PPID\n")
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "KILLED_CARD="+to, "KILLED_IMAGE="+image)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("%v; want it killed\n%s", err, out)
	}
	unusable(t, to)
	t.Setenv("PATH", path)
	if _, err := Write(t.Context(), spec, artifact(t), to, o); err != nil {
		t.Errorf("the next flash: %v", err)
	}
	wholeCard(t, to)
	for device, o := range map[string]Options{"new.img": o, to: {Image: filepath.Join(artifact(t).Dir(), "disk.img"), Yes: []string{to}, Grow: true}} {
		if _, err := Write(t.Context(), spec, artifact(t), device, o); err == nil || !strings.Contains(err.Error(), "repeat the line without --grow") && !strings.Contains(err.Error(), "leave --grow out") {
			t.Errorf("Write to %s = %v", device, err)
		}
	}
}

// holed cannot read its first MiB at once.
type holed struct{ io.ReaderAt }

func (h holed) ReadAt(p []byte, off int64) (int, error) {
	if off == 0 && len(p) >= mib {
		return mib / 2, errors.New("input/output error")
	}
	return h.ReaderAt.ReadAt(p, off)
}

// A place between the partition table and the first partition that cannot be read is not taken for zeros.
func TestShrinkUnreadable(t *testing.T) {
	card := flashtest.Open(t, usedCard(t, "gpt"), 0)
	copied := flashtest.Open(t, filepath.Join(t.TempDir(), "copied"), os.O_CREATE)
	from := dump.Disk{Pieces: []dump.Piece{{ReaderAt: holed{card}, End: cardSize, File: card}}, SectorBytes: 512}
	if _, err := shrinkDisk(t.Context(), from, copied); !errors.As(err, new(dump.ReadError)) || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("shrinkDisk = %v; want the device's error", err)
	}
}

// What is refused, ended or broken leaves no file, and no byte of the card changes.
func TestReadRefuses(t *testing.T) {
	card := usedCard(t, "gpt")
	mounted, _ := flashtest.Loop(t, 16*mib)
	flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", mounted)
	at := t.TempDir()
	flashtest.MustRun(t, "mount", "-o", "ro", mounted, at)
	t.Cleanup(func() { _ = exec.Command("umount", at).Run() })
	there := filepath.Join(t.TempDir(), "there.zst")
	flashtest.Put(t, there, "mine")
	virtual := filepath.Join(t.TempDir(), "virtual.img")
	flashtest.Put(t, virtual, string(flashtest.Random(20*mib)))
	cut := progress.With(t.Context(), progress.New(sink(func(progress.Event) { _ = os.Truncate(virtual, 10*mib) })))
	for name, test := range map[string]struct {
		ctx           context.Context
		device, image string
		kind          error
		want          string
	}{
		"mounted":    {t.Context(), mounted, "a.zst", ErrRefused, "mounted on " + at},
		"no disk":    {t.Context(), "usb:1-2", "a.zst", ErrRefused, "no disk"},
		"new":        {t.Context(), filepath.Join(t.TempDir(), "none.img"), "a.zst", ErrRefused, "no disk"},
		"name":       {t.Context(), card, "a.gz", nil, "for a.gz"},
		"folder":     {t.Context(), card, "none/a.zst", nil, "mkdir -p none"},
		"there":      {t.Context(), card, there, nil, "exists already"},
		"Ctrl-C":     {interrupted(t), card, "a.img", context.Canceled, ""},
		"shrinking":  {interrupted(t), card, "a.img", context.Canceled, ""},
		"no table":   {t.Context(), virtual, "a.zst", nil, "without --shrink"},
		"unreadable": {cut, virtual, "a.zst", ErrDevice, "at 20963328: "},
	} {
		t.Chdir(t.TempDir())
		_, err := Read(test.ctx, test.device, test.image, name == "shrinking" || name == "no table")
		if err == nil || !strings.Contains(err.Error(), test.want) || test.kind != nil && !errors.Is(err, test.kind) || test.kind != context.Canceled && !strings.Contains(err.Error(), "\nnext: ") {
			t.Errorf("%s: Read = %v", name, err)
		}
		if left, _ := os.ReadDir("."); len(left) > 0 {
			t.Errorf("%s: it left %v", name, left)
		}
	}
	if got := string(read(t, there)); got != "mine" {
		t.Errorf("the file that was there holds %q", got)
	}
	if err := exec.Command("mount", "-o", "ro,offset="+fmt.Sprint(extStart), card, at).Run(); err != nil {
		t.Errorf("the card cannot be mounted after it was read: %v", err)
	}
	_ = exec.Command("umount", at).Run()
}

// An image comes through standard input once the device is confirmed. Otherwise nothing is read.
func TestFlashStdin(t *testing.T) {
	a := artifact(t)
	card, _ := flashtest.Loop(t, deviceSize)
	before, was := read(t, card), os.Stdin
	t.Cleanup(func() { os.Stdin = was })
	packed := filepath.Join(t.TempDir(), "disk.gz")
	flashtest.MustRun(t, "sh", "-c", "gzip -c "+filepath.Join(a.Dir(), "disk.img")+" > "+packed)
	sum := strings.Fields(flashtest.MustRun(t, "sha256sum", packed))[0]
	list := filepath.Join(t.TempDir(), "SHA256SUMS")
	flashtest.Put(t, list, sum+"  -\n")
	key := filepath.Join(t.TempDir(), "key")
	flashtest.MustRun(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	signers := filepath.Join(t.TempDir(), "signers")
	flashtest.Put(t, signers, "me "+string(read(t, key+".pub")))
	flashtest.MustRun(t, "ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", key, list)
	for name, test := range map[string]struct {
		in   []byte
		o    Options
		want string
	}{
		"1 not confirmed": {read(t, packed), Options{Confirm: func([]device.Device) error { return nil }}, "--yes=<path of " + card + ">"},
		"2 other digest":  {read(t, packed), Options{Digest: "sha256:" + strings.Repeat("0", 64)}, "standard input: sha256 " + sum},
		"3 empty":         {nil, Options{}, "ended without a byte"},
		"4 cut off":       {read(t, packed)[:mib], Options{}, "standard input: the file is cut off"},
		"5 not signed":    {read(t, packed), Options{Signers: signers}, "no signature comes with standard input"},
		"6 by its digest": {read(t, packed), Options{Digest: "sha256:" + sum}, ""},
		"7 by a list":     {read(t, packed), Options{Digest: list}, ""},
		"8 signed list":   {read(t, packed), Options{Digest: list, Signers: signers}, ""},
	} {
		in, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		_, err = in.Write(test.in)
		_, wrong := in.Seek(0, 0)
		if err := errors.Join(err, wrong); err != nil {
			t.Fatal(err)
		}
		os.Stdin = in
		test.o.Image, test.o.OtherBoard, test.o.Cache = "-", true, t.TempDir()
		if test.o.Confirm == nil {
			test.o.Yes = []string{card}
		}
		_, err = Write(t.Context(), spec, a, card, test.o)
		if at, _ := in.Seek(0, 1); name[0] == '1' && at != 0 {
			t.Errorf("%s: %d bytes were read", name, at)
		}
		switch {
		case name[0] < '6':
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "\nnext: ") {
				t.Errorf("%s: Write = %v", name, err)
			}
			same(t, name+": the card", read(t, card), before)
		default:
			if err != nil {
				t.Errorf("%s: Write = %v", name, err)
			}
			same(t, name+": the card", read(t, card)[:imageSize], image(t, a))
			flashtest.Scribble(t, card, 0, before)
		}
		if left, _ := os.ReadDir(test.o.Cache); len(left) > 0 {
			t.Errorf("%s: the cache has %v", name, left)
		}
		in.Close()
	}
}

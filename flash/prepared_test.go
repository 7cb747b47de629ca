package flash

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/write"
)

const (
	fatStart = 2 * mib
	fatSize  = 4 * mib
	ownStart = 7 * mib
	ownSize  = 4 * mib
)

// cardImage is an image with a boot partition of FAT, which has one file, and an empty data partition.
func cardImage(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "card.img")
	fat := filepath.Join(t.TempDir(), "fat.img")
	for name, size := range map[string]int64{path: imageSize, fat: fatSize} {
		if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, size)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/sbin/sfdisk", "--quiet", path)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("label: gpt\nname=boot, start=%d, size=%d\nname=data, start=%d, size=%d\n", fatStart/512, fatSize/512, ownStart/512, ownSize/512))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
	old := filepath.Join(t.TempDir(), "old.txt")
	flashtest.Put(t, old, "as built")
	if _, err := exec.LookPath("mformat"); err != nil {
		t.Skip("mformat is missing (Debian package mtools)")
	}
	flashtest.MustRun(t, "mformat", "-i", fat, "-v", "BOOTFS", "::")
	flashtest.MustRun(t, "mcopy", "-i", fat, old, "::/")
	flashtest.Scribble(t, path, fatStart, read(t, fat))
	return path
}

// One image for two cards, each with its own files and stamp.
func TestPreparedForTwoCards(t *testing.T) {
	needMke2fs(t)
	a, dir := artifact(t), t.TempDir()
	path := cardImage(t)
	packed := path + ".gz"
	flashtest.MustRun(t, "gzip", "-k", path)
	p, err := Prepare(t.Context(), spec, a, dir, Options{Image: packed, OtherBoard: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("the prepared image lies in %v; want that its file has no name", left)
	}
	plain := read(t, path)
	for i, host := range []string{"left", "right"} {
		card, _ := flashtest.Loop(t, deviceSize)
		var own []Personal
		for part, files := range map[string]map[string][]byte{"BOOTFS": {"user-data": []byte(host), "old.txt": []byte(host)}, "data": {"identity/hostname": []byte(host)}} {
			one, err := p.Personal(part, files)
			if err != nil {
				t.Fatal(err)
			}
			own = append(own, one)
		}
		stamp, completed := strings.Repeat(fmt.Sprint(i), 32), 0
		receipt, err := p.Write(t.Context(), card, PreparedOptions{
			Meant: func(device.Device) error { return nil }, Personal: own, Stamp: stamp,
			Complete: func() error {
				completed++
				same(t, "the beginning before the end", read(t, card)[:mib-4096], make([]byte, mib-4096))
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, card)
		if completed != 1 || receipt.Image != "card.img.gz" || receipt.Form != "gz" || !receipt.ReadBack || receipt.UnpackedSHA256 == "" {
			t.Errorf("completed %d times, receipt has %q, %q, %q, read back %v", completed, receipt.Image, receipt.Form, receipt.UnpackedSHA256, receipt.ReadBack)
		}
		if found := write.ReadStamp(flashtest.Open(t, card, os.O_RDONLY)); found != stamp {
			t.Errorf("stamp = %q; want %q", found, stamp)
		}
		clear(got[mib-4096 : mib])
		same(t, "before the partitions", got[:fatStart], plain[:fatStart])
		same(t, "between the partitions", got[fatStart+fatSize:ownStart], plain[fatStart+fatSize:ownStart])
		same(t, "behind the partitions", got[ownStart+ownSize:imageSize], plain[ownStart+ownSize:])
		fat, data := filepath.Join(t.TempDir(), "fat"), filepath.Join(t.TempDir(), "data")
		flashtest.Put(t, fat, string(got[fatStart:fatStart+fatSize]))
		flashtest.Put(t, data, string(got[ownStart:ownStart+ownSize]))
		for _, argv := range [][]string{{"mtype", "-i", fat, "::/user-data"}, {"mtype", "-i", fat, "::/old.txt"}, {flashtest.E2fs(t, "debugfs"), "-R", "cat identity/hostname", data}} {
			if out, err := exec.Command(argv[0], argv[1:]...).Output(); err != nil || string(out) != host {
				t.Errorf("%q = %q, %v; want %q", argv, out, err, host)
			}
		}
	}
}

// A card that is not the one that is meant stays as it is, and so does one whose row could not be kept.
func TestPreparedRefuses(t *testing.T) {
	a := artifact(t)
	p, err := Prepare(t.Context(), spec, a, t.TempDir(), Options{Image: cardImage(t), OtherBoard: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	card, _ := flashtest.Loop(t, deviceSize)
	before := read(t, card)
	other := errors.New("another card")
	if _, err := p.Write(t.Context(), card, PreparedOptions{Meant: func(device.Device) error { return other }}); !errors.Is(err, other) || !errors.Is(err, ErrRefused) {
		t.Errorf("Write = %v; want %v, refused", err, other)
	}
	same(t, "the other card", read(t, card), before)
	full := errors.New("no space for the record")
	if _, err := p.Write(t.Context(), card, PreparedOptions{Meant: func(device.Device) error { return nil }, Complete: func() error { return full }}); !errors.Is(err, full) {
		t.Errorf("Write = %v; want %v", err, full)
	}
	unusable(t, card)
	for _, name := range []string{"rootfs", ""} {
		if _, err := p.Personal(name, nil); err == nil || !strings.Contains(err.Error(), `"BOOTFS"`) {
			t.Errorf("Personal(%q) = %v; want an error with the names", name, err)
		}
	}
}

// With --holes=keep only what the image's map leaves out stays on the card. Other zeros are content.
func TestPreparedKeepsHoles(t *testing.T) {
	a, path := artifact(t), cardImage(t)
	for _, mapped := range []bool{false, true} {
		o := Options{Image: path, OtherBoard: true, Holes: write.Keep}
		if mapped {
			f := flashtest.Open(t, path, os.O_RDONLY)
			o.BlockMap = filepath.Join(t.TempDir(), "card.bmap")
			m, text := mapOf(t, f), new(bytes.Buffer)
			if _, err := m.WriteTo(text); err != nil {
				t.Fatal(err)
			}
			flashtest.Put(t, o.BlockMap, text.String())
		}
		p, err := Prepare(t.Context(), spec, a, t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		card, _ := flashtest.Loop(t, deviceSize)
		if _, err := p.Write(t.Context(), card, PreparedOptions{Meant: func(device.Device) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, ownSize)
		if mapped {
			want = bytes.Repeat([]byte{0xa5}, ownSize)
		}
		same(t, fmt.Sprintf("the empty partition, with a map: %v", mapped), read(t, card)[ownStart:ownStart+ownSize], want)
	}
}

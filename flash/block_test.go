package flash

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/flash/flashtest"
	"slipway/images/bmap"
)

const deviceSize = 16 * mib

func TestWriteBlock(t *testing.T) {
	for _, args := range [][]string{{"--direct-io=on"}, {"--direct-io=off"}, {"--sector-size=4096"}} {
		t.Run(args[0], func(t *testing.T) {
			device, _ := flashtest.Loop(t, deviceSize, args...)
			a := artifact(t)
			receipt, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}})
			if err != nil {
				t.Fatal(err)
			}
			got := read(t, device)
			same(t, "device", got[:imageSize], image(t, a))
			same(t, "end of the device", got[deviceSize-headBytes:], make([]byte, headBytes))
			same(t, "between", got[imageSize:deviceSize-headBytes], bytes.Repeat([]byte{0xa5}, deviceSize-headBytes-imageSize))
			if receipt.Device.Bus != "loop" || receipt.Device.Path != device || receipt.Device.SizeBytes != deviceSize {
				t.Errorf("device in the receipt = %+v", receipt.Device)
			}
		})
	}
}

// An image whose size is no multiple of anything, on a device of just that size.
func TestWriteBlockOddSize(t *testing.T) {
	a := artifact(t)
	path := filepath.Join(a.Dir(), "disk.img")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{imageSize + 512, imageSize + 5*512, imageSize + 777} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for _, tail := range [][]byte{nil, bytes.Repeat([]byte("x"), int(size-imageSize))} {
			if _, err := f.WriteAt(tail, imageSize); err != nil {
				t.Fatal(err)
			}
			device, _ := flashtest.Loop(t, (size+511)/512*512)
			a := describe(t, a.Dir(), mapOf(t, f))
			if _, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}}); err != nil {
				t.Fatal(err)
			}
			same(t, "device", read(t, device)[:size], image(t, a))
		}
	}
}

func TestWriteBlockIdentity(t *testing.T) {
	needMke2fs(t)
	device, _ := flashtest.Loop(t, deviceSize)
	a, id := artifact(t), newTestIdentity(t)
	if _, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}, Identity: &id}); err != nil {
		t.Fatal(err)
	}
	got, want := read(t, device), image(t, a)
	same(t, "before the data partition", got[:dataStart], want[:dataStart])
	same(t, "behind the data partition", got[dataStart+dataSize:imageSize], want[dataStart+dataSize:])
	data := filepath.Join(t.TempDir(), "data.img")
	if err := os.WriteFile(data, got[dataStart:dataStart+dataSize], 0o600); err != nil {
		t.Fatal(err)
	}
	proveIdentity(t, data, id)
}

// The map of another program, with one range for what we would cut into many.
func TestWriteBlockByBmaptoolsMap(t *testing.T) {
	if _, err := exec.LookPath("bmaptool"); err != nil {
		t.Skip("bmaptool is missing (Debian package bmap-tools)")
	}
	device, _ := flashtest.Loop(t, deviceSize)
	a := artifact(t)
	path := filepath.Join(a.Dir(), "disk.bmap")
	flashtest.MustRun(t, "bmaptool", "create", "-o", path, filepath.Join(a.Dir(), "disk.img"))
	a = describe(t, a.Dir(), mapFrom(t, path))
	if _, err := Write(t.Context(), spec, a, device, Options{Yes: []string{device}}); err != nil {
		t.Fatal(err)
	}
	same(t, "device", read(t, device)[:imageSize], image(t, a))
}

// unusable fails where a device that was not finished could be taken for whole.
func unusable(t *testing.T, device string) {
	t.Helper()
	same(t, "first MiB of "+device, read(t, device)[:headBytes], make([]byte, headBytes))
}

func TestWriteBlockFails(t *testing.T) {
	for _, test := range failures {
		t.Run(test.name, func(t *testing.T) {
			device, _ := flashtest.Loop(t, deviceSize)
			a := artifact(t)
			ctx, before := test.prepare(t, a), read(t, device)
			_, err := Write(ctx, spec, a, device, Options{Yes: []string{device}})
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("Write = %v; want an error with %q", err, test.wantErr)
			}
			switch {
			case strings.Contains(err.Error(), "is not whole"):
				unusable(t, device)
				if !strings.Contains(err.Error(), "\n  what it held before: ") {
					t.Errorf("Write = %v; want the file with the old partition table", err)
				}
			case strings.Contains(err.Error(), "is as it was"), strings.Contains(err.Error(), "nothing was written"):
				same(t, "device", read(t, device), before)
			default:
				t.Errorf("Write = %v; want it to say how the device was left", err)
			}
			kept := keptReceipts(t, a)
			if written := strings.Contains(err.Error(), "is not whole"); written != (len(kept) == 1) || written && (kept[0].Error == "" || kept[0].Finished.IsZero()) {
				t.Errorf("receipts: %+v; want one with an error, only if the device was written", kept)
			}
		})
	}
}

// Whenever a flash is ended, its device is untouched, unusable or whole.
func TestWriteBlockInterruptedAnywhere(t *testing.T) {
	a := artifact(t)
	want := image(t, a)
	device, _ := flashtest.Loop(t, deviceSize)
	for range 10 {
		before := read(t, device)
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(100*time.Millisecond))
		_, err := Write(ctx, spec, a, device, Options{Yes: []string{device}})
		cancel()
		switch {
		case err == nil:
			same(t, "device", read(t, device)[:imageSize], want)
		case strings.Contains(err.Error(), "is not whole"):
			unusable(t, device)
		default:
			same(t, "device", read(t, device), before)
		}
	}
}

// A dry run says how much a flash would write, and changes nothing.
func TestDryRunOfBlock(t *testing.T) {
	device, file := flashtest.Loop(t, deviceSize)
	before := read(t, file)
	var shown strings.Builder
	receipt, err := Write(t.Context(), spec, artifact(t), device, Options{DryRun: true, Out: &shown})
	if err != nil || !receipt.DryRun || receipt.ReadBack || receipt.WrittenBytes == 0 || receipt.WrittenBytes > imageSize {
		t.Fatalf("Write = %+v, %v; want a dry run's receipt", receipt, err)
	}
	if !strings.Contains(shown.String(), "would be written to "+device+". No byte was written.") {
		t.Errorf("shown was %q; want how much would be written", shown.String())
	}
	same(t, "device", read(t, file), before)
}

func TestWriteBlockRefusesPartition(t *testing.T) {
	if _, err := exec.LookPath("addpart"); err != nil {
		t.Skip("addpart is missing (Debian package util-linux)")
	}
	device, _ := flashtest.Loop(t, deviceSize, "--partscan")
	flashtest.MustRun(t, "addpart", device, "1", "2048", "4096")
	partition := device + "p1"
	if _, err := os.Stat(partition); err != nil {
		t.Skipf("nobody makes partitions' nodes here: %v", err)
	}
	_, err := Write(t.Context(), spec, artifact(t), partition, Options{Yes: []string{partition}})
	if err == nil || !strings.Contains(err.Error(), "name the whole disk, "+device) {
		t.Errorf("Write = %v; want it to name the disk", err)
	}
}

// Devices that are flashed side by side each tidy up the one folder.
func TestPruneSideBySide(t *testing.T) {
	dir := t.TempDir()
	for i := range 200 {
		flashtest.Put(t, filepath.Join(dir, fmt.Sprintf("%03d", i)), "")
	}
	var g errgroup.Group
	for range 8 {
		g.Go(func() error { return pruneOldest(dir, 3) })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 || left[0].Name() != "197" {
		t.Errorf("left: %v; want the three newest", left)
	}
}

// A file that another flash is about to rename stays, and one that a killed flash left does not.
func TestPrunePending(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".1-killed", "2", "3", ".4-pending"} {
		flashtest.Put(t, filepath.Join(dir, name), "")
	}
	if err := pruneOldest(dir, 2); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 || left[0].Name() != ".4-pending" || left[1].Name() != "3" {
		t.Errorf("left: %v; want the pending and the newest one", left)
	}
}

func mapOf(t *testing.T, f *os.File) bmap.Map {
	t.Helper()
	m, err := bmap.Create(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mapFrom(t *testing.T, path string) bmap.Map {
	t.Helper()
	m, err := bmap.Read(bytes.NewReader(read(t, path)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

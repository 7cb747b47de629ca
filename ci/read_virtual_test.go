package ci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/reach"
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/flashtest"
	"slipway/flash/qemu"
	"slipway/images"
)

// A card that booted is read with --shrink, and flashed with --grow to a disk of twice its size. That
// boots, with the host key and the files of the card, and with all of the disk's space.
func TestShrunkCardBoots(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" {
		t.Skip("boots an emulated board twice, which takes minutes: SLIPWAY_LONG=1 and -timeout=1h")
	}
	r := newVirtualBuild(t, "whole")
	a, err := Build(t.Context(), t.Output(), r.spec, r.opt.Build)
	if err != nil {
		t.Fatal(err)
	}
	r.spec.Flash.Kinds = []string{"block"}
	state, err := r.opt.Build.StateDir(r.spec)
	if err != nil {
		t.Fatal(err)
	}
	id, err := flash.NewIdentity(state)
	if err != nil {
		t.Fatal(err)
	}
	dir, image := r.opt.Build.MachineDir(r.spec), filepath.Join(t.TempDir(), "card.zst")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const size = 2 << 30
	onCard(t, dir, size, func(card string) {
		if _, err := flash.Write(t.Context(), r.spec, a, card, flash.Options{Identity: &id, Yes: []string{card}}); err != nil {
			t.Fatal(err)
		}
	})
	start := func() {
		t.Helper()
		if err := StartVirtual(t.Context(), t.Output(), r.opt.Build, r.spec); err != nil {
			t.Fatal(err)
		}
	}
	start()
	defer func() {
		if err := StopVirtual(context.Background(), t.Output(), r.opt.Build, r.spec, true); err != nil {
			t.Error(err)
		}
	}()
	r.runOnBoard(t, "sh", "-c", "head -c 3M /dev/urandom > /data/kept && sha256sum /data/kept > /data/sum && sync")
	// On a busy machine the plug may be pulled. The card is then not clean, which is tried as well.
	if err := StopVirtual(t.Context(), t.Output(), r.opt.Build, r.spec, false); err != nil {
		t.Fatal(err)
	}
	onCard(t, dir, 0, func(card string) {
		taken, err := flash.Read(t.Context(), card, image, true)
		if err != nil || taken.ImageBytes > size*3/4 {
			t.Fatalf("Read = %+v, %v; want less than three quarters of the card", taken, err)
		}
		_ = taken.Show(t.Output())
	})
	onCard(t, dir, 2*size, func(card string) {
		o := flash.Options{Image: image, Yes: []string{card}, Grow: true, OtherBoard: true}
		if receipt, err := flash.Write(t.Context(), r.spec, a, card, o); err != nil || receipt.Grown == "" {
			t.Fatalf("Write = %+v, %v", receipt, err)
		}
	})
	start()
	var out string
	err = reach.WithArtifact(t.Context(), r.opt.Build, r.spec, r.spec.Board, func(ctx context.Context, c *boardssh.Conn, _ images.Spec, _ images.Artifact) error {
		result, err := c.Run(ctx, "sh", "-c", "sha256sum -c /data/sum && hostname && cat /proc/cmdline && df -B1 --output=size,target /data && lsblk -b")
		out = fmt.Sprintf("%s%s", result.Stdout, result.Stderr)
		return err
	})
	t.Log(out)
	var bytes int64
	_, rest, _ := strings.Cut(out, "Mounted on\n")
	if _, wrong := fmt.Sscan(rest, &bytes); err != nil || wrong != nil || bytes < 2*size*7/10 || !strings.Contains(out, "/data/kept: OK") {
		t.Errorf("the board says %v, %s; want the kept file, and /data of nearly all of %d bytes", err, out, 2*size)
	}
}

// onCard calls work with a loop device of the machine's disk in dir. Unless size is 0, it is a new one.
func onCard(t *testing.T, dir string, size int64, work func(card string)) {
	t.Helper()
	disk := filepath.Join(dir, qemu.DiskName)
	if size > 0 {
		if err := os.RemoveAll(disk); err != nil {
			t.Fatal(err)
		}
		flashtest.Put(t, disk, "")
		if err := os.Truncate(disk, size); err != nil {
			t.Fatal(err)
		}
	}
	card := flashtest.Attach(t, disk)
	work(card)
	flashtest.Detach(t, card)
}

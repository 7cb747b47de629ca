package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"slipway/flash/flashtest"
)

// watched runs a watch of this machine until told has seen what it wants.
func watched(t *testing.T, want func(Change) (done bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	seen := false
	err := Watch(ctx, nil, func(c Change) error {
		if want(c) {
			seen = true
			cancel()
		}
		return nil
	})
	if err != nil || !seen {
		t.Errorf("Watch = %v, and did not tell all in time: %v", err, !seen)
	}
}

// A loop device comes, gets a file system, and goes.
func TestWatch(t *testing.T) {
	present, _ := flashtest.Loop(t, mib)
	coming, file := "", filepath.Join(t.TempDir(), "card")
	if err := os.WriteFile(file, make([]byte, 8*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	var actions []string
	watched(t, func(c Change) bool {
		switch {
		case c.Device.Path == present && c.Action == "present":
			coming = flashtest.Attach(t, file)
		case c.Device.Path != coming || c.Device.Model != file: // another test's
		case c.Action == "added":
			actions = append(actions, "added")
			flashtest.MustRun(t, flashtest.E2fs(t, "mke2fs"), "-q", "-F", "-L", "CARD", coming)
		case c.Action == "changed" && c.Device.Label == "CARD":
			actions = append(actions, "changed")
			flashtest.Detach(t, coming)
		case c.Action == "removed":
			actions = append(actions, "removed")
			return true
		}
		return false
	})
	if want := []string{"added", "changed", "removed"}; !slices.Equal(slices.Compact(actions), want) {
		t.Errorf("told %v; want %v", actions, want)
	}
}

// What a watch says of a machine that is another one each time.
func TestWatchChanges(t *testing.T) {
	machines := []machine{
		fake(t, laptop),
		fake(t, laptop+secondReader),
		fake(t, laptop+`proc/self/mountinfo = 1 0 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n3 1 8:1 / /media/card rw - vfat /dev/sda1 rw`),
		fake(t, laptop+stick+"/diskseq = 9"),
	}
	var told []string
	var known []Device
	for _, m := range machines {
		now, err := m.listAll(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range compareLists(known, now) {
			told = append(told, c.Action+" "+c.Device.Path)
		}
		told = append(told, "-")
		known = now
	}
	want := strings.Join([]string{
		"added /dev/mmcblk0", "added /dev/nvme0n1", "added /dev/nvme1n1", "added /dev/sda", "-",
		"changed /dev/sda", "added /dev/sdb", "-", // sda has a twin now
		"removed /dev/sdb", "changed /dev/sda", "-",
		"removed /dev/sda", "added /dev/sda", "-",
	}, "\n")
	if got := strings.Join(told, "\n"); got != want {
		t.Errorf("told:\n%s\nwant:\n%s", got, want)
	}
}

func TestWatchEnds(t *testing.T) {
	broken := errors.New("broken pipe")
	if err := fake(t, laptop).watchDevices(t.Context(), nil, func(Change) error { return broken }, func() {}); !errors.Is(err, broken) {
		t.Errorf("watch = %v; want what its reader said", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := fake(t, laptop).watchDevices(ctx, nil, func(Change) error { return nil }, cancel); err != nil {
		t.Errorf("watch = %v; want nothing at its end", err)
	}
}

// A line of JSON has everything; a line for people has what tells devices apart.
func TestChangePrints(t *testing.T) {
	c := Change{Action: "added", Device: Device{Path: "/dev/sda", Kind: Block, Bus: "usb", Model: "SanDisk Ultra", Serial: "4C53", SizeBytes: 32 << 30, Removable: true}}
	var b strings.Builder
	if err := c.Print(&b); err != nil || b.String() != "+ /dev/sda  32.0 GiB  usb  SanDisk Ultra 4C53    \n" {
		t.Errorf("Print = %q, %v", b.String(), err)
	}
	data, err := json.Marshal(c)
	var got map[string]any
	if err != nil || json.Unmarshal(data, &got) != nil || got["action"] != "added" || got["device"].(map[string]any)["serial"] != "4C53" {
		t.Errorf("JSON = %s, %v", data, err)
	}
}

// A watch reads a disk again only once it is another one, or something was written to it.
func TestWatchReadsOnce(t *testing.T) {
	const count = "1 0 8 0 %s 0 8 0 0 0 0 %s 0 0 0 0 0" // as in /sys/block/sda/stat
	for name, tt := range map[string]struct {
		sequence, writes, discards string // when the disk is listed again
		want                       string
	}{
		"nothing happened":  {"7", "5", "2", ""},
		"it was written to": {"7", "6", "2", "LVM2_member"},
		"it was discarded":  {"7", "5", "3", "LVM2_member"},
		"another disk":      {"8", "5", "2", "LVM2_member"},
		"an old kernel":     {"", "5", "2", "LVM2_member"},
	} {
		m := fake(t, laptop)
		m.cache = &sync.Map{}
		disk := filepath.Join(filepath.Dir(m.sys), stick)
		list := func(sequence, writes, discards string) string {
			flashtest.Put(t, filepath.Join(disk, "diskseq"), sequence)
			flashtest.Put(t, filepath.Join(disk, "stat"), fmt.Sprintf(count, writes, discards))
			got, err := m.listBlockDevices(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return got[3].Content.Type
		}
		before := "7"
		if tt.sequence == "" {
			before = ""
		}
		if got := list(before, "5", "2"); got != "" {
			t.Fatalf("%s: at first %q; want an empty disk", name, got)
		}
		flashtest.Scribble(t, filepath.Join(m.nodes, "sda"), 512, flashtest.LvmLabel())
		if got := list(tt.sequence, tt.writes, tt.discards); got != tt.want {
			t.Errorf("%s: %q; want %q", name, got, tt.want)
		}
	}
}

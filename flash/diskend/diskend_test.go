package diskend

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/flashtest"
	"slipway/flash/probe"
)

const mib = 1 << 20

// endsOf returns the ends of a disk of sizeBytes that begins as the file does.
func endsOf(t testing.TB, path string, sizeBytes, sectorBytes int64) Ends {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := NewEnds(f, sizeBytes, sectorBytes)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// made writes a table by sfdisk to a disk of 40 MiB.
func made(t testing.TB, disk, script string) {
	t.Helper()
	cmd := exec.Command("/sbin/sfdisk", "--quiet", "--wipe=never", disk)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("sfdisk (Debian package fdisk): %v %s", err, out)
	}
}

func emptyDisk(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 40*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sfdisk and sgdisk find a larger and a smaller table as good as their own, with all else as it was.
func TestFit(t *testing.T) {
	const gpt = "label: gpt\nfirst-lba: 64\nstart=2048, size=8192, name=boot, attrs=RequiredPartition, uuid=11111111-2222-3333-4444-555555555555\nstart=20480, size=40960, type=linux, name=root\nstart=12288, size=4096\n"
	for _, test := range []struct {
		name, script string
		size         int64
		shrink       bool
		want         int64 // of the last partition
		wantErr      string
	}{
		{"gpt grows", gpt, 100 * mib, false, 89 * mib, ""},
		{"gpt in odd sectors", gpt, 100*mib + 512, false, 89 * mib, ""},
		{"gpt shrinks", gpt, 25 * mib, true, 14 * mib, ""},
		{"gpt keeps its size", gpt, 31*mib - 512, false, 20 * mib, ""},
		{"gpt has no room for two", gpt, 30*mib + 32*512, false, 0, "no room"},
		{"gpt has its disk", gpt, 40 * mib, false, 29 * mib, ""},
		{"dos grows", "label: dos\nstart=2048, size=8192, type=c, bootable\nstart=20480, size=40960\n", 100 * mib, false, 89 * mib, ""},
		{"dos ends at 2 TiB", "label: dos\nstart=2048, size=8192\n", 5 << 40, false, 2<<40 - 2*mib, ""},
		{"a logical one", "label: dos\nstart=2048, size=60000, type=5\nstart=4096, size=8192\n", 100 * mib, false, 0, "extended"},
		{"too early", "label: dos\nstart=64, size=8192\n", 100 * mib, false, 0, "begins in the first MiB"},
		{"none", "label: gpt\n", 100 * mib, false, 0, "no partitions"},
	} {
		t.Run(test.name, func(t *testing.T) {
			disk := emptyDisk(t)
			made(t, disk, test.script)
			dumped := func() string {
				out, _ := exec.Command("/sbin/sfdisk", "--dump", disk).Output()
				return string(out)
			}
			before := dumped()
			e := endsOf(t, disk, test.size, 512)
			was, got, err := e.Fit(test.shrink)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("Fit = %v; want an error with %q", err, test.wantErr)
				}
				return
			}
			if err != nil || got != test.want {
				t.Fatalf("Fit = %d, %v; want %d", got, err, test.want)
			}
			if test.size > 1<<40 {
				return // larger than a file here
			}
			if err := os.Truncate(disk, test.size); err != nil {
				t.Fatal(err)
			}
			flashtest.Scribble(t, disk, 0, e.First)
			flashtest.Scribble(t, disk, test.size-Mark, e.Last)
			if out := flashtest.MustRun(t, "/sbin/sfdisk", "--verify", disk); strings.Contains(out, "mismatch") {
				t.Errorf("sfdisk --verify: %s", out)
			}
			if strings.Contains(test.script, "gpt") {
				if out, err := exec.Command("/sbin/sgdisk", "--verify", disk).CombinedOutput(); err == nil && !bytes.Contains(out, []byte("No problems found")) {
					t.Errorf("sgdisk --verify: %s", out)
				}
			}
			want := strings.Replace(before, fmt.Sprintf("size=%12d", was.SizeBytes/512), fmt.Sprintf("size=%12d", got/512), 1)
			if strip(dumped()) != strip(want) {
				t.Errorf("the table is\n%s; want\n%s", dumped(), want)
			}
		})
	}
}

// strip removes the line of sfdisk's dump that a larger disk changes.
func strip(dump string) string {
	var kept []string
	for line := range strings.Lines(dump) {
		if !strings.HasPrefix(line, "last-lba") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// A disk with sectors of 4096 bytes has its table in other places.
func TestFitLargeSectors(t *testing.T) {
	device, file := flashtest.Loop(t, 40*mib, "--sector-size", "4096")
	made(t, device, "label: gpt\nstart=256, size=1024\nstart=2048, size=1024\n")
	e := endsOf(t, device, 100*mib, 4096)
	if _, got, err := e.Fit(false); err != nil || got != 91*mib {
		t.Fatalf("Fit = %d, %v", got, err)
	}
	flashtest.Detach(t, device)
	if err := os.Truncate(file, 100*mib); err != nil {
		t.Fatal(err)
	}
	flashtest.Scribble(t, file, 0, e.First)
	flashtest.Scribble(t, file, 99*mib, e.Last)
	flashtest.MustRun(t, "/sbin/sfdisk", "--verify", flashtest.Attach(t, "--sector-size", "4096", file))
}

// A read that begins or stops anywhere is of the first end, zeros, or the last end.
func TestEndsReadAt(t *testing.T) {
	e := Ends{First: flashtest.Random(Mark), Last: flashtest.Random(Mark), SizeBytes: 2*Mark + 512, SectorBytes: 512}
	disk := slices.Concat(e.First, make([]byte, 512), e.Last)
	places := []int{0, 1, Mark - 1, Mark, Mark + 1, Mark + 511, Mark + 512, Mark + 513, len(disk) - 1, len(disk)}
	for i, from := range places {
		for _, to := range places[i:] {
			p := bytes.Repeat([]byte{1}, to-from)
			if n, err := e.ReadAt(p, int64(from)); n != len(p) || err != nil || !bytes.Equal(p, disk[from:to]) {
				t.Errorf("ReadAt from %d to %d = %d, %v, or other bytes", from, to, n, err)
			}
		}
	}
}

// Whatever is on a disk, Fit returns a table that probe finds right, or an error.
func FuzzFit(f *testing.F) {
	for i, script := range []string{"label: gpt\nstart=2048, size=8192\nstart=20480, size=4096\n", "label: dos\nstart=2048, size=8192\n"} {
		disk := emptyDisk(f)
		made(f, disk, script)
		f.Add(endsOf(f, disk, 40*mib, 512).First[:(34-33*i)*512], int64(64*mib), i == 0)
	}
	f.Fuzz(func(t *testing.T, first []byte, size int64, shrink bool) {
		e := Ends{First: make([]byte, Mark), Last: make([]byte, Mark), SizeBytes: 2*Mark + size&(1<<40-1), SectorBytes: 512}
		copy(e.First, first)
		was, got, err := e.Fit(shrink)
		if err != nil {
			return
		}
		now, err := probe.Read(e, e.SizeBytes, 512)
		if err != nil || len(now.Table.Faults) > 0 || was.OffsetBytes+got > e.SizeBytes {
			t.Errorf("Fit = %+v, %d: %+v, %v", was, got, now.Table, err)
		}
	})
}

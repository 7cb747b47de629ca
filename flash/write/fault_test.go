package write

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

func init() { removalWait = time.Second }

// faulty is the file of a loop device, whose server behaves as bad cards do.
type faulty struct {
	fs.Inode
	faults
	mu   sync.Mutex
	data []byte
}

// faults are the faults of a faulty device.
type faults struct {
	where func(off int64) int64           // in data; negative: dropped, and read as zeros
	write func(off int64, p []byte) error // before each write; may change p
	read  func(off int64, n int) error    // before each read
	sync  func() error                    // before each flush
}

// content returns the device's content; the kernel may still be writing.
func (f *faulty) content() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.data)
}

func (f *faulty) at(off int64) int64 {
	if f.where == nil {
		return off
	}
	return f.where(off)
}

func (f *faulty) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (f *faulty) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size, out.Mode = diskSize, 0o600
	return 0
}

func (f *faulty) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int(min(int64(len(p)), max(0, diskSize-off)))
	if f.read != nil {
		if err := f.read(off, n); err != nil {
			return nil, fs.ToErrno(err)
		}
	}
	out := make([]byte, n)
	for i := 0; i < n; i += 512 {
		if at := f.at(off + int64(i)); at >= 0 {
			copy(out[i:min(i+512, n)], f.data[at:])
		}
	}
	return fuse.ReadResultData(out), 0
}

func (f *faulty) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p = bytes.Clone(p)
	if f.write != nil {
		if err := f.write(off, p); err != nil {
			return 0, fs.ToErrno(err)
		}
	}
	for i := 0; i < len(p); i += 512 {
		if at := f.at(off + int64(i)); at >= 0 {
			copy(f.data[at:], p[i:min(i+512, len(p))])
		}
	}
	return uint32(len(p)), 0
}

func (f *faulty) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sync == nil {
		return 0
	}
	return fs.ToErrno(f.sync())
}

// device is a loop device over the file.
func (f *faulty) device(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for loop devices and FUSE")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("no FUSE in this kernel (modprobe fuse): %v", err)
	}
	f.data = bytes.Repeat([]byte{0xa5}, diskSize)
	dir := t.TempDir()
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("device", root.NewPersistentInode(ctx, f, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	})
	if err != nil {
		t.Skipf("cannot mount FUSE here: %v", err)
	}
	// By force, since a mount namespace that began meanwhile has the mount too: the server would wait
	// for its end, which takes minutes if somebody builds a Debian root. udev may have the file open.
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		server.Wait()
	})
	return attach(t, filepath.Join(dir, "device"))
}

func inside(off int64, n int, from, to int64) bool { return off < to && off+int64(n) > from }

// Each fault of a device gets its own error, and no faulty device looks complete.
func TestFaultyDevice(t *testing.T) {
	const bad = 4*mib + 64<<10
	var corrupted atomic.Int64
	corrupt := func(most int64) func(int64, []byte) error {
		return func(off int64, p []byte) error {
			if inside(off, len(p), bad, bad+1) && corrupted.Add(1) <= most {
				p[bad-off] ^= 1
			}
			return nil
		}
	}
	tests := []struct {
		name    string
		faults  faults
		form    string
		wantErr []string // none: the flash succeeds
	}{
		{name: "sound"},
		{
			name: "cannot be written at one place", faults: faults{write: func(off int64, p []byte) error {
				if inside(off, len(p), bad, bad+512) {
					return unix.EIO
				}
				return nil
			}}, wantErr: []string{"write ", "input/output error", "the device is faulty"},
		},
		{
			name: "cannot be read at one place once it is written", faults: faults{read: func(off int64, n int) error {
				if inside(off, n, bad, bad+512) {
					return unix.EIO
				}
				return nil
			}}, wantErr: []string{"read back: read ", "input/output error", "the device is faulty"},
		},
		{
			name: "fails to keep what it has", faults: faults{sync: func() error { return unix.EIO }},
			wantErr: []string{"input/output error", "the device is faulty"},
		},
		{
			name: "what it is made of is full", faults: faults{write: func(off int64, p []byte) error {
				if inside(off, len(p), 5*mib, 6*mib) {
					return unix.ENOSPC
				}
				return nil
			}}, wantErr: []string{"no space left", "the device is full before its end"},
		},
		{name: "changes a byte once", faults: faults{write: corrupt(1)}},
		{name: "changes a byte once, of an image that is not decoded again", form: "gz", faults: faults{write: corrupt(1)}, wantErr: []string{"read back: the ", "are not what was written"}},
		{name: "changes a byte each time", faults: faults{write: corrupt(1 << 20)}, wantErr: []string{"read back: the ", "are not what was written", "the device is faulty"}},
		{name: "keeps only the first half", faults: faults{where: dropFrom(6 * mib)}, wantErr: []string{"it holds less than it says"}},
		{
			name: "keeps its end and not what is before it", faults: faults{where: func(off int64) int64 {
				if off >= 5*mib && off < 11*mib {
					return -1
				}
				return off
			}}, wantErr: []string{"it holds less than it says", "nothing is kept from there on"},
		},
		{name: "counts in a circle of its half", faults: faults{where: wrapAt(6 * mib)}, wantErr: []string{"it holds less than it says", "is found at"}},
		{name: "counts in a circle", faults: faults{where: wrapAt(5 * mib)}, wantErr: []string{"it holds less than it says", "what was written at"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			corrupted.Store(0)
			behind := &faulty{faults: test.faults}
			device := behind.device(t)
			g := pack(t, content(), test.form)
			c := target(t, device, CopyOptions{Marked: true})
			err := flash(t.Context(), g, c, g.options())
			if len(test.wantErr) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				same(t, "device", behind.content(), onDisk(g.want))
				return
			}
			for _, want := range test.wantErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("flash = %v; want an error with %q", err, want)
				}
			}
			if bytes.Equal(behind.content()[:512], g.want[:512]) {
				t.Error("the device begins as the image does, and is not whole")
			}
		})
	}
}

func dropFrom(end int64) func(int64) int64 {
	return func(off int64) int64 {
		if off >= end {
			return -1
		}
		return off
	}
}

func wrapAt(size int64) func(int64) int64 { return func(off int64) int64 { return off % size } }

// A second flash of a device that counts in a circle finds one half of the image as it
// was written last; it must not be taken in by that.
func TestFaultyDeviceAgain(t *testing.T) {
	behind := &faulty{faults: faults{where: wrapAt(5 * mib)}}
	device := behind.device(t)
	g := pack(t, content(), "raw")
	for i := range 2 {
		c := target(t, device, CopyOptions{Marked: true})
		if err := flash(t.Context(), g, c, g.options()); err == nil || !strings.Contains(err.Error(), "holds less than it says") {
			t.Fatalf("flash %d = %v; want the device found out", i, err)
		}
	}
}

// A device that goes, or turns read-only, in the middle.
func TestDeviceChanges(t *testing.T) {
	for _, test := range []struct {
		name    string
		happens func(t *testing.T, device, file string)
		wantErr string
	}{
		{"removed", func(t *testing.T, device, file string) {
			if err := os.Truncate(file, 0); err != nil {
				t.Error(err)
			}
			if out, err := exec.Command("losetup", "--set-capacity", device).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}, "the device was removed"},
		{"read-only", func(t *testing.T, device, _ string) {
			// The kernel keeps that for the device's next user.
			t.Cleanup(func() { exec.Command("blockdev", "--setrw", device).Run() })
			if out, err := exec.Command("blockdev", "--setro", device).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}, "write-protect switch"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := soiled(t, t.TempDir(), diskSize)
			device := attach(t, file)
			g := pack(t, content(), "raw")
			// Before the first write, so that no other one is under way.
			c := target(t, device, CopyOptions{Marked: true, Save: func([]byte, int64) error {
				test.happens(t, device, file)
				return nil
			}})
			err := flash(t.Context(), g, c, g.options())
			if err == nil || !strings.Contains(err.Error(), test.wantErr) || errors.Is(err, ErrRemoved) != (test.name == "removed") {
				t.Errorf("flash = %v; want an error with %q", err, test.wantErr)
			}
		})
	}
}

// Two bad spots, with good ones after them, do not mean a smaller device.
func TestTwoBadSpots(t *testing.T) {
	behind := &faulty{faults: faults{write: func(off int64, p []byte) error {
		for _, bad := range []int64{4*mib + 64<<10, 5*mib + 64<<10} {
			if inside(off, len(p), bad, bad+1) {
				p[bad-off] ^= 1
			}
		}
		return nil
	}}}
	device := behind.device(t)
	g := pack(t, content(), "raw")
	c := target(t, device, CopyOptions{Marked: true})
	err := flash(t.Context(), g, c, g.options())
	if err == nil || !strings.Contains(err.Error(), "the device is faulty") || strings.Contains(err.Error(), "holds less than it says") {
		t.Errorf("flash = %v; want a faulty device, and not a smaller one", err)
	}
}

// What counts in a circle of a size that no power of two makes, with one part of the
// image in another's place: writing the one once more is the end of the other.
func TestMendingDestroysNothing(t *testing.T) {
	behind := &faulty{faults: faults{where: wrapAt(5 * mib)}}
	device := behind.device(t)
	p := make([]byte, imageSize)
	random := rand.NewChaCha8([32]byte{3})
	random.Read(p[2*mib : 3*mib])
	random.Read(p[7*mib : 8*mib])
	g := pack(t, p, "raw")
	c := target(t, device, CopyOptions{Marked: true})
	o := g.options()
	o.Holes = Keep // so that no zeroing tells
	if err := flash(t.Context(), g, c, o); err == nil || !strings.Contains(err.Error(), "holds less than it says") {
		t.Errorf("flash = %v; want the device found out", err)
	}
}

// The zeroed end is where a part of the image was written since.
func TestEndIsElsewhere(t *testing.T) {
	behind := &faulty{faults: faults{where: wrapAt(8 * mib)}}
	device := behind.device(t)
	p := make([]byte, imageSize)
	rand.NewChaCha8([32]byte{4}).Read(p[3*mib : 4*mib]) // as is the device's last MiB
	g := pack(t, p, "raw")
	c := target(t, device, CopyOptions{Marked: true})
	o := g.options()
	o.Holes = Keep
	if err := flash(t.Context(), g, c, o); err == nil || !strings.Contains(err.Error(), "holds less than it says") {
		t.Errorf("flash = %v; want the device found out", err)
	}
}

// Where the ends cannot be zeroed, nothing else is written: the old partition table
// would still make a disk of it.
func TestNothingWrittenWithoutMarks(t *testing.T) {
	var written atomic.Int64
	behind := &faulty{faults: faults{write: func(off int64, p []byte) error {
		if off < markBytes {
			return unix.EIO
		}
		written.Add(int64(len(p)))
		return nil
	}}}
	device := behind.device(t)
	g := pack(t, content(), "raw")
	c := target(t, device, CopyOptions{Marked: true})
	if err := flash(t.Context(), g, c, g.options()); err == nil || !strings.Contains(err.Error(), "erase the partition table") {
		t.Errorf("flash = %v; want it to fail at the marks", err)
	}
	if n := written.Load(); n > 0 {
		t.Errorf("%d bytes were written behind marks that failed", n)
	}
}

// A device that is pulled out at any moment has its old partition table and all else that it had, or no
// table: the block with the table is erased and flushed before any other write.
func TestTableIsErasedFirst(t *testing.T) {
	var erased, flushed, early atomic.Bool
	behind := &faulty{faults: faults{
		write: func(off int64, p []byte) error {
			if off == 0 && len(p) <= 4096 && bytes.Count(p, []byte{0}) == len(p) {
				erased.Store(true)
			} else if !flushed.Load() {
				early.Store(true)
			}
			return nil
		},
		sync: func() error { flushed.Store(erased.Load()); return nil },
	}}
	device := behind.device(t)
	g := pack(t, content(), "raw")
	if err := flash(t.Context(), g, target(t, device, CopyOptions{Marked: true}), g.options()); err != nil {
		t.Fatal(err)
	}
	if !flushed.Load() || early.Load() {
		t.Errorf("the table was erased and flushed: %v; something else was written before that: %v", flushed.Load(), early.Load())
	}
}

// A device that keeps its end, but not what lies before it behind the image, holds less than it says.
func TestProbeRoom(t *testing.T) {
	for _, test := range []struct {
		name   string
		from   int64
		faults faults
		lies   bool
	}{
		{"sound", 8 * mib, faults{}, false},
		{"drops a part", 8 * mib, faults{where: func(off int64) int64 {
			if off >= 9*mib && off < 10*mib {
				return -1
			}
			return off
		}}, true},
		{"counts in a circle", 8 * mib, faults{where: func(off int64) int64 { return min(off, 8*mib) + max(0, off-8*mib)%(64<<10) }}, true},
		{"no room", diskSize - mib, faults{where: dropFrom(mib)}, false},
		{"not asked for", 0, faults{where: dropFrom(9 * mib)}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			behind := &faulty{faults: test.faults}
			c := target(t, behind.device(t), CopyOptions{Marked: true, ProbeFrom: test.from})
			if err := c.probeRoom(); errors.Is(err, ErrSmaller) != test.lies || err != nil && !test.lies {
				t.Errorf("probeRoom = %v; want ErrSmaller: %v", err, test.lies)
			}
		})
	}
}

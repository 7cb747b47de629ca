package soak

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// disk is a file that a virtual machine takes for a card, or for another disk. Its cache loses what
// was not flushed when the power is cut or the disk is pulled out.
type disk struct {
	fs.Inode
	name   string
	fault  string        // one of the keys of faults; "": none
	room   int64         // bytes; later ones are dropped. 0: all are kept
	bad    int64         // offset of a bad byte, for wornOut and unwritable
	pullAt int64         // pulled gets the disk once that much is written; 0: never
	pulled chan<- *disk  // of the one that pulls it
	pause  time.Duration // before each 64 KiB that are read or written

	mu      sync.Mutex
	now     []byte             // as the machine reads it
	kept    []byte             // as it is after a cut
	dirty   map[int64]struct{} // offsets of the blocks in which the two may differ
	written int64
}

const blockBytes = 4096

// lose drops a random part of the blocks that were written since the last flush. It returns what the
// disk has then.
func (d *disk) lose(random *rand.Rand) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for off := range d.dirty {
		if random.IntN(2) == 0 {
			copy(d.kept[off:off+blockBytes], d.now[off:])
		}
	}
	clear(d.dirty)
	copy(d.now, d.kept)
	return d.kept
}

// covers reports whether n bytes at off include the bad byte of a disk with a fault.
func (d *disk) covers(fault string, off, n int64) bool {
	return d.fault == fault && off <= d.bad && d.bad < off+n
}

// wait waits as long as n bytes take on a slow disk. Of an SD card, QEMU reads and writes 512 bytes at
// a time, and its whole machine stands still until then.
func (d *disk) wait(n int) { time.Sleep(d.pause * time.Duration(n) / (64 << 10)) }

// Read waits, and returns what the disk has at off, with another bad byte if it is worn out.
func (d *disk) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	d.wait(len(p))
	d.mu.Lock()
	defer d.mu.Unlock()
	p = p[:copy(p, d.now[min(off, int64(len(d.now))):])]
	if d.covers(wornOut, off, int64(len(p))) {
		p[d.bad-off] ^= 1
	}
	return fuse.ReadResultData(p), 0
}

// Write waits, and writes p as far as the disk's fault allows that. It sends the disk to pulled once.
func (d *disk) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	d.wait(len(p))
	d.mu.Lock()
	defer d.mu.Unlock()
	n := int64(len(p))
	if d.covers(unwritable, off, n) {
		return 0, syscall.EIO
	}
	fits := n
	if d.room > 0 {
		fits = max(0, min(n, d.room-off))
	}
	copy(d.now[off:], p[:fits])
	for block := off - off%blockBytes; block < off+fits; block += blockBytes {
		d.dirty[block] = struct{}{}
	}
	if d.written += n; d.pullAt > 0 && d.written >= d.pullAt {
		d.pullAt, d.pause = 0, 50*time.Millisecond // so that it does not end before the pull
		d.pulled <- d
	}
	return uint32(n), 0
}

// Fsync makes the disk keep all that was written.
func (d *disk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	for off := range d.dirty {
		copy(d.kept[off:off+blockBytes], d.now[off:])
	}
	clear(d.dirty)
	return 0
}

// Getattr returns the disk's size.
func (d *disk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size, out.Mode = uint64(len(d.now)), syscall.S_IFREG|0o600
	return 0
}

// Open has the kernel cache nothing of the disk.
func (d *disk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// newDisk returns a disk with a content, and zeros up to its size, as a file of that name in root.
func newDisk(root *fs.Inode, name string, size int64, content []byte) *disk {
	d := &disk{name: name, now: make([]byte, size), dirty: map[int64]struct{}{}}
	copy(d.now, content)
	d.kept = bytes.Clone(d.now)
	root.AddChild(name, root.NewPersistentInode(context.Background(), d, fs.StableAttr{Mode: fuse.S_IFREG}), true)
	return d
}

// A simulated disk keeps what was flushed, loses only blocks that were not, and has its fault.
func TestSimulatedDisk(t *testing.T) {
	const size = 64 * blockBytes
	old, now := bytes.Repeat([]byte{1}, size), bytes.Repeat([]byte{2}, size)
	random, pulled := rand.New(rand.NewPCG(1, 0)), make(chan *disk, 1)
	faulty := func(change func(*disk)) *disk {
		d := &disk{now: bytes.Clone(old), kept: bytes.Clone(old), dirty: map[int64]struct{}{}, pulled: pulled}
		change(d)
		return d
	}
	read := func(d *disk) []byte {
		p := bytes.Repeat([]byte{9}, size)
		r, _ := d.Read(t.Context(), nil, p, 0)
		p, _ = r.Bytes(nil)
		return p
	}
	d := faulty(func(*disk) {})
	d.Write(t.Context(), nil, now[:size/2], 0)
	d.Fsync(t.Context(), nil, 0)
	d.Write(t.Context(), nil, now[size/2:], size/2)
	if !bytes.Equal(read(d), now) {
		t.Error("before the cut, the disk does not have what was written")
	}
	left := d.lose(random)
	lost := bytes.Count(left, old[:blockBytes])
	if !bytes.Equal(left[:size/2], now[:size/2]) || lost == 0 || lost == 32 || !bytes.Equal(read(d), left) {
		t.Errorf("after the cut, %d of 32 blocks that were not flushed are lost", lost)
	}
	d = faulty(func(d *disk) { d.room = size / 4 })
	if d.Write(t.Context(), nil, now, 0); bytes.Count(read(d), []byte{2}) != size/4 {
		t.Error("a disk that lies about its size keeps more, or less, than it has room for")
	}
	d = faulty(func(d *disk) { d.fault, d.bad = wornOut, 77 })
	if d.Write(t.Context(), nil, now, 0); read(d)[77] != 3 || bytes.Count(read(d), []byte{2}) != size-1 {
		t.Error("a worn disk has other bytes than one")
	}
	d = faulty(func(d *disk) { d.fault, d.bad = unwritable, 77 })
	if _, errno := d.Write(t.Context(), nil, now[:78], 0); errno != syscall.EIO {
		t.Errorf("a disk that fails to write = %v", errno)
	}
	d = faulty(func(d *disk) { d.pullAt = 2 * blockBytes })
	if d.Write(t.Context(), nil, now[:blockBytes], 0); len(pulled) != 0 {
		t.Error("the disk is pulled out too early")
	}
	if d.Write(t.Context(), nil, now[:blockBytes], 0); len(pulled) != 1 || <-pulled != d {
		t.Error("the disk is not pulled out")
	}
}

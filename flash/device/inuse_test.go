package device

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"slipway/flash/flashtest"
)

// mute is a file whose server says nothing about it any more, until the test has ended.
type mute struct {
	fs.Inode
	quiet atomic.Bool
	ended chan struct{}
}

func (m *mute) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, 0, 0
}

func (m *mute) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if m.quiet.Load() {
		<-m.ended
	}
	out.Mode = 0o600
	return 0
}

// Somewhere on a machine a program has a file open on a server that is gone. No flash,
// and no list of devices, may wait for it.
func TestOpenersAskNoServer(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs FUSE (modprobe fuse), as root: %v", err)
	}
	dir, file := t.TempDir(), &mute{ended: make(chan struct{})}
	root := &fs.Inode{}
	server, err := fs.Mount(dir, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("open", root.NewPersistentInode(ctx, file, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	})
	if err != nil {
		t.Skipf("cannot mount FUSE here: %v", err)
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH)
		server.Wait()
	})
	f, err := os.Open(filepath.Join(dir, "open"))
	if err != nil {
		t.Fatal(err)
	}
	flashtest.Sleep(t, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f} })
	f.Close()
	file.quiet.Store(true)
	t.Cleanup(func() { close(file.ended) })
	found := make(chan []opener, 1)
	go func() { found <- here.findOpeners([]string{"259:1048575"}, false) }()
	select {
	case programs := <-found:
		if len(programs) > 0 {
			t.Errorf("programs of a device that is not there = %v", programs)
		}
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for a file server that does not answer")
	}
}

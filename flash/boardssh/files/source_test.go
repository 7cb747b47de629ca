package files

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// One source goes to several places at once, and is not hashed again.
func TestSend(t *testing.T) {
	c, data, dir := boardtest.Connect(t), sshtest.RandomBytes(1<<20), t.TempDir()
	s, err := OpenSource(t.Context(), sshtest.WriteFile(t, data))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Size() != int64(len(data)) {
		t.Errorf("Size() = %d; want %d", s.Size(), len(data))
	}
	var all errgroup.Group
	for _, name := range []string{"a/f", "b/f", "c/f"} {
		all.Go(func() error {
			_, err := Send(t.Context(), c, s, filepath.Join(dir, name), Rights{Mode: 0o640})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a/f", "b/f", "c/f"} {
		sshtest.CheckFile(t, filepath.Join(dir, name), data, 0o640)
	}
}

// A file comes with its owner, or not at all.
func TestSendOwner(t *testing.T) {
	c, data, dir := boardtest.Connect(t), sshtest.RandomBytes(1000), t.TempDir()
	s, err := OpenSource(t.Context(), sshtest.WriteFile(t, data))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for owner, want := range map[string]string{"-x": "no owner", "a b": "no owner", "nobody-of-that-name": "give it to nobody-of-that-name"} {
		_, err := Send(t.Context(), c, s, dir+"/refused", Rights{Mode: 0o640, Owner: owner})
		sshtest.CheckError(t, err, want)
	}
	sshtest.CheckEntries(t, dir)
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 1, 2
	}
	if _, err := Send(t.Context(), c, s, dir+"/file", Rights{Mode: 0o604, Owner: fmt.Sprintf("%d:%d", uid, gid)}); err != nil {
		t.Fatal(err)
	}
	sshtest.CheckFile(t, dir+"/file", data, 0o604)
	info, err := os.Stat(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	if is := info.Sys().(*syscall.Stat_t); int(is.Uid) != uid || int(is.Gid) != gid {
		t.Errorf("it is %d:%d's; want %d:%d", is.Uid, is.Gid, uid, gid)
	}
}

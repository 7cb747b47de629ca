package files

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// Files go to folders that only root may enter.
func TestFilesBySudo(t *testing.T) {
	a := boardtest.AddressOf(sshtest.StartSudo(t, sshtest.SudoRights["NOPASSWD"]))
	a.User, a.Become = sshtest.SudoUser, "root"
	c := boardtest.Dial(t, a)
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 10, 3 << 20, severalBytes + 1} {
		data := sshtest.RandomBytes(size)
		name := filepath.Join(closed, "f")
		if _, err := Put(t.Context(), c, sshtest.WriteFile(t, data), name, 0o640); err != nil {
			t.Fatal(err)
		}
		sshtest.CheckFile(t, name, data, 0o640)
		r, err := Open(t.Context(), c, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read back %d bytes, %v; want %d", len(got), err, size)
		}
		r.Close()
	}
	if c.NoSFTP.Load() {
		t.Error("files go through the shell; want the sftp-server by sudo")
	}
	local := t.TempDir()
	sshtest.WriteTree(t, local, map[string]string{"a": "a"})
	if changes, err := PutDir(t.Context(), c, local, filepath.Join(closed, "folder"), DirOptions{Owner: "0:0"}); err != nil || len(changes) != 1 {
		t.Errorf("PutDir = %v, %v; want a change", changes, err)
	}
}

func TestPutToDropbear(t *testing.T) {
	c := boardtest.Dial(t, boardtest.AddressOfBoard(sshtest.StartDropbear(t, "ed25519")))
	data := bytes.Repeat([]byte("dropbear"), 50_000)
	name := filepath.Join(t.TempDir(), "file")
	if _, err := PutBytes(t.Context(), c, data, name, 0o644); err != nil {
		t.Fatal(err)
	}
	sshtest.CheckFile(t, name, data, 0o644)
}

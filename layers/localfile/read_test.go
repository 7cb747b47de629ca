package localfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	large := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(large, []byte(strings.Repeat("x", 2048)), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := Read(large, 2048); err != nil || len(data) != 2048 {
		t.Errorf("a file of the limit: %d bytes, %v", len(data), err)
	}
	for name, want := range map[string]string{
		large:             large + ": larger than 1 KiB; is it the right file?",
		"/proc/cmdline/x": "open /proc/cmdline/x: ",
		"/":               "read /: is a directory",
	} {
		if data, err := Read(name, 1024); data != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("ReadFile(%s) = %d bytes, %v; want %q", name, len(data), err, want)
		}
	}
	endless := strings.NewReader(strings.Repeat("x", 1<<20))
	if _, err := ReadAll(endless, "a", 1024); err == nil || endless.Len() != 1<<20-1025 {
		t.Errorf("ReadAll: %v; it left %d bytes unread", err, endless.Len())
	}
}

func TestReadWhatIsNoFile(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fifo, "/dev/zero", "/dev/full"} {
		done := make(chan error, 1)
		go func() {
			_, err := Read(name, 1024)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || err.Error() != name+" is no regular file" {
				t.Errorf("ReadFile(%s) = %v; want that it is no regular file", name, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("ReadFile(%s) waits", name)
		}
	}
	if data, err := Read(os.DevNull, 1024); len(data) > 0 || err != nil {
		t.Errorf("ReadFile(%s) = %q, %v", os.DevNull, data, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fmt.Fprint(w, "ab")
	w.Close()
	if data, err := Read(fmt.Sprintf("/dev/fd/%d", r.Fd()), 1024); string(data) != "ab" || err != nil {
		t.Errorf("ReadFile of a pipe without a name = %q, %v", data, err)
	}
}

// A folder that cannot be written is named.
func TestUnwritable(t *testing.T) {
	stick := t.TempDir()
	err := &fs.PathError{Op: "open", Path: stick + "/x", Err: unix.EROFS}
	if got := Unwritable(stick, err); !errors.Is(got, unix.EROFS) || !strings.HasSuffix(got.Error(), "\nnext: ls -ld "+stick) {
		t.Errorf("Unwritable = %v; want the folder", got)
	}
	if got := Unwritable(filepath.Join(stick, "no/such"), fmt.Errorf("write: %w", unix.ENOSPC)); got == nil || got.Error() != "write: no space left on device\nnext: df -h "+stick {
		t.Errorf("Unwritable = %v; want the free space of %s", got, stick)
	}
	if got := Unwritable(stick, io.EOF); got != io.EOF {
		t.Errorf("Unwritable = %v; want %v", got, io.EOF)
	}
}

func TestTail(t *testing.T) {
	dir := t.TempDir()
	name, fifo := filepath.Join(dir, "log"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(name, []byte("0123456789"), 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		most int64
		want string
	}{{name, 4, "6789"}, {name, 10, "0123456789"}, {name, 100, "0123456789"}, {fifo, 4, ""}, {dir, 4, ""}, {"", 4, ""}} {
		if got := string(Tail(tt.name, tt.most)); got != tt.want {
			t.Errorf("Tail(%q, %d) = %q; want %q", tt.name, tt.most, got, tt.want)
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	there, none := filepath.Join(dir, "there"), filepath.Join(dir, "none")
	if err := os.WriteFile(there, nil, 0o600); err != nil || !Exists(there) || !IsRegular(there) || IsRegular(dir) || !Exists(dir) || Exists(none) || IsRegular(none) {
		t.Fatalf("%v: Exists or IsRegular is wrong", err)
	}
	if err := Remove(none, there, none); err != nil || Exists(there) {
		t.Errorf("Remove = %v, and %s exists: %t; want it gone", err, there, Exists(there))
	}
	if err := os.Mkdir(there, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(there, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(there); err == nil {
		t.Error("Remove of a folder with a file = nil; want an error")
	}
}

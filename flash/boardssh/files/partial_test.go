package files

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
)

// missingFrom is how much of data is in no whole block of the file.
func missingFrom(t *testing.T, name string, data []byte) (n int64) {
	t.Helper()
	there, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(data); at += blockBytes {
		block := data[at:min(at+blockBytes, len(data))]
		if at > len(there) || !bytes.HasPrefix(there[at:], block) {
			n += int64(len(block))
		}
	}
	return n
}

func partsIn(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, ".*.part"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// What arrived before a cut is not sent again.
func TestAnUploadGoesOn(t *testing.T) { eachTransport(t, testAnUploadGoesOn) }

func testAnUploadGoesOn(t *testing.T, s *sshd.Server) {
	for _, tt := range []struct{ size, cut int64 }{
		{12<<20 + 1, 4 << 20},
		{12<<20 - 1, 9 << 20},
		{severalBytes + 1, 7 << 20}, // over two streams, or four where the machine is slow
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.cut, tt.size), func(t *testing.T) {
			data := sshtest.RandomBytes(int(tt.size))
			local := sshtest.WriteFile(t, data)
			dir := t.TempDir()
			remote := filepath.Join(dir, "it's $1")
			broken, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), tt.cut, false)
			_, err := Put(t.Context(), boardtest.Dial(t, broken), local, remote, 0o640)
			sshtest.CheckError(t, err, "resumes after")
			parts := partsIn(t, dir)
			if len(parts) != 1 {
				t.Fatalf("after the cut there is %q; want one part", parts)
			}
			// Of another version, and of another file.
			other := hiddenName(remote, strings.Repeat("0", idDigits))
			foreign := hiddenName(remote+".x", strings.Repeat("0", idDigits))
			for _, name := range []string{other, foreign} {
				if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			missing := missingFrom(t, parts[0], data)
			whole, r := boardtest.StartRelay(t, boardtest.AddressOf(s), math.MaxInt64, false)
			if _, err := Put(t.Context(), boardtest.Dial(t, whole), local, remote, 0o640); err != nil {
				t.Fatal(err)
			}
			// SSH adds 4 bytes in a hundred at the most, and its logins. It may be less: the
			// server of the connection that was cut still writes what it has.
			if sent := r.Sent.Load(); sent > missing+missing/25+1<<17 {
				t.Errorf("%d bytes were sent for %d that were missing", sent, missing)
			}
			if err := os.Remove(foreign); err != nil {
				t.Errorf("the part of another file: %v", err)
			}
			sshtest.CheckFile(t, remote, data, 0o640)
		})
	}
}

// Several streams leave holes: neither the size nor one block says anything about another block.
func TestHolesAreNotTaken(t *testing.T) {
	c := boardtest.Connect(t)
	data := sshtest.RandomBytes(2*blockBytes + 5)
	local := sshtest.WriteFile(t, data)
	for name, spoil := range map[string]func([]byte) []byte{
		"zeros":         func(b []byte) []byte { clear(b[7 : blockBytes-9]); return b },
		"one bit":       func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"shorter":       func(b []byte) []byte { return b[:blockBytes+1] },
		"longer":        func(b []byte) []byte { return append(b, 0) },
		"whole already": func(b []byte) []byte { return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			remote := filepath.Join(dir, "f")
			part := partOf(t, local, remote)
			if err := os.WriteFile(part, spoil(bytes.Clone(data)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Put(t.Context(), c, local, remote, 0o600); err != nil {
				t.Fatal(err)
			}
			sshtest.CheckFile(t, remote, data, 0o600)
		})
	}
}

func partOf(t *testing.T, local, remote string) string {
	t.Helper()
	f, src, err := openSource(local)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id, err := src.sourceID(remote)
	if err != nil {
		t.Fatal(err)
	}
	return hiddenName(remote, id)
}

// Where others may write, something may wait under a name that can be guessed.
func TestPartsThatAreNotOurs(t *testing.T) {
	c := boardtest.Connect(t)
	data := sshtest.RandomBytes(resumeBytes)
	local := sshtest.WriteFile(t, data)
	for name, plant := range map[string]func(part, aside string) error{
		"symlink":   func(part, aside string) error { return os.Symlink(aside, part) },
		"hard link": func(part, aside string) error { return os.Link(aside, part) },
		"folder":    func(part, _ string) error { return os.Mkdir(part, 0o755) },
		"pipe":      func(part, _ string) error { return syscall.Mkfifo(part, 0o600) },
		"other owner": func(part, _ string) error {
			if os.Geteuid() != 0 {
				return nil // others' files cannot be made
			}
			if err := os.WriteFile(part, data, 0o666); err != nil {
				return err
			}
			return os.Chown(part, 12345, 12345)
		},
		"folder of all": func(part, _ string) error {
			if err := os.WriteFile(part, data, 0o600); err != nil {
				return err
			}
			return os.Chmod(filepath.Dir(part), 0o777)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, aside := t.TempDir(), sshtest.WriteFile(t, []byte("untouched"))
			remote := filepath.Join(dir, "f")
			if err := plant(partOf(t, local, remote), aside); err != nil {
				t.Fatal(err)
			}
			if _, err := Put(t.Context(), c, local, remote, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(remote); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes arrived, %v", len(got), err)
			}
			sshtest.CheckFile(t, aside, []byte("untouched"), 0o644)
		})
	}
}

// Without the programs that would look, everything is sent, and nothing is promised.
func TestPutWhereNothingCanBeFound(t *testing.T) {
	c := boardtest.Connect(t, fakeDigests(t, map[string]string{"id": "echo x", "ls": "echo y"}))
	remote := filepath.Join(t.TempDir(), "f")
	data := sshtest.RandomBytes(resumeBytes)
	if _, err := PutBytes(t.Context(), c, data, remote, 0o600); err != nil {
		t.Fatal(err)
	}
	sshtest.CheckFile(t, remote, data, 0o600)
}

func TestParseSeen(t *testing.T) {
	const folder = "drwxr-xr-x 2 0 0 4096 Nov 22 13:00 .\n"
	tests := []struct {
		name, in             string
		folderOurs, fileOurs bool
		wantErr              bool
	}{
		{name: "ours", in: "0\n" + folder + "-rw------- 1 0 0 77 Nov 22 13:00 ./f\n", folderOurs: true, fileOurs: true},
		{name: "busybox", in: "1000\ndrwx------    2 1000     1000            60 Jan  1 00:00 .\n-rw-------    1 1000     1000            12 Jan  1 00:00 ./f\n", folderOurs: true, fileOurs: true},
		{name: "no file", in: "0\n" + folder, folderOurs: true},
		{name: "of root", in: "5\n" + folder, folderOurs: true},
		{name: "sticky", in: "5\ndrwxrwxrwt 2 0 0 4096 Nov 22 13:00 .\n", folderOurs: true},
		{name: "another's", in: "5\ndrwxr-xr-x 2 6 0 4096 Nov 22 13:00 .\n"},
		{name: "group", in: "0\ndrwxrwxr-x 2 0 0 4096 Nov 22 13:00 .\n"},
		{name: "all", in: "0\ndrwxr-xrwx+ 2 0 0 4096 Nov 22 13:00 .\n"},
		{name: "two links", in: "0\n" + folder + "-rw------- 2 0 0 77 Nov 22 13:00 ./f\n", folderOurs: true},
		{name: "a symlink", in: "0\n" + folder + "lrwxrwxrwx 1 0 0 77 Nov 22 13:00 ./f -> /etc/passwd\n", folderOurs: true},
		{name: "a device", in: "0\n" + folder + "crw------- 1 0 0 1, 3 Nov 22 13:00 ./f\n", wantErr: true},
		{name: "no number", in: "root\n" + folder, wantErr: true},
		{name: "too large", in: "0\ndrwxr-xr-x 2 99999999999999999999 0 4096 Nov 22 13:00 .\n", wantErr: true},
		{name: "nothing", in: "", wantErr: true},
		{name: "cut", in: "0\n", wantErr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parseSeen([]byte(tt.in))
			if (err != nil) != tt.wantErr {
				t.Fatalf("parseSeen(%q) = %+v, %v", tt.in, s, err)
			}
			if err == nil && (s.folderIsOurs() != tt.folderOurs || s.there && s.fileIsOurs() != tt.fileOurs) {
				t.Errorf("parseSeen(%q): folder is ours: %v, file is ours: %v", tt.in, s.folderIsOurs(), s.there && s.fileIsOurs())
			}
		})
	}
}

func FuzzParseSeen(f *testing.F) {
	f.Add("0\ndrwxr-xr-x 2 0 0 4096 Nov 22 13:00 .\n-rw------- 1 0 0 77 Nov 22 13:00 ./f\n")
	f.Add("1000\ndrwx------    2 1000     1000            60 Jan  1 00:00 .\n")
	f.Add("0\n\n\n\n")
	f.Fuzz(func(t *testing.T, out string) {
		s, err := parseSeen([]byte(out))
		if err != nil {
			return
		}
		if s.uid < 0 && s.folderIsOurs() && s.folder.uid != 0 || s.there && (s.file.size < 0 || s.file.links < 0) {
			t.Errorf("parseSeen(%q) = %+v", out, s)
		}
	})
}

// Whatever the board says, no piece lies outside of the file, and those that are not
// missing have the digests of ours.
func FuzzAbsent(f *testing.F) {
	digests := []string{strings.Repeat("0", 64), strings.Repeat("1", 64), strings.Repeat("2", 64)}
	f.Add(strings.Join(digests, " -\n")+" -\n", uint16(25))
	f.Add(digests[0]+"\n"+digests[0]+"\nx\n"+digests[2], uint16(30))
	f.Add("", uint16(1))
	f.Fuzz(func(t *testing.T, out string, size uint16) {
		const block = 10
		there := parseDigests([]byte(out))
		missing := missingPieces(there, digests, block, int64(size))
		at := int64(0)
		for _, p := range append(missing, piece{int64(size), 0}) {
			for ; at < p.offset; at++ {
				if i := at / block; int(i) >= len(there) || int(i) >= len(digests) || there[i] != digests[i] {
					t.Fatalf("byte %d is not missing, but block %d is another: %v", at, i, missing)
				}
			}
			at += p.length
		}
		if at != int64(size) {
			t.Errorf("the pieces %v end at %d; want %d", missing, at, size)
		}
	})
}

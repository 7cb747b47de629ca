package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pkg/sftp"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
	"slipway/layers/run"
)

// eachTransport runs a test over SFTP, and over the shell of a board that has no
// sftp-server and busybox alone.
func eachTransport(t *testing.T, test func(*testing.T, *sshd.Server)) {
	t.Run("sftp", func(t *testing.T) { test(t, sshtest.StartSSHD(t)) })
	t.Run("shell", func(t *testing.T) { test(t, sshtest.StartSSHD(t, shellAlone(t)...)) })
}

func shellAlone(t *testing.T) []string {
	return []string{"Subsystem sftp /nonexistent", sshtest.OnlyBusybox(t)}
}

func TestPut(t *testing.T) { eachTransport(t, testPut) }

func testPut(t *testing.T, s *sshd.Server) {
	c := boardtest.Dial(t, boardtest.AddressOf(s))
	for _, size := range []int{0, 1, packetBytes, packetBytes + 1, 5 << 20} {
		data := sshtest.RandomBytes(size)
		remote := filepath.Join(t.TempDir(), "new folder", "$(sub)", "-it's")
		sent, err := Put(t.Context(), c, sshtest.WriteFile(t, data), remote, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		if sent.Path != remote || sent.SizeBytes != int64(size) || sent.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("Put of %d bytes = %+v", size, sent)
		}
		sshtest.CheckFile(t, remote, data, 0o640)
	}
}

// requestsOf sends a file to a board, and returns the kinds of requests that its sftp-server got.
func requestsOf(t *testing.T, local, remote string, mode fs.FileMode) string {
	t.Helper()
	// tee writes to its standard output first: the file must have a request before the server
	// can answer it.
	s, dir := eachStart(t, `*sftp-server) tee /dev/fd/3 3>&1 >asked | /usr/lib/openssh/sftp-server; exit ;;`)
	if _, err := Put(t.Context(), boardtest.Dial(t, boardtest.AddressOf(s)), local, remote, mode); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for len(data) > 4 {
		size := binary.BigEndian.Uint32(data)
		kind := map[byte]string{1: "init", 3: "open", 4: "close", 6: "write", 10: "fsetstat", 17: "stat"}[data[4]]
		if data[4] == 200 {
			name := data[4+5:]
			name = name[4 : 4+binary.BigEndian.Uint32(name)]
			kind, _, _ = strings.Cut(string(name), "@")
		}
		kinds = append(kinds, kind)
		data = data[4+size:]
	}
	return strings.Join(kinds, " ")
}

// Each request is a round trip.
func TestPutRequestsNothingTwice(t *testing.T) {
	got := requestsOf(t, sshtest.WriteFile(t, sshtest.RandomBytes(1000)), filepath.Join(t.TempDir(), "f"), 0o640)
	if want := "init stat statvfs open fsetstat write fsync fsetstat close posix-rename"; got != want {
		t.Errorf("asked for %q; want %q", got, want)
	}
}

// A program that was made anew on the board is brought to the disk there.
func TestRenewedProgramIsSynced(t *testing.T) {
	data := sshtest.RandomBytes(resumeBytes)
	local, remote := sshtest.WriteFile(t, data), filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(partOf(t, local, remote), data, 0o600); err != nil {
		t.Fatal(err)
	}
	got := requestsOf(t, local, remote, 0o755)
	if want := "close open fsync fsetstat close posix-rename"; !strings.HasSuffix(got, want) {
		t.Errorf("asked for %q; want %q at the end", got, want)
	}
}

// A board that gives one session at a time gets files by SFTP all the same.
func TestPutOverTheOnlySession(t *testing.T) {
	s := sshtest.StartSSHD(t, "MaxSessions 1", externalSFTP)
	for range 5 {
		c := boardtest.Dial(t, boardtest.AddressOf(s))
		remote := filepath.Join(t.TempDir(), "f")
		data := sshtest.RandomBytes(resumeBytes)
		if _, err := PutBytes(t.Context(), c, data, remote, 0o640); err != nil {
			t.Fatal(err)
		}
		if sshtest.CheckFile(t, remote, data, 0o640); describeTransport(c) != "" {
			t.Fatal("the file went" + describeTransport(c))
		}
	}
}

func TestPutReplaces(t *testing.T) { eachTransport(t, testPutReplaces) }

func testPutReplaces(t *testing.T, s *sshd.Server) {
	c := boardtest.Dial(t, boardtest.AddressOf(s))
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	aside := filepath.Join(t.TempDir(), "aside")
	if err := os.WriteFile(aside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(aside, name); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"first, longer", "second"} {
		if _, err := PutBytes(t.Context(), c, []byte(data), name, 0o755); err != nil {
			t.Fatal(err)
		}
		sshtest.CheckFile(t, name, []byte(data), 0o755)
	}
	sshtest.CheckFile(t, aside, []byte("untouched"), 0o600)
}

func TestPutFailsCleanly(t *testing.T) { eachTransport(t, testPutFailsCleanly) }

func testPutFailsCleanly(t *testing.T, s *sshd.Server) {
	c := boardtest.Dial(t, boardtest.AddressOf(s))
	dir := t.TempDir()
	file := sshtest.WriteFile(t, []byte("x"))
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, remote := range []string{"", dir + "/", filepath.Join(dir, "folder"), filepath.Join(file, "below"), "a\x00b"} {
		if sent, err := Put(t.Context(), c, file, remote, 0o644); err == nil {
			t.Errorf("Put to %q = %+v; want an error", remote, sent)
		}
	}
	for _, local := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := Put(t.Context(), c, local, filepath.Join(dir, "f"), 0o644); err == nil {
			t.Errorf("Put of %q: no error", local)
		}
	}
	src := source{name: "artifact", data: strings.NewReader("x"), size: 1, sha256: strings.Repeat("0", 64)}
	if _, err := putSource(t.Context(), c, src, filepath.Join(dir, "f"), 0o644, noProgress{}); err == nil {
		t.Error("put of a file whose digest is not the expected one: no error")
	}
	src = source{name: "shrunk", data: strings.NewReader("x"), size: 2}
	if _, err := putSource(t.Context(), c, src, filepath.Join(dir, "f"), 0o644, noProgress{}); !errors.Is(err, errShrunk) {
		t.Errorf("put of a file that became shorter = %v; want %v", err, errShrunk)
	}
	sshtest.CheckEntries(t, dir, "folder")
}

func TestPutOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small tmpfs")
	}
	c := boardtest.Connect(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	for _, size := range []int{2 << 20, resumeBytes} {
		_, err := PutBytes(t.Context(), c, make([]byte, size), filepath.Join(dir, "f"), 0o644)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d MiB are needed", size>>20)) {
			t.Errorf("PutBytes = %v; want it to tell how much is needed", err)
		}
		sshtest.CheckEntries(t, dir)
	}
}

// Where SFTP says no more than "failure", the error has the board's own words.
func TestPutOnABadFileSystem(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small tmpfs")
	}
	c := boardtest.Connect(t)
	for name, tt := range map[string]struct {
		options string
		flags   uintptr
		want    string
		full    bool
	}{
		"no inodes": {"nr_inodes=2,size=8m", 0, "No space left on device (no inode is free)", true}, // for the folder, and one file
		"no bytes":  {"size=1m", 0, "No space left on device", true},
		"read-only": {"size=1m", syscall.MS_RDONLY, "Read-only file system", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, tt.options); err != nil {
				t.Skipf("mount a tmpfs: %v", err)
			}
			t.Cleanup(func() { syscall.Unmount(dir, 0) })
			sshtest.WriteTree(t, dir, map[string]string{"there": strings.Repeat("x", 1<<20)})
			if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|tt.flags, ""); err != nil {
				t.Fatal(err)
			}
			local := t.TempDir()
			sshtest.WriteTree(t, local, map[string]string{"a": "1"})
			// What fills up while a file is on its way is not found out before.
			errs := []error{explainFailure(t.Context(), c, dir+"/new", fmt.Errorf("write: %w", &sftp.StatusError{Code: 4}))}
			if name != "no bytes" {
				_, ofFile := PutBytes(t.Context(), c, []byte("1"), filepath.Join(dir, "f"), 0o644)
				_, ofDir := PutDir(t.Context(), c, local, dir, DirOptions{})
				errs = append(errs, ofFile, ofDir)
			}
			for _, err := range errs {
				if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "SSH_FX") || errors.Is(err, ErrFull) != tt.full || strings.Contains(err.Error(), "; df -i "+dir) != tt.full {
					t.Errorf("error %v; want %q, and ErrFull: %v", err, tt.want, tt.full)
				}
			}
			sshtest.CheckEntries(t, dir, "there")
		})
	}
}

func TestPutOverAConnectionThatIsCut(t *testing.T) {
	eachTransport(t, testPutOverAConnectionThatIsCut)
}

func testPutOverAConnectionThatIsCut(t *testing.T, s *sshd.Server) {
	data := sshtest.RandomBytes(5 << 20)
	for _, cut := range []int64{5_000, 500_000, 3 << 20, 5 << 20} {
		a, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), cut, false)
		c := boardtest.Dial(t, a)
		name := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(name, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := PutBytes(t.Context(), c, data, name, 0o644)
		if err == nil {
			t.Errorf("cut after %d bytes: no error", cut)
		}
		if got, _ := os.ReadFile(name); string(got) != "old" {
			t.Errorf("cut after %d bytes: the file has %d bytes; want the old one", cut, len(got))
		}
	}
}

func TestPutEndsWithItsContext(t *testing.T) { eachTransport(t, testPutEndsWithItsContext) }

func testPutEndsWithItsContext(t *testing.T, s *sshd.Server) {
	c := boardtest.Dial(t, boardtest.AddressOf(s))
	dir := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	src := source{name: "big", data: bytes.NewReader(make([]byte, 64<<20)), size: 64 << 20}
	name := filepath.Join(dir, "f")
	var err error
	sshtest.CheckTakes(t, 8*time.Second, func() {
		_, err = putSource(ctx, c, src, name, 0o644, telling(func(int64) { cancel(stop) }))
	})
	id, _ := src.sourceID(name)
	kept := hiddenName(name, id)
	if !errors.Is(err, stop) || !strings.Contains(err.Error(), "resumes after") || !strings.Contains(err.Error(), kept) {
		t.Errorf("put = %v; want %v, and where the next one goes on", err, stop)
	}
	sshtest.CheckEntries(t, dir, filepath.Base(kept))
}

// telling is an uploadProgress that is a function.
type telling func(int64)

func (f telling) Add(n int64) { f(n) }
func (telling) Detail(string) {}

// fakeDigests makes a server whose commands find only these programs.
func fakeDigests(t *testing.T, programs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "sh")); err != nil {
		t.Fatal(err)
	}
	for name, script := range programs {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return "SetEnv PATH=" + dir
}

func TestPutProvesTheDigest(t *testing.T) {
	wrong := "echo " + strings.Repeat("0", 64) + " x"
	tests := []struct {
		name     string
		programs map[string]string
		wantErr  string
	}{
		{"no program for it", nil, ""},
		{"programs fail", map[string]string{"openssl": "exit 1", "sha256sum": "exit 1"}, ""},
		{"programs talk nonsense", map[string]string{"openssl": "printf '\\033]0;x\\007'"}, ""},
		{"another digest", map[string]string{"openssl": wrong}, "arrived on the board has the digest"},
		{"another digest from the second program", map[string]string{"sha256sum": wrong}, "arrived on the board has the digest"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := boardtest.Connect(t, fakeDigests(t, tt.programs))
			dir := t.TempDir()
			data := sshtest.RandomBytes(1 << 20)
			_, err := PutBytes(t.Context(), c, data, filepath.Join(dir, "f"), 0o600)
			if tt.wantErr == "" {
				if err != nil {
					t.Fatal(err)
				}
				sshtest.CheckFile(t, filepath.Join(dir, "f"), data, 0o600)
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("PutBytes = %v; want %q", err, tt.wantErr)
			}
			sshtest.CheckEntries(t, dir)
		})
	}
}

func TestPutWithNeitherSFTPServerNorPrograms(t *testing.T) {
	c := boardtest.Connect(t, "Subsystem sftp /nonexistent", fakeDigests(t, nil))
	_, err := PutBytes(t.Context(), c, []byte("x"), filepath.Join(t.TempDir(), "f"), 0o644)
	sshtest.CheckError(t, err, "sftp")
	sshtest.CheckError(t, err, "its shell has no dd")
}

// What goes through the shell is said.
func TestPutThroughTheShellIsSaid(t *testing.T) {
	c := boardtest.Connect(t, shellAlone(t)...)
	r := &progresstest.Recorder{}
	ctx := progress.With(t.Context(), progress.New(r))
	if _, err := Put(ctx, c, sshtest.WriteFile(t, sshtest.RandomBytes(1000)), filepath.Join(t.TempDir(), "f"), 0o644); err != nil {
		t.Fatal(err)
	}
	if e := r.Last("put local"); !strings.Contains(e.Detail, "through the shell") {
		t.Errorf("last event %+v; want it to say how", e)
	}
}

func TestPutReportsProgress(t *testing.T) {
	c := boardtest.Connect(t)
	r := &progresstest.Recorder{}
	ctx := progress.With(t.Context(), progress.New(r))
	if _, err := Put(ctx, c, sshtest.WriteFile(t, sshtest.RandomBytes(1<<20)), filepath.Join(t.TempDir(), "f"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := r.Last("put local")
	if e.State != progress.Done || e.Count != 1<<20 || e.Total != 1<<20 || e.Unit != progress.Bytes {
		t.Errorf("last event %+v", e)
	}
}

// A program that only looks, and never ends, ends an upload at the limit of silence: nothing is
// sent instead.
func TestPutEndsAtASilentProgram(t *testing.T) {
	t.Setenv(boardssh.SilenceVariable, "2s")
	local := sshtest.WriteFile(t, sshtest.RandomBytes(resumeBytes))
	for program, sftp := range map[string]string{"ls": externalSFTP, "df": "Subsystem sftp /bin/false"} {
		dir, to := t.TempDir(), t.TempDir()
		sshtest.PlaceFile(t, filepath.Join(dir, program), "#!/bin/sh\nexec sleep 1000\n", 0o755)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := Put(ctx, boardtest.Connect(t, sftp, "SetEnv PATH="+dir+":/usr/bin:/bin"), local, filepath.Join(to, "file"), 0o644)
		if !errors.Is(err, boardssh.ErrSilent) || !strings.Contains(err.Error(), "run sh on ") || !strings.Contains(err.Error(), "\nnext: ssh ") {
			t.Errorf("%s hangs: %v; want %v", program, err, boardssh.ErrSilent)
		}
		if left, err := os.ReadDir(to); err != nil || len(left) != 0 {
			t.Errorf("%s hangs: left %v, %v", program, left, err)
		}
	}
}

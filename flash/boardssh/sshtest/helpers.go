// Package sshtest helps tests of board connections: real and broken SSH servers, checks of files.
package sshtest

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"slipway/flash/boardssh/sshd"
	"slipway/layers/run"
)

// StartSSHD starts a real sshd, prepared by NewSSHD, until the end of the test.
func StartSSHD(t *testing.T, settings ...string) *sshd.Server {
	t.Helper()
	s := NewSSHD(t, settings...)
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// NewSSHD prepares a real sshd without starting it. settings are lines of its sshd_config. It skips
// the test if sshd is missing.
func NewSSHD(t *testing.T, settings ...string) *sshd.Server {
	t.Helper()
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	s, err := sshd.New(t.TempDir(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NewKey writes a new private key to a file. text is the public key's authorized_keys line.
func NewKey(t *testing.T) (file string, key ssh.PublicKey, text string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	key, err := sshd.WriteKey(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, key, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// CheckTakes fails the test if work takes over 20 times the limit, as a busy machine may be slow.
func CheckTakes(t *testing.T, limit time.Duration, work func()) {
	t.Helper()
	began := time.Now()
	work()
	if took := time.Since(began); took > 20*limit { // on a machine that does much else
		t.Errorf("took %s; want at most %s", took, limit)
	}
}

// RandomBytes returns n bytes that do not compress, always the same.
func RandomBytes(n int) []byte {
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	return data
}

// WriteFile writes data to a file in a new folder, and returns its name.
func WriteFile(t *testing.T, data []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "local")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// CheckFile fails the test if the file differs in content or mode, or its folder has other files.
func CheckFile(t *testing.T, name string, want []byte, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v; want %d bytes as sent", name, len(got), err, len(want))
	}
	if info, err := os.Lstat(name); err != nil || info.Mode() != mode {
		t.Errorf("%s: %v, %v; want mode %v", name, info, err, mode)
	}
	CheckEntries(t, filepath.Dir(name), filepath.Base(name))
}

// CheckEntries waits up to a minute until dir holds just these sorted names, or fails the test.
func CheckEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	var names []string
	// The board removes the rest of a failed upload, which may take a moment.
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		names = nil
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if strings.Join(names, " ") == strings.Join(want, " ") {
			return
		}
	}
	t.Errorf("%s holds %q; want %q", dir, names, want)
}

// ReadTree returns, by "/NAME" below dir, the mode, a file's size and start, and a link's target.
func ReadTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d %.20q", len(data), data)
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			what += " " + to
		}
		found[strings.TrimPrefix(name, dir)] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// WriteTree makes files from a map of name and content: "" is a folder, "->x" a symlink to x.
func WriteTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		name = filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		to, link := strings.CutPrefix(content, "->")
		switch {
		case err != nil:
		case link:
			err = os.Symlink(to, name)
		case content == "":
			err = os.MkdirAll(name, 0o755)
		default:
			err = os.WriteFile(name, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// OnlyBusybox returns an sshd setting for a PATH of busybox's applets. It skips without busybox.
func OnlyBusybox(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is missing: install the Debian package busybox-static")
	}
	dir := t.TempDir()
	out, err := exec.Command(program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return "SetEnv PATH=" + dir
}

// BeforeProgram returns an sshd setting that runs a shell line before each start of program name.
func BeforeProgram(t *testing.T, name, line string) (setting string) {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+"\nexec "+program+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return "SetEnv PATH=" + dir + ":" + os.Getenv("PATH")
}

// CheckError fails the test if err does not contain want. An empty want means no error.
func CheckError(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("error %v; want %q", err, want)
	}
}

// LinkPrograms makes a folder with links to these programs. It skips the test if one is missing.
func LinkPrograms(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		there, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("%v: install the Debian packages socat and netcat-openbsd", err)
		}
		if err := os.Symlink(there, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// PlaceFile writes a file with a mode, and makes its folder.
func PlaceFile(t *testing.T, name, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run.WriteProgram(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// Text is a writer whose content a test can wait for.
type Text struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

// NewText returns an empty Text.
func NewText() *Text { return &Text{more: make(chan struct{}, 1)} }

// Write appends p to the text, and wakes Await.
func (w *Text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *Text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// Await waits until the text contains want, or ctx ends.
func (w *Text) Await(ctx context.Context, want string) {
	for !strings.Contains(w.String(), want) {
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
	}
}

// AliasKnownHosts writes a known_hosts file that has the key of file, which is for 127.0.0.1 and
// port, under the name the-board, so that it applies to any port.
func AliasKnownHosts(t *testing.T, file string, port int) string {
	t.Helper()
	pinned, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	aliased := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(aliased, append([]byte("the-board"), pinned[len("[127.0.0.1]:"+strconv.Itoa(port)):]...), 0o600); err != nil {
		t.Fatal(err)
	}
	return aliased
}

// LongEnough is how long a test waits for an event that must come.
const LongEnough = 5 * time.Minute

// CheckTrees fails the test if two folders differ in what ReadTree returns.
func CheckTrees(t *testing.T, local, remote string) {
	t.Helper()
	if diff := cmp.Diff(ReadTree(t, local), ReadTree(t, remote)); diff != "" {
		t.Errorf("here (-) and on the board (+):\n%s", diff)
	}
}

// StartRelay starts a relay to a port of this machine. It passes limit bytes of each connection to
// the port, then cuts the connection, or keeps it open and silent if stall is set.
func StartRelay(t *testing.T, port int, limit int64, stall bool) *sshd.Relay {
	t.Helper()
	r, err := sshd.NewRelay()
	if err != nil {
		t.Fatal(err)
	}
	r.Limit, r.Stall = limit, stall
	r.SetTarget(port)
	t.Cleanup(func() { r.End() })
	return r
}

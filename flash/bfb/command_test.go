package bfb

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/term"

	"slipway/layers/plaintext/terminaltest"
)

// typed is a standard input that is no terminal.
func typed(t *testing.T, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stdin")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestMakeConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bf.cfg")
	const password = "Pass'word 12"
	if err := MakeConfig(t.Context(), typed(t, password+"\r\nmore\n"), io.Discard, path, "ubuntu"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.TrimSuffix(strings.TrimPrefix(string(text), "ubuntu_PASSWORD='"), "'\n")
	_, rest, ok := strings.Cut(hash, "$6$")
	salt, _, _ := strings.Cut(rest, "$")
	if !ok || sha512crypt([]byte(password), []byte(salt)) != hash {
		t.Errorf("bf.cfg is %q; want the hash of the password", text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("bf.cfg has mode %v, %v; want 0600", info.Mode(), err)
	}
	err = MakeConfig(t.Context(), typed(t, password+"\n"), io.Discard, path, "ubuntu")
	if err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("a second time gives %v", err)
	}
}

// TestMakeConfigEnds breaks the question off at a terminal and at a pipe, as a Ctrl-C does.
func TestMakeConfigEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	_, tty := terminaltest.Open(t)
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]*os.File{"a terminal": tty, "a pipe": r} {
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("Ctrl-C")
		path := filepath.Join(t.TempDir(), "bf.cfg")
		ended := make(chan error, 1)
		go func() { ended <- MakeConfig(ctx, in, io.Discard, path, "ubuntu") }()
		cancel(stop)
		select {
		case err := <-ended:
			if !errors.Is(err, stop) {
				t.Errorf("%s: error %v; want %v", name, err, stop)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it still waits for an answer", name)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: a file was written", name)
		}
	}
	if after, err := term.GetState(int(tty.Fd())); err != nil || *after != *before {
		t.Errorf("the terminal is left as %v, %v; want %v", after, err, before)
	}
}

func TestMakeConfigRefuses(t *testing.T) {
	for want, in := range map[string]string{
		"too short":            "short\n",
		"of 0 characters":      "",
		"no more than 512":     strings.Repeat("x", 600),
		"cannot hold a NUL":    "abcdefgh\x00\n",
		"is no name of a user": "long enough\n",
	} {
		user := "ubuntu"
		if strings.Contains(want, "user") {
			user = "some;one"
		}
		path := filepath.Join(t.TempDir(), "bf.cfg")
		err := MakeConfig(t.Context(), typed(t, in), io.Discard, path, user)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("password %.20q of %s gives %v; want %q", in, user, err, want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: a file was written", want)
		}
	}
}

// TestConfigInBash reads the file as the DPU's installer does.
func TestConfigInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is missing (Debian package bash)")
	}
	hash := HashPassword([]byte("some password"))
	text, err := Config("ubuntu", hash)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), bash, "-c", string(text)+`printf %s "$ubuntu_PASSWORD"`).Output()
	if err != nil || string(out) != hash {
		t.Errorf("bash reads %q, %v; want %q", out, err, hash)
	}
}

func TestFiles(t *testing.T) {
	f := newFolder(t)
	var out strings.Builder
	wish := Wish{Parts: "bl2=" + f.random("bl2", 77) + ",boot-args-v1==quiet", For: -1, Strip: -1}
	if err := MakeFile(t.Context(), &out, f.path("a.bfb"), wish); err != nil {
		t.Fatal(err)
	}
	if err := MakeFile(t.Context(), &out, f.path("b.bfb"), Wish{Bases: []string{f.path("a.bfb")}, For: 0, Strip: -1, Careless: true}); err != nil {
		t.Fatal(err)
	}
	if err := CheckFile(t.Context(), &out, f.path("b.bfb")); err != nil {
		t.Error(err)
	}
	if err := ExtractFile(t.Context(), &out, f.path("a.bfb"), f.path("x-"), []string{"boot-args-v1"}); err != nil {
		t.Error(err)
	}
	if got := string(f.read("x-boot-args-v1")); got != "quiet" {
		t.Errorf("boot-args are %q; want quiet", got)
	}
	for _, want := range []string{
		"a.bfb: 2 images, 136 bytes\n        77 Trusted Boot Firmware BL2 bin (version 0)\n         5 Arguments for boot image (version 1)\n",
		"b.bfb: 1 images in 104 bytes, all as their headers say\n", f.path("x-boot-args-v1") + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q; want %q", out.String(), want)
		}
	}
	var listed Stream
	out.Reset()
	if err := Show(&out, f.path("a.bfb"), false, true); err != nil || json.Unmarshal([]byte(out.String()), &listed) != nil || len(listed.Images) != 2 {
		t.Errorf("listed as JSON: %v\n%s", err, out.String())
	}
	if err := MakeFile(t.Context(), &out, f.path("c.bfb"), Wish{Parts: wish.Parts, For: -1, Strip: 1}); err == nil || !strings.Contains(err.Error(), "--for") {
		t.Errorf("strip without a version of the hardware gives %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	f := newFolder(t)
	for path, want := range map[string]string{
		f.path("gone"):            "no such file",
		f.dir:                     "is not a regular file",
		f.random("some.img", 100): "some.img: header at byte 0",
	} {
		if err := Show(io.Discard, path, false, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Show(%s) gives %v; want %q", path, err, want)
		}
	}
}

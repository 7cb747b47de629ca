package reach

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/images"
)

// Connect accepts a host key that a flash recorded by the serial, or whose fingerprint the
// user gave, and no other.
func TestConnect(t *testing.T) {
	t.Setenv("CI", "1") // no questions
	key, known := suitetest.StartBoard(t)
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	opt, spec := images.Options{Dir: t.TempDir()}, images.Spec{Board: "toy"}
	connect := func(pins ...string) error {
		c, err := Connect(t.Context(), opt, spec, "board", pins...)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	for _, variable := range []string{boardssh.SilenceVariable, boardssh.BecomeVariable} {
		t.Setenv(variable, "5")
		if err := connect(); err == nil || errors.Is(err, report.ErrUnreachable) || !strings.Contains(err.Error(), variable) {
			t.Errorf("Connect with %s=5 = %v; want it refused, and not as %v", variable, err, report.ErrUnreachable)
		}
		t.Setenv(variable, "")
	}
	fingerprint := ssh.FingerprintSHA256(public)
	if err := connect(); !errors.Is(err, boardssh.ErrHostKey) || !strings.Contains(err.Error(), "--pin="+fingerprint) {
		t.Errorf("Connect to an unknown board = %v; want %v and its fingerprint", err, boardssh.ErrHostKey)
	}
	state, err := opt.StateDir(spec)
	if err := errors.Join(err, os.MkdirAll(state, 0o700)); err != nil {
		t.Fatal(err)
	}
	recorded := images.KnownHostsPath(state)
	folder := opt.BoardDir(spec)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, planted := range []string{
		"* ", "serial-* ", "serial-? ", "serial-7,other ", "other,serial-7 ", "SERIAL-7 ", "@cert-authority serial-7 ", "@cert-authority * ", "127.0.0.1 ", "toy ", "board ",
		"!other,* ", knownhosts.HashHostname("serial-7") + " ",
	} {
		if err := os.WriteFile(recorded, []byte(planted+key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := connect(); !errors.Is(err, boardssh.ErrHostKey) {
			t.Errorf("Connect with the line %q = %v; want %v", planted, err, boardssh.ErrHostKey)
		}
	}
	if err := errors.Join(os.Remove(recorded), os.WriteFile(filepath.Join(folder, "known_hosts"), []byte("serial-7 "+key+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := connect(); !errors.Is(err, boardssh.ErrHostKey) {
		t.Errorf("Connect with a key beside the artifact = %v; want %v", err, boardssh.ErrHostKey)
	}
	if err := os.Remove(filepath.Join(folder, "known_hosts")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recorded, []byte("* x\nserial-7 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connect(); err != nil {
		t.Errorf("Connect to a board whose key was recorded = %v", err)
	}
	if err := os.Remove(recorded); err != nil {
		t.Fatal(err)
	}
	if err := connect("SHA256:" + strings.Repeat("A", 43)); !errors.Is(err, boardssh.ErrHostKey) {
		t.Errorf("Connect with the pin of another board = %v; want %v", err, boardssh.ErrHostKey)
	}
	if err := connect(fingerprint); err != nil {
		t.Errorf("Connect with the board's pin = %v", err)
	}
	if err := connect(); err != nil {
		t.Errorf("Connect after it was pinned = %v", err)
	}
	if text, err := os.ReadFile(known); err != nil || string(text) != "serial-7 "+key+"\n" {
		t.Errorf("known_hosts holds %q, %v", text, err)
	}
	spec.SSH.HostCA = "ssh-ed25519 !"
	if err := connect(); err == nil || !strings.Contains(err.Error(), "no public key") {
		t.Errorf("Connect with a broken hostCA = %v", err)
	}
}

func TestExplainLogin(t *testing.T) {
	refused := fmt.Errorf("%w by root@h", boardssh.ErrLogin)
	if err := explainLogin(images.Spec{Board: "b"}, refused); !errors.Is(err, boardssh.ErrLogin) || !strings.Contains(err.Error(), "SLIPWAY_ROOT_LOGIN=1") {
		t.Errorf("a board of bitbake's = %v; want how it is opened", err)
	}
	for name, spec := range map[string]images.Spec{"a board of Debian's": {Debian: &images.Debian{}}, "another error": {}} {
		err := refused
		if spec.Debian == nil {
			err = io.EOF
		}
		if got := explainLogin(spec, err); got != err {
			t.Errorf("%s: %v; want %v as it was", name, got, err)
		}
	}
}

// A board that is on may still be silent, or have no shell. Its other errors are of the work.
func TestMarkUnreachable(t *testing.T) {
	conn := boardtest.Connect(t)
	for err, want := range map[error]bool{
		fmt.Errorf("work: %w", boardssh.ErrSilent): true, fmt.Errorf("work: %w", boardssh.ErrShell): true, io.EOF: false, nil: false,
	} {
		if got := MarkUnreachable(t.Context(), conn, err); errors.Is(got, report.ErrUnreachable) != want || !errors.Is(got, err) {
			t.Errorf("MarkUnreachable(%v) = %v; want %v: %v", err, got, report.ErrUnreachable, want)
		}
	}
	conn.Close()
	if got := MarkUnreachable(t.Context(), conn, io.EOF); !errors.Is(got, report.ErrUnreachable) {
		t.Errorf("MarkUnreachable on a lost connection = %v; want %v", got, report.ErrUnreachable)
	}
}

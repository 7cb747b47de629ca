package ci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"slipway/ci/report"
	"slipway/flash/target"
	"slipway/flash/target/sshd"
	"slipway/images"
	"slipway/layers/run"
)

// startBoard runs a real server that the user's configuration calls "board", with the
// alias serial-7 for its host key. ssh finds the home folder by itself, so it is called
// by another name with -F. The key is returned as known_hosts files have it.
func startBoard(t *testing.T, settings ...string) (key, known string) {
	t.Helper()
	program, err := exec.LookPath("ssh")
	if _, missing := os.Stat(sshd.Program); err != nil || missing != nil {
		t.Skip("ssh or sshd is missing: install the Debian packages openssh-client and openssh-server")
	}
	s, err := sshd.New(t.TempDir(), settings...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	dir := t.TempDir()
	known = filepath.Join(dir, "known_hosts")
	config := fmt.Sprintf("Host board\n\tHostName 127.0.0.1\n\tPort %d\n\tHostKeyAlias serial-7\n\tIdentityFile %s\n\tUserKnownHostsFile %s\n\tGlobalKnownHostsFile none\n", s.Port, s.Identity, known)
	for name, text := range map[string]string{"config": config, "ssh": "#!/bin/sh\nexec " + program + " -F " + filepath.Join(dir, "config") + " \"$@\"\n"} {
		if err := run.WriteProgram(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("HOME", dir)
	t.Setenv("SSH_AUTH_SOCK", "")
	line, err := os.ReadFile(s.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ = strings.Cut(strings.TrimSpace(string(line)), " ")
	return key, known
}

// What proves a board: a key that its flash recorded by the serial, or a fingerprint
// that a person gave. Nothing else does.
func TestReach(t *testing.T) {
	t.Setenv("CI", "1") // no questions
	key, known := startBoard(t)
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	opt, spec := images.Options{Dir: t.TempDir()}, images.Spec{Board: "toy"}
	reach := func(pins ...string) error {
		c, err := Reach(t.Context(), opt, spec, "board", pins...)
		if err == nil {
			err = c.Close()
		}
		return err
	}
	for _, variable := range []string{target.SilenceVariable, target.BecomeVariable} {
		t.Setenv(variable, "5")
		if err := reach(); err == nil || errors.Is(err, report.ErrUnreachable) || !strings.Contains(err.Error(), variable) {
			t.Errorf("Reach with %s=5 = %v; want it refused, and not as %v", variable, err, report.ErrUnreachable)
		}
		t.Setenv(variable, "")
	}
	fingerprint := ssh.FingerprintSHA256(public)
	if err := reach(); !errors.Is(err, target.ErrHostKey) || !strings.Contains(err.Error(), "-pin="+fingerprint) {
		t.Errorf("Reach of an unknown board = %v; want %v and its fingerprint", err, target.ErrHostKey)
	}
	recorded := images.KnownHostsPath(opt.BoardDir(spec))
	if err := os.Mkdir(opt.BoardDir(spec), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(recorded, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reach(); err != nil {
		t.Errorf("Reach of a board whose key was recorded = %v", err)
	}
	if err := os.Remove(recorded); err != nil {
		t.Fatal(err)
	}
	if err := reach("SHA256:" + strings.Repeat("A", 43)); !errors.Is(err, target.ErrHostKey) {
		t.Errorf("Reach with the pin of another board = %v; want %v", err, target.ErrHostKey)
	}
	if err := reach(fingerprint); err != nil {
		t.Errorf("Reach with the board's pin = %v", err)
	}
	if err := reach(); err != nil {
		t.Errorf("Reach after it was pinned = %v", err)
	}
	if text, err := os.ReadFile(known); err != nil || string(text) != "serial-7 "+key+"\n" {
		t.Errorf("known_hosts holds %q, %v", text, err)
	}
	spec.SSH.HostCA = "ssh-ed25519 !"
	if err := reach(); err == nil || !strings.Contains(err.Error(), "no public key") {
		t.Errorf("Reach with a broken hostCA = %v", err)
	}
}

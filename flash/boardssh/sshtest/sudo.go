package sshtest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh/sshd"
)

// SudoUser is the login user of StartSudo's server. Only sudo asks for the password.
const (
	SudoUser     = "field"
	SudoPassword = "it's $(secret)"
)

// SudoRights are lines of sudoers, by a name for tests.
var SudoRights = map[string]string{"NOPASSWD": SudoUser + " ALL=(ALL) NOPASSWD: ALL", "password": SudoUser + " ALL=(ALL) ALL"}

// StartSudo starts a server whose login user is not root and has a real sudo. rights are lines of
// sudoers. The user exists only in a mount namespace, so this machine's /etc stays as it is. It
// skips the test without root or the programs.
func StartSudo(t *testing.T, rights string, settings ...string) *sshd.Server {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a user of its own for sudo needs root: run this as root")
	}
	for name, pack := range map[string]string{sshd.Program: "openssh-server", "sudo": "sudo", "openssl": "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing: install the Debian package %s", name, pack)
		}
	}
	etc, err := os.MkdirTemp("", "slipway-etc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(etc) })
	s, err := sshd.New(t.TempDir(), append(settings, "AuthorizedKeysFile "+etc+"/authorized")...)
	if err == nil {
		err = fillEtc(etc, rights, filepath.Join(filepath.Dir(s.Identity), "authorized"))
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	if err := startInside(s, done, etc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// modes are the modes of the files that the server has instead of this machine's.
var modes = map[string]fs.FileMode{"passwd": 0o644, "group": 0o644, "shadow": 0o600, "sudoers": 0o440}

// fillEtc writes into etc this machine's passwd, group and shadow with SudoUser added, and sudoers
// with only root's line and rights. It copies the key file authorized to the name "authorized".
func fillEtc(etc, rights, authorized string) error {
	hash, err := exec.Command("openssl", "passwd", "-6", SudoPassword).Output()
	if err != nil {
		return err
	}
	keys, err := os.ReadFile(authorized)
	if err != nil {
		return err
	}
	lines := map[string]string{
		"passwd": SudoUser + ":x:4242:4242::/:/bin/sh\n", "group": SudoUser + ":x:4242:\n", "shadow": SudoUser + ":" + strings.TrimSpace(string(hash)) + ":19000:0:99999:7:::\n",
		"sudoers": "root ALL=(ALL:ALL) ALL\n" + rights + "\n",
	}
	err = errors.Join(os.Chmod(etc, 0o755), os.WriteFile(filepath.Join(etc, "authorized"), keys, 0o644))
	for name, line := range lines {
		before, failed := os.ReadFile("/etc/" + name)
		if name == "sudoers" {
			before = nil
		}
		file := filepath.Join(etc, name)
		err = errors.Join(err, failed, os.WriteFile(file, append(before, line...), 0o600), os.Chmod(file, modes[name]))
	}
	return err
}

// startInside starts a server in a new mount namespace, with the files of etc mounted over /etc.
// The server's starting thread stays in it until done is closed. The server ends with that thread.
func startInside(s *sshd.Server, done <-chan struct{}, etc string) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		err := errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		for name := range modes {
			err = errors.Join(err, unix.Mount(filepath.Join(etc, name), "/etc/"+name, "", unix.MS_BIND, ""))
		}
		if err == nil {
			err = s.Start(context.Background())
		}
		started <- err
		<-done
	}()
	return <-started
}

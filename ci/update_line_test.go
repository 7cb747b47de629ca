package ci

import (
	"io"
	"os"
	"testing"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/boardssh/sshtest"
	"slipway/layers/plaintext/terminaltest"
)

// connectBy connects to a board through a line that can be cut.
func connectBy(t *testing.T, settings ...string) (*boardssh.Conn, *sshd.Relay) {
	t.Helper()
	return connectThrough(t, boardtest.AddressOf(sshtest.StartSSHD(t, settings...)))
}

// connectBySudo is connectBy as a user who is not root, with a line of sshtest.SudoRights.
func connectBySudo(t *testing.T, rights string, settings ...string) (*boardssh.Conn, *sshd.Relay) {
	t.Helper()
	a := boardtest.AddressOf(sshtest.StartSudo(t, rights, settings...))
	a.User, a.Become = sshtest.SudoUser, "root"
	typePassword(t)
	return connectThrough(t, a)
}

func connectThrough(t *testing.T, a boardssh.Address) (*boardssh.Conn, *sshd.Relay) {
	t.Helper()
	r, err := sshd.NewRelay()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	r.SetTarget(a.Port)
	a = boardtest.WithAlias(t, a)
	a.Port = r.Port()
	return boardtest.Dial(t, a), r
}

// typePassword has a person at this process's terminal, who answers its first question
// with the password.
func typePassword(t *testing.T) {
	t.Helper()
	head, tail := terminaltest.Open(t)
	in, out := os.Stdin, os.Stderr
	t.Cleanup(func() { os.Stdin, os.Stderr = in, out })
	t.Setenv("CI", "")
	os.Stdin, os.Stderr = tail, tail
	if _, err := io.WriteString(head, sshtest.SudoPassword+"\n"); err != nil {
		t.Fatal(err)
	}
}

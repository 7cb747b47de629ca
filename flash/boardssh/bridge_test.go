package boardssh

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"slipway/flash/boardssh/sshtest"
)

// withoutSockets has a server forward ports alone.
const withoutSockets = "AllowStreamLocalForwarding no"

// echoing is a socket that says again what it is told.
func echoing(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "echo") // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		os.RemoveAll(dir)
	})
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return filepath.Join(dir, "s")
}

// Sockets are reached where the SSH server forwards none: by a program on the board.
func TestBridge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(*testing.T) *Conn{
		"socat": func(t *testing.T) *Conn {
			return connect(t, withoutSockets, "SetEnv PATH="+sshtest.LinkPrograms(t, "sh", "socat"))
		},
		"nc": func(t *testing.T) *Conn {
			return connect(t, withoutSockets, "SetEnv PATH="+sshtest.LinkPrograms(t, "sh", "nc"))
		},
		"dropbear": func(t *testing.T) *Conn {
			sshtest.LinkPrograms(t, "socat")
			return dialBoard(t, dropbear(t, "ed25519"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := c(t).DialContext(t.Context(), "unix", echoing(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			want := sshtest.RandomBytes(1 << 20)
			go conn.Write(want)
			got := make([]byte, len(want))
			if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("it came back as something else, %v", err)
			}
		})
	}
}

func TestBridgeRefused(t *testing.T) {
	t.Parallel()
	closed := echoing(t)
	if err := os.Chmod(filepath.Dir(closed), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, socket string
		programs     []string
		want         string
	}{
		{"no program", closed, []string{"sh"}, "install socat on the board"},
		{"no socket", closed + "-none", []string{"sh", "socat"}, closed + "-none"},
		{"a path with a meaning", closed + ",fork", []string{"sh", "socat"}, closed + ",fork"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := connect(t, withoutSockets, "SetEnv PATH="+sshtest.LinkPrograms(t, tt.programs...)).DialContext(t.Context(), "unix", tt.socket)
			if err == nil {
				conn.Close()
			}
			sshtest.CheckError(t, err, tt.want)
		})
	}
	t.Run("a path with a meaning, by sudo", func(t *testing.T) {
		c := &Conn{login: &login{sudo: &sudo{user: "root"}}}
		_, err := c.dialUnix(t.Context(), nil, closed+",fork")
		sshtest.CheckError(t, err, "would interpret")
	})
	t.Run("a shell that talks", func(t *testing.T) {
		talk := filepath.Join(t.TempDir(), "talk")
		sshtest.PlaceFile(t, talk, "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' x\n", 0o755)
		_, err := connect(t, withoutSockets, "ForceCommand "+talk).DialContext(t.Context(), "unix", closed)
		sshtest.CheckError(t, err, "talks by itself: xxx")
	})
	t.Run("a program that fails", func(t *testing.T) {
		dir := sshtest.LinkPrograms(t, "sh")
		sshtest.PlaceFile(t, filepath.Join(dir, "socat"), "#!/bin/sh\nprintf 'no \\033[31mentry\\n' >&2; exit 1\n", 0o755)
		conn, err := connect(t, withoutSockets, "SetEnv PATH="+dir).DialContext(t.Context(), "unix", closed)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
		sshtest.CheckError(t, err, `no \x1b[31mentry`)
	})
}

package boardssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh/sshtest"
)

func TestRunPassesArgumentsAsTheyAre(t *testing.T) {
	c := connect(t)
	args := []string{
		"", " ", "a b", "'", "''", `"`, `\`, `\'`, "$HOME", "$(id)", "`id`", "*", "~", "a=b", "#x", "!x", ";", "&", "|", "<", "a\nb",
		"\t", "-n", "--", "\x01\x1b[31m\x7f", "é", "\xff\xfe", strings.Repeat("x", 50_000),
	}
	r, err := c.Run(t.Context(), append([]string{"printf", `%s\0`}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join(args, "\x00") + "\x00"
	if diff := cmp.Diff(want, string(r.Stdout)); diff != "" || r.Status != 0 {
		t.Errorf("status %d, stderr %s, arguments (-want +got):\n%s", r.Status, r.Stderr, diff)
	}
}

func TestRunStatus(t *testing.T) {
	c := connect(t)
	tests := []struct {
		name           string
		argv           []string
		status         int
		stdout, stderr string
	}{
		{"success", []string{"echo", "yes"}, 0, "yes\n", ""},
		{"failure", []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, 3, "out\n", "err\n"},
		{"signal", []string{"sh", "-c", "kill -9 $$"}, 137, "", ""},
		{"keyword of the shell", []string{"if"}, 127, "", "if"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := c.Run(t.Context(), tt.argv...)
			if err != nil {
				t.Fatal(err)
			}
			if r.Status != tt.status || string(r.Stdout) != tt.stdout || !strings.Contains(string(r.Stderr), tt.stderr) {
				t.Errorf("Run(%q) = %d, %q, %q; want %d, %q, %q", tt.argv, r.Status, r.Stdout, r.Stderr, tt.status, tt.stdout, tt.stderr)
			}
		})
	}
}

func TestRunKeepsLittleOfEndlessOutput(t *testing.T) {
	t.Parallel()
	c := connect(t)
	r, err := c.Run(t.Context(), "head", "-c", "5000000", "/dev/zero")
	if err != nil || len(r.Stdout) != MaxOutputBytes || !r.Truncated {
		t.Errorf("%d bytes, truncated %v, %v; want %d, true, no error", len(r.Stdout), r.Truncated, err, MaxOutputBytes)
	}
	for limit := time.Second; ; limit *= 2 { // until the machine is quick enough for all of it
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		r, err = c.Run(ctx, "yes")
		cancel()
		if len(r.Stdout) == MaxOutputBytes || limit > sshtest.LongEnough {
			break
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) || len(r.Stdout) != MaxOutputBytes {
		t.Errorf("yes: %d bytes, %v; want %d and %v", len(r.Stdout), err, MaxOutputBytes, context.DeadlineExceeded)
	}
	if r, err := c.Run(t.Context(), "true"); err != nil || r.Status != 0 {
		t.Errorf("the connection after that: %+v, %v", r, err)
	}
}

func TestRunEndsTheProgramWithItsContext(t *testing.T) {
	t.Parallel()
	c := connect(t)
	for _, trap := range []string{"true", `trap "" TERM`} {
		ctx, cancel := context.WithCancel(t.Context())
		stdout := sshtest.NewText()
		go func() {
			stdout.Await(t.Context(), "\n")
			cancel()
		}()
		_, err := c.Stream(ctx, nil, stdout, sshtest.NewText(), "sh", "-c", trap+"; echo $$; sleep 600; sleep 600")
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Stream = %v; want %v", err, context.Canceled)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(stdout.String()))
		if err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > sshtest.LongEnough {
				t.Fatalf("%s: process %d is still there", trap, pid)
			}
		}
	}
}

// What sshd calls MaxSessions is used up for good by a session that nobody closes.
func TestSessionThatOpensLateIsClosed(t *testing.T) {
	t.Parallel()
	a, r := startRelay(t, addressOf(sshtest.StartSSHD(t, "MaxSessions 2")), 1<<40, false)
	c := dialBoard(t, a)
	r.Late.Store(int64(300 * time.Millisecond))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if _, err := c.Run(ctx, "true"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run = %v; want %v", err, context.DeadlineExceeded)
		}
		cancel()
		time.Sleep(300 * time.Millisecond) // for what is closed in the background
	}
	r.Late.Store(0)
	_, err := c.Run(t.Context(), "true")
	for began := time.Now(); err != nil && time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		_, err = c.Run(t.Context(), "true")
	}
	if err != nil {
		t.Errorf("Run after sessions that opened late: %v", err)
	}
}

func TestStalledLinkDoesNotOutliveTheContext(t *testing.T) {
	t.Parallel()
	a, _ := startRelay(t, addressOf(sshtest.StartSSHD(t)), 8_000, true)
	c := dialBoard(t, a)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	var err error
	sshtest.CheckTakes(t, 8*time.Second, func() {
		_, err = c.Feed(ctx, bytes.NewReader(make([]byte, 5<<20)), "sha256sum")
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Feed = %v; want %v", err, context.DeadlineExceeded)
	}
}

func TestDialContextReachesTheBoardsSockets(t *testing.T) {
	c := connect(t)
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := c.DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := bytes.Repeat([]byte("slipway"), 100)
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("read %q, %v; want what was sent", got, err)
	}
	if _, err := c.DialContext(t.Context(), "unix", path+".none"); err == nil {
		t.Error("a socket that is not there could be opened")
	}
}

func TestPrintable(t *testing.T) {
	tests := []struct{ in, want string }{
		{"plain", "plain"},
		{"  two\nlines\r\n", "two | lines"},
		{"\x1b[2Jgone\x07", `\x1b[2Jgone\x07`},
		{"\u009b31m", `\u009b31m`},
		{"a\u202eb", `a\u202eb`},
		{"bad\xff", `bad\xff`},
		{"größe", "größe"},
	}
	for _, tt := range tests {
		if got := Printable(tt.in); got != tt.want {
			t.Errorf("Printable(%q) = %q; want %q", tt.in, got, tt.want)
		}
	}
	if got := Printable(strings.Repeat("x", 1<<20)); len(got) > maxSaidBytes+10 {
		t.Errorf("Printable of a MiB has %d bytes", len(got))
	}
}

func TestFeed(t *testing.T) {
	c := connect(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	r, err := c.Feed(t.Context(), bytes.NewReader(data), "wc", "-c")
	if got := strings.TrimSpace(string(r.Stdout)); err != nil || got != strconv.Itoa(len(data)) {
		t.Errorf("wc counts %q, %v; want %d", got, err, len(data))
	}
	r, err = c.Feed(t.Context(), bytes.NewReader(data), "sh", "-c", "exec <&-; exit 3")
	if err != nil || r.Status != 3 {
		t.Errorf("a program that reads nothing: status %d, %v; want 3", r.Status, err)
	}
	broken := errors.New("broken")
	if _, err = c.Feed(t.Context(), io.MultiReader(strings.NewReader("some"), failing{broken}), "cat"); !errors.Is(err, broken) {
		t.Errorf("Feed of what breaks off = %v; want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestFeedEndsWithItsContext(t *testing.T) {
	c := connect(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	in, end := io.Pipe()
	defer end.Close()
	go func() {
		end.Write([]byte("the program runs once this is taken")) // the pipe has no buffer
		cancel(stop)
	}()
	if _, err := c.Feed(ctx, in, "cat"); !errors.Is(err, stop) {
		t.Errorf("Feed = %v; want %v", err, stop)
	}
}

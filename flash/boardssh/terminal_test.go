package boardssh

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/flash/boardssh/sshtest"
)

// gone waits until a process has ended.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); syscall.Kill(n, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > sshtest.LongEnough {
			t.Fatalf("process %d is still there", n)
		}
	}
}

// needTerminals skips the test where only root's sshd can make terminals: it gives them to
// the group tty, and an ordinary user may not.
func needTerminals(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[1] == "/dev/pts" {
			last = fields[3]
		}
	}
	if os.Geteuid() != 0 && !strings.Contains(last, "gid=") {
		t.Skip("needs root, or /dev/pts mounted with the option gid (mount -o remount,gid=5,mode=620 /dev/pts): it has " + last)
	}
}

// A dialogue: each answer is there before the next question, and both outputs are one.
func TestTerminal(t *testing.T) {
	t.Parallel()
	needTerminals(t)
	c := connect(t)
	var said []string
	err := c.Terminal(t.Context(), func(keys io.Writer, screen io.Reader) error {
		lines := bufio.NewScanner(screen)
		for _, line := range []string{"one", "a 'b' $HOME"} {
			io.WriteString(keys, line+"\n")
			lines.Scan()
			said = append(said, lines.Text())
		}
		return lines.Err()
	}, "sh", "-c", `test -t 0 && test -t 1 && while read -r x; do echo "got $x" >&2; done`)
	if want := "got one,got a 'b' $HOME"; err != nil || strings.Join(said, ",") != want {
		t.Errorf("Terminal = %q, %v; want %q", said, err, want)
	}
}

// The program ends with its dialogue, with its context, and by itself.
func TestTerminalEndsTheProgram(t *testing.T) {
	t.Parallel()
	needTerminals(t)
	c := connect(t)
	wrong := errors.New("wrong answer")
	pid := func(screen io.Reader) string {
		line, _ := bufio.NewReader(screen).ReadString('\n')
		return line
	}
	var shown string
	err := c.Terminal(t.Context(), func(_ io.Writer, screen io.Reader) error {
		shown = pid(screen)
		return wrong
	}, "sh", "-c", "echo $$; sleep 600")
	if !errors.Is(err, wrong) {
		t.Errorf("Terminal = %v; want %v", err, wrong)
	}
	gone(t, shown)

	ctx, cancel := context.WithCancel(t.Context())
	err = c.Terminal(ctx, func(_ io.Writer, screen io.Reader) error {
		shown = pid(screen)
		cancel()
		_, err := io.Copy(io.Discard, screen) // for ever, but for the end of ctx
		return err
	}, "sh", "-c", "echo $$; sleep 600")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Terminal = %v; want %v", err, context.Canceled)
	}
	gone(t, shown)

	err = c.Terminal(t.Context(), func(_ io.Writer, screen io.Reader) error {
		data, err := io.ReadAll(screen)
		shown = string(data)
		return err
	}, "sh", "-c", "echo last words; exit 3")
	if err != nil || shown != "last words\r\n" {
		t.Errorf("Terminal = %q, %v", shown, err)
	}
}

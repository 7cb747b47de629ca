package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// journalTail prints the last 1,000,000 bytes of a boot's journal. $1 is the boot as journalctl
// counts: 0 is this one, -1 the one before.
const journalTail = `journalctl --boot="$1" --no-pager --quiet --output=short-monotonic | tail -c 1000000`

// readLogs reads the journal and kernel messages of the board, for a report of a failure. If the
// boot id is no longer began, it also reads the journal of the previous boot. It leaves out
// unreadable logs.
func (s *Session) readLogs(ctx context.Context, began string) []report.Log {
	if s.isLost() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	sources := []struct {
		name string
		argv []string
	}{
		{"journal, errors of this boot", []string{"journalctl", "--boot", "--priority=err", "--no-pager", "--quiet", "--lines=200", "--output=short-monotonic"}},
		{"kernel messages, the last 150", []string{"sh", "-c", "dmesg | tail -n 150"}},
		{"journal of this boot", []string{"sh", "-c", journalTail, "sh", "0"}},
		{"journal of the boot before", []string{"sh", "-c", journalTail, "sh", "-1"}},
	}
	if boot, err := s.Board.Run(ctx, "cat", "/proc/sys/kernel/random/boot_id"); err != nil || began == "" || strings.TrimSpace(string(boot.Stdout)) == began {
		sources = sources[:3]
	}
	var logs []report.Log
	for _, l := range sources {
		r, err := s.Board.Run(ctx, l.argv...)
		if err == nil && r.Status == 0 && len(r.Stdout) > 0 {
			logs = append(logs, report.NewLog(l.name, string(r.Stdout)))
		}
	}
	return logs
}

// WithTranscript writes each command on the board to w when the command has ended, with its output,
// status and duration. Control characters are removed from the output.
func WithTranscript(w io.Writer) Option {
	return func(s *Session) {
		t := &transcript{out: w}
		s.Board = transcribedBoard{s.Board, t}
		s.Stream, s.Terminal = t.wrapStream(s.Stream), t.wrapTerminal(s.Terminal)
	}
}

// transcript writes ended commands to out. Commands run at the same time, so their order is that of
// their ends.
type transcript struct {
	mu  sync.Mutex
	out io.Writer
}

// transcribedBoard is a board whose commands are written to a transcript.
type transcribedBoard struct {
	board Board
	*transcript
}

// Run runs a command on the board. It fails if it cannot write the transcript, because a
// report must not come with an incomplete transcript.
func (t transcribedBoard) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	began := time.Now()
	r, err := t.board.Run(ctx, argv...)
	return r, t.writeCommand(commandOutput{argv, began, r.Stdout, r.Stderr}, r.Status, err)
}

type (
	streamer   = func(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (int, error)
	terminaler = func(ctx context.Context, talk func(keys io.Writer, screen io.Reader) error, argv ...string) error
)

func (t *transcript) wrapStream(stream streamer) streamer {
	return func(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (int, error) {
		var out, errs cappedBuffer
		began := time.Now()
		status, err := stream(ctx, stdin, io.MultiWriter(stdout, &out), io.MultiWriter(stderr, &errs), argv...)
		return status, t.writeCommand(commandOutput{argv, began, out.kept.Bytes(), errs.kept.Bytes()}, status, err)
	}
}

// wrapTerminal returns a terminal function that also writes the screen to the transcript. The
// screen includes typed keys, which the terminal echoes.
func (t *transcript) wrapTerminal(terminal terminaler) terminaler {
	return func(ctx context.Context, talk func(keys io.Writer, screen io.Reader) error, argv ...string) error {
		var seen cappedBuffer
		began := time.Now()
		err := terminal(ctx, func(keys io.Writer, screen io.Reader) error {
			return talk(keys, io.TeeReader(screen, &seen))
		}, argv...)
		return t.writeCommand(commandOutput{argv, began, seen.kept.Bytes(), nil}, 0, err)
	}
}

// cappedBuffer keeps the beginning of an output, up to maxTranscribedBytes.
type cappedBuffer struct{ kept bytes.Buffer }

const maxTranscribedBytes = 1 << 20 // of each output

func (b *cappedBuffer) Write(p []byte) (int, error) {
	_, _ = b.kept.Write(p[:min(len(p), maxTranscribedBytes-b.kept.Len())])
	return len(p), nil
}

// commandOutput is a command that ended, its start, and the beginning of its output.
type commandOutput struct {
	argv        []string
	began       time.Time
	out, errors []byte
}

// writeCommand writes a command to the transcript. It returns failed, or if that is nil, the error
// of the write.
func (t *transcript) writeCommand(s commandOutput, status int, failed error) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s $ %s\n", s.began.UTC().Format("15:04:05.000"), plaintext.OneLine(ShellLine(s.argv)))
	for _, out := range []struct{ mark, text string }{{"  | ", string(s.out)}, {"  ! ", string(s.errors)}} {
		for line := range strings.Lines(plaintext.Printable(plaintext.WithoutEscapes(out.text))) {
			text.WriteString(out.mark + strings.TrimRight(line, "\n") + "\n")
		}
	}
	ended := fmt.Sprintf("status %d", status)
	if failed != nil {
		ended = plaintext.OneLine(failed.Error())
	}
	fmt.Fprintf(&text, "  = %s, after %d ms\n", ended, time.Since(s.began).Milliseconds())
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := io.WriteString(t.out, text.String()); err != nil && failed == nil {
		return fmt.Errorf("write the transcript: %w", err)
	}
	return failed
}

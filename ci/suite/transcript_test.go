package suite

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"slipway/flash/boardssh"
)

// talkativeBoard prints what a hostile board could print.
type talkativeBoard struct{}

func (talkativeBoard) Run(_ context.Context, argv ...string) (boardssh.Result, error) {
	if argv[0] == "gone" {
		return boardssh.Result{}, errors.New("the line\nis \x1b[31mcut")
	}
	return boardssh.Result{Status: 3, Stdout: []byte("one\x1b[2J\ntwo"), Stderr: []byte("three\u202e\n")}, nil
}

func TestTranscript(t *testing.T) {
	var text strings.Builder
	s := &Session{
		Board: talkativeBoard{},
		Stream: func(_ context.Context, _ io.Reader, stdout, stderr io.Writer, _ ...string) (int, error) {
			io.WriteString(stdout, strings.Repeat("x", maxTranscribedBytes+1))
			io.WriteString(stderr, "a word\n")
			return 1, nil
		},
		Terminal: func(_ context.Context, talk func(io.Writer, io.Reader) error, _ ...string) error {
			return talk(io.Discard, strings.NewReader("prompt> typed\nanswer\n"))
		},
	}
	WithTranscript(&text)(s)
	if r, err := s.Board.Run(t.Context(), "echo", "a b\x07"); err != nil || r.Status != 3 {
		t.Errorf("Run = %d, %v", r.Status, err)
	}
	if _, err := s.Board.Run(t.Context(), "gone"); err == nil {
		t.Error("Run without a board did not fail")
	}
	if err := s.Terminal(t.Context(), func(_ io.Writer, screen io.Reader) error {
		_, err := io.ReadAll(screen)
		return err
	}, "talk"); err != nil {
		t.Error(err)
	}
	got := regexp.MustCompile(`(?m)^[0-9:.]+ |[0-9]+ ms`).ReplaceAllString(text.String(), "T ")
	want := `T $ echo 'a b'
  | one
  | two
  ! three
  = status 3, after T ` + `
T $ gone
  = the line is [31mcut, after T ` + `
T $ talk
  | prompt> typed
  | answer
  = status 0, after T ` + `
`
	if got != want {
		t.Errorf("transcript:\n%s\nwant:\n%s", got, want)
	}
	text.Reset()
	var out strings.Builder
	if status, err := s.Stream(t.Context(), nil, &out, io.Discard, "much"); err != nil || status != 1 || out.Len() != maxTranscribedBytes+1 {
		t.Errorf("stream = %d, %v, %d bytes", status, err, out.Len())
	}
	if n := strings.Count(text.String(), "x"); n != maxTranscribedBytes {
		t.Errorf("%d bytes of it were kept; want %d", n, maxTranscribedBytes)
	}
}

// A command fails if its transcript cannot be written.
func TestTranscriptNotWritten(t *testing.T) {
	s := &Session{Board: talkativeBoard{}}
	WithTranscript(fullWriter{})(s)
	if _, err := s.Board.Run(t.Context(), "true"); err == nil || !strings.Contains(err.Error(), "write the transcript") {
		t.Errorf("Run = %v; want that the transcript was not written", err)
	}
}

type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }

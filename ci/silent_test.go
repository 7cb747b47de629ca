package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/images"
)

// silentBoard is an sshd whose shell runs what it is sent, and logs it. A program of that name
// never ends.
func silentBoard(t *testing.T, program string) (log string) {
	t.Helper()
	t.Setenv("CI", "1")                      // no questions
	t.Setenv(boardssh.SilenceVariable, "3s") // less is too short for an sshd on a busy machine
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	sshtest.PlaceFile(t, filepath.Join(dir, program), "#!/bin/sh\nsleep 1000\n", 0o755)
	key, known := suitetest.StartBoard(t, "SetEnv HOME="+dir+" PATH="+dir+":"+os.Getenv("PATH"),
		`ForceCommand printf '%s\n===\n' "$SSH_ORIGINAL_COMMAND" >>`+log+`; exec sh -c "$SSH_ORIGINAL_COMMAND"`)
	if err := os.WriteFile(known, []byte("serial-7 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return log
}

// wantOneSilence tests that a run ended with the status for a silent board and blames the
// program, and that it asked the board nothing after that. What Slipway runs to see whether the
// program runs, and to end it, is no question. Checks run beside each other: of those only what has
// not in it counts.
func wantOneSilence(t *testing.T, what, log, asked, blamed string, err error, not string) {
	t.Helper()
	text := fmt.Sprint(err)
	if report.ExitStatus(err) != 3 || !errors.Is(err, boardssh.ErrSilent) || !strings.Contains(text, blamed) || !strings.Contains(text, "\nnext: ") {
		t.Errorf("%s: status %d, %v; want 3, %v, %q and a next step", what, report.ExitStatus(err), err, boardssh.ErrSilent, blamed)
	}
	data, errLog := os.ReadFile(log)
	before, after, _ := strings.Cut(string(data), asked)
	if at := strings.LastIndex(after, asked); at >= 0 && asked == "'id'" { // the D-Bus asks for the user each time
		after = after[at:]
	}
	_, after, _ = strings.Cut(after, "===\n")
	for line := range strings.SplitSeq(after, "===\n") {
		if line != "" && !strings.Contains(line, "kill -") && strings.Contains(line, not) {
			t.Errorf("%s: after the silence the board was asked %s", what, line)
		}
	}
	if errLog != nil || len(before) == len(data) {
		t.Errorf("%s: the board was not asked %s: %v\n%s", what, asked, errLog, data)
	}
}

// A board runs what it is sent, and a program, the engine's service or the D-Bus takes a question
// and never answers: after one limit nothing more is asked.
func TestDryRunEndsAtASilentProgram(t *testing.T) {
	for _, tt := range []struct{ silent, asked, blamed string }{
		{"true", "'true'", "run true on"},
		{"id", "'id'", "run id on"},
		{"rauc", "'rauc'", "run rauc on"},
		{"df", "for d; do", "run sh on"},
		{"service", "'id'", "RAUC on 127.0.0.1, Operation"},
		{"bus", "'id'", "open the D-Bus of 127.0.0.1"},
	} {
		t.Run(tt.silent, func(t *testing.T) {
			r := boardtest.StartRAUC(t)
			bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
			log := silentBoard(t, tt.silent)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			spec, opt := images.Spec{Board: "toy", Suites: []string{"base"}}, images.Options{Dir: t.TempDir()}
			u := newUpdateRun(spec, images.NoArtifact(spec, opt.Dir), UpdateOptions{DryRun: true, Out: io.Discard})
			u.initOutcome("board", bundle)
			bus := r.Bus
			if tt.silent == "bus" {
				bus = filepath.Join(t.TempDir(), "bus")
				l, err := net.Listen("unix", bus)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			u.find = func(ctx context.Context) (boardupdate.Engine, error) {
				e, err := boardupdate.FindEngine(ctx, u.conn, bus)
				if tt.silent == "service" {
					pauseRAUC(t, r)
				}
				return e, err
			}
			err := u.runAllStages(ctx, func(ctx context.Context) (err error) {
				u.conn, err = reach.Connect(ctx, opt, spec, "board")
				return err
			})
			u.close()
			wantOneSilence(t, "update --dry-run", log, tt.asked, tt.blamed, err, "")
		})
	}
}

func TestSmokeEndsAtASilentProgram(t *testing.T) {
	for _, tt := range []struct{ program, asked, blamed, not string }{
		{"grep", "'grep -aHs", "grep, for the board's identity", ""},
		{"nvbootctrl", "'grep -aHs", "nvbootctrl, for the board's identity", ""},
		{"cat", "/etc/machine-id && cat", "run sh on", "'cat' '/proc/sys/kernel/random/boot_id"},
		{"systemctl", "'systemctl' 'is-system-running'", "run systemctl on", ""},
	} {
		t.Run(tt.program, func(t *testing.T) {
			log := silentBoard(t, tt.program)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			spec, opt := images.Spec{Board: "toy", Suites: []string{"base"}}, images.Options{Dir: t.TempDir()}
			_, err := SmokeOn(ctx, io.Discard, opt, spec, "board", "")
			wantOneSilence(t, "smoke", log, tt.asked, tt.blamed, err, tt.not)
		})
	}
}

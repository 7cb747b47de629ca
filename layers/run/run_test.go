package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRunFailure(t *testing.T) {
	log := filepath.Join(t.TempDir(), "logs", "run.log")
	var lines []string
	err := Run(t.Context(), Command{
		Argv: []string{"sh", "-c", "echo one; echo two >&2; exit 3"}, Log: log,
		Line: func(l string) { lines = append(lines, l) },
	})
	var f *Failure
	if !errors.As(err, &f) {
		t.Fatalf("Run = %v; want a *Failure", err)
	}
	for _, want := range []string{"sh -c", "exit status 3", "two", log} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q lacks %q", err, want)
		}
	}
	if len(lines) != 2 {
		t.Errorf("lines = %q; want both", lines)
	}
	if data, _ := os.ReadFile(log); string(data) != "one\ntwo\n" {
		t.Errorf("log = %q; want both lines", data)
	}
}

// A program ends by itself also where its log can't be written, and what is wrong with
// the log is said beside what is wrong with the program.
func TestRunFullDisk(t *testing.T) {
	for status, wants := range map[string][]string{
		"0": {"sh has ended well, but its log is not whole", "no space left on device"},
		"3": {"exit status 3", "| the last line", "its log is not whole", "no space left on device"},
	} {
		done := filepath.Join(t.TempDir(), "done")
		script := `i=0; while [ $i -lt 100 ]; do echo $i; sleep 0.001; i=$((i+1)); done; echo the last line; > "$0"; exit ` + status
		err := Run(t.Context(), Command{Argv: []string{"sh", "-c", script, done}, Log: "/dev/full"})
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("exit %s: %v; want %q", status, err, want)
			}
		}
		if _, err := os.Stat(done); err != nil {
			t.Errorf("exit %s: the program was cut off: %v", status, err)
		}
	}
}

func TestFailureIsForATerminal(t *testing.T) {
	_, err := Output(t.Context(), Command{Argv: []string{"sh", "-c", `printf 'a\tb\033[2Jc\302\233d' >&2; exit 1`}})
	if err == nil || !strings.HasSuffix(err.Error(), "a\tbc") {
		t.Errorf("Output = %q; want its words without control characters", err)
	}
}

func TestRunNotInstalled(t *testing.T) {
	err := Run(t.Context(), Command{Argv: []string{"slipway-no-such-program"}})
	if err == nil || !strings.Contains(err.Error(), "is not installed") {
		t.Errorf("Run = %v; want it to say that the program is not installed", err)
	}
}

// An ordinary user of Debian has no /usr/sbin in PATH.
func TestRunFindsSystemPrograms(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/chroot"); err != nil {
		t.Skip("/usr/sbin/chroot is missing (Debian package coreutils)")
	}
	t.Setenv("PATH", t.TempDir())
	for _, argv := range [][]string{
		{"chroot", "--version"},
		{"/usr/bin/env", "chroot", "--version"}, // as unshare runs mke2fs for an image
	} {
		if out, err := Output(t.Context(), Command{Argv: argv}); err != nil || !strings.HasPrefix(string(out), "chroot ") {
			t.Errorf("Output(%q) = %q, %v; want its version", argv, out, err)
		}
	}
}

func TestPathOfPrograms(t *testing.T) {
	tests := []struct{ name, path, given, want string }{
		{"completed", "/mine", "", "/mine:/usr/local/sbin:/usr/sbin:/sbin"},
		{"in the user's order", "/usr/sbin:/mine", "", "/usr/sbin:/mine:/usr/local/sbin:/sbin"},
		{"none", "", "", ""}, // a program then knows its own folders
		{"the command's own", "/mine", "/given", "/given"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PATH", tt.path)
			c := Command{Argv: []string{"/usr/bin/printenv", "PATH"}}
			if tt.given != "" {
				c.Env = []string{"PATH=" + tt.given}
			}
			if out, err := Output(t.Context(), c); err != nil || string(out) != tt.want+"\n" {
				t.Errorf("with PATH=%s a program sees %q, %v; want %q", tt.path, out, err, tt.want)
			}
		})
	}
}

func TestTailIsBounded(t *testing.T) {
	w := &tailWriter{}
	for i := range 100 {
		fmt.Fprintf(w, "line %d %s\n", i, strings.Repeat("x", 2*maxLineBytes))
	}
	if got := w.String(); len(got) > tailLines*(maxLineBytes+1) || !strings.HasPrefix(got, "line 85 ") {
		t.Errorf("tail has %d bytes and begins %.10q; want at most %d lines of %d bytes", len(got), got, tailLines, maxLineBytes)
	}
}

func TestOutputKeepsStderrOut(t *testing.T) {
	if _, err := Output(t.Context(), Command{Argv: []string{"false"}, Log: "no.log"}); strings.Contains(err.Error(), "no.log") {
		t.Errorf("Output = %v; want it to name no log, as it writes none", err)
	}
	out, err := Output(t.Context(), Command{Argv: []string{"sh", "-c", "echo yes; echo no >&2"}})
	if err != nil || string(out) != "yes\n" {
		t.Errorf("Output = %q, %v; want only what went to stdout", out, err)
	}
}

// No secret gets into a log, an error or a tail, however the program writes it.
func TestNoSecretsInLogs(t *testing.T) {
	script := `printf 'fetch https://u:S3C'; sleep 0.1; printf 'RET@host/x\rAuthorization: Basic S3CRET\n\033[2Jx\n'
echo '-----BEGIN OPENSSH PRIVATE KEY-----'; echo S3CRET; sleep 0.1; echo S3CRET; echo '-----END OPENSSH PRIVATE KEY-----'
printf 'last ?token=S3CRET'; exit 3`
	log := filepath.Join(t.TempDir(), "run.log")
	err := Run(t.Context(), Command{Argv: []string{"sh", "-c", script, "https://u:S3CRET@host/"}, Log: log})
	var failed *Failure
	if !errors.As(err, &failed) || strings.Contains(failed.Tail, "S3CRET") || strings.Contains(LastLine(err), "S3CRET") {
		t.Errorf("Run = %v; want no secret", err)
	}
	if want := "fetch https://host/x\nAuthorization: [hidden]\nx\n[hidden]\nlast ?token=[hidden]"; failed.Tail != want {
		t.Errorf("tail %q; want %q", failed.Tail, want)
	}
	data, err := os.ReadFile(log)
	if want := "fetch https://host/x\nAuthorization: [hidden]\n[2Jx\n[hidden]\nlast ?token=[hidden]"; err != nil || string(data) != want {
		t.Errorf("log %q, %v; want %q", data, err, want)
	}
}

// A program is silent if neither it nor its children compute, read or write; ssh does not count.
func TestRunEndsASilentProgram(t *testing.T) {
	ssh := filepath.Join(t.TempDir(), "ssh")
	if err := os.Symlink("/bin/sh", ssh); err != nil {
		t.Fatal(err)
	}
	const busy = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do :; done"
	for name, tt := range map[string]struct {
		argv   []string
		silent bool
	}{
		"sleeps":          {[]string{"sh", "-c", "echo hello; sleep 300; :"}, true},
		"computes":        {[]string{"sh", "-c", busy}, false},
		"a child prints":  {[]string{"sh", "-c", "(for i in 1 2 3 4 5 6 7 8; do sleep 0.4; echo $i; done); :"}, false},
		"ssh keeps alive": {[]string{ssh, "-c", "while :; do :; done"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := Output(t.Context(), Command{Argv: tt.argv, Silence: 1500 * time.Millisecond})
			var f *Failure
			if errors.Is(err, ErrSilent) != tt.silent || tt.silent && (!errors.As(err, &f) || !strings.Contains(err.Error(), "ended after 1.5s without output or data")) || !tt.silent && err != nil {
				t.Errorf("Output = %q, %v; want it ended for its silence: %t", out, err, tt.silent)
			}
		})
	}
}

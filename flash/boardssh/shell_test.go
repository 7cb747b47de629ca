package boardssh

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"slipway/flash/boardssh/sshtest"
)

// notShells are forced commands that end with status 0 and run nothing of Slipway's.
var notShells = map[string]string{
	"true":                 "true",
	"nothing":              "/bin/true",
	"a banner":             "echo Welcome to ACME",
	"fish":                 `fish -c "$SSH_ORIGINAL_COMMAND"; exit 0`,
	"python":               `python3 -c "$SSH_ORIGINAL_COMMAND" 2>/dev/null; exit 0`,
	"repeats":              `echo "$SSH_ORIGINAL_COMMAND"`,
	"repeats as an error":  `echo "$SSH_ORIGINAL_COMMAND" >&2`,
	"repeats twice":        `echo "$SSH_ORIGINAL_COMMAND" >&2; echo "$SSH_ORIGINAL_COMMAND" >&2`,
	"repeats the mark":     `echo "${SSH_ORIGINAL_COMMAND%%>*}" | tr -d "'" >&2`,
	"a menu":               `printf '1) status\n2) reboot\n> %s: unknown\n' "$SSH_ORIGINAL_COMMAND" >&2`,
	"reads but runs not":   `sh -n -c "$SSH_ORIGINAL_COMMAND"`,
	"another number":       `echo "slipway-run-AAAAAAAAAAAAAAAAAAAAAAAAAA 4242" >&2`,
	"the mark and no line": `printf "%s" "${SSH_ORIGINAL_COMMAND%%>*}" | sed "s/^echo '//;s/'.*/42/" | tr -d '\n' >&2`,
	"much":                 `head -c 100000 /dev/zero | tr '\0' x >&2`,
	"its own status":       "exit 7",
}

// A board whose shell does not run the line has no result, whatever its status is.
func TestNoShell(t *testing.T) {
	for name, shell := range notShells {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if program, _, _ := strings.Cut(shell, " "); program == "fish" || program == "python3" {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip(err)
				}
			}
			c := dialBoard(t, addressOf(sshtest.StartSSHD(t, "ForceCommand "+shell)))
			for _, argv := range [][]string{{"true"}, {"false"}, {"no-such-program"}, {"echo", "4242"}} {
				r, err := c.Run(t.Context(), argv...)
				if !errors.Is(err, ErrShell) || r.Status != 0 {
					t.Errorf("Run(%q) = %d, %v; want %v", argv, r.Status, err, ErrShell)
				}
			}
			_, err := c.Output(t.Context(), "id", "-u")
			sshtest.CheckHarmless(t, err, "not a POSIX shell")
			sshtest.CheckHarmless(t, c.CheckShell(t.Context()), "'echo $$'")
		})
	}
}

func TestNoShellAtATerminal(t *testing.T) {
	needTerminals(t)
	for _, shell := range []string{"true", notShells["repeats"], notShells["much"]} {
		c := dialBoard(t, addressOf(sshtest.StartSSHD(t, "ForceCommand "+shell)))
		err := c.Terminal(t.Context(), func(_ io.Writer, screen io.Reader) error {
			_, err := io.Copy(io.Discard, screen)
			return err
		}, "false")
		if !errors.Is(err, ErrShell) {
			t.Errorf("Terminal() = %v with %s; want %v", err, shell, ErrShell)
		}
	}
}

// What the shell printed tells what it is.
func TestNoShellSays(t *testing.T) {
	for shell, want := range map[string]string{
		"echo Welcome to ACME":                      "it did not run Slipway's line, and printed: Welcome to ACME\n",
		"echo this account is disabled >&2; exit 1": "it did not run Slipway's line, and printed: this account is disabled\n",
		"true": "printed: nothing\n",
	} {
		c := dialBoard(t, addressOf(sshtest.StartSSHD(t, "ForceCommand "+shell)))
		_, err := c.Run(t.Context(), "false")
		sshtest.CheckHarmless(t, err, want)
	}
}

// A login shell that prints text of its own is an error: each program's output would have the text.
func TestNoisyShell(t *testing.T) {
	c := dialBoard(t, addressOf(sshtest.StartSSHD(t, `ForceCommand echo WELCOME; eval "$SSH_ORIGINAL_COMMAND"`)))
	sshtest.CheckHarmless(t, c.CheckShell(t.Context()), "prints text of its own at every login: WELCOME")
	c = dialBoard(t, addressOf(sshtest.StartSSHD(t, `ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"; exit 3`)))
	sshtest.CheckHarmless(t, c.CheckShell(t.Context()), "ended with status 3")
}

// A reboot that the board's shell did not run is an error at once.
func TestRebootThatDoesNotRun(t *testing.T) {
	c := dialBoard(t, addressOf(sshtest.StartSSHD(t, `ForceCommand case "$SSH_ORIGINAL_COMMAND" in *reboot*) ;; *) eval "$SSH_ORIGINAL_COMMAND" ;; esac`)))
	if err := c.Reboot(t.Context(), 3*time.Second); !errors.Is(err, ErrShell) {
		t.Errorf("Reboot() = %v; want %v", err, ErrShell)
	}
}

// Shells that also print something of their own run the line.
func TestShellsThatTalk(t *testing.T) {
	for name, shell := range map[string]string{
		"dash":           `dash -c "$SSH_ORIGINAL_COMMAND"`,
		"busybox":        `busybox sh -c "$SSH_ORIGINAL_COMMAND"`,
		"zsh":            `zsh -c "$SSH_ORIGINAL_COMMAND"`,
		"traces":         `bash -x -c "$SSH_ORIGINAL_COMMAND"`,
		"repeats":        `bash -v -c "$SSH_ORIGINAL_COMMAND"`,
		"repeats itself": `echo "$SSH_ORIGINAL_COMMAND" >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"`,
		"no end of line": `printf 'motd: ' >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"`,
		"much":           `head -c 100000 /dev/zero | tr '\0' x >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(name); name == "zsh" && err != nil || name == "busybox" && err != nil {
				t.Skip(err)
			}
			c := dialBoard(t, addressOf(sshtest.StartSSHD(t, "ForceCommand "+shell)))
			r, err := c.Run(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 3")
			if err != nil || r.Status != 3 || string(r.Stdout) != "out\n" || !strings.HasSuffix(string(r.Stderr), "err\n") || strings.Contains(string(r.Stderr), "\nslipway-run-") {
				t.Errorf("Run = %d, %q, %.100q, %v; want 3, out, err", r.Status, r.Stdout, r.Stderr, err)
			}
		})
	}
}

// sudo's own status is no program's.
func TestSudoThatRunsNothing(t *testing.T) {
	for name, script := range map[string]string{
		"nothing":        "exit 0",
		"repeats":        `echo "$@" >&2`,
		"repeats as is":  `echo "$@"`,
		"refuses":        `echo "sudo: no" >&2; exit 1`,
		"once, not then": `[ ! -e "$0.once" ] || exit 0; : >"$0.once"; while [ "$1" != -- ]; do shift; done; shift; exec "$@"`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sshtest.PlaceFile(t, dir+"/sudo", "#!/bin/sh\n"+script+"\n", 0o755)
			a := addressOf(sshtest.StartSSHD(t, "SetEnv PATH="+dir+":/usr/bin:/bin"))
			a.Become = "somebody"
			c, err := DialUnattended(t.Context(), a)
			if name == "once, not then" {
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_, err = c.Run(t.Context(), "false")
			}
			if !errors.Is(err, ErrBecome) {
				t.Errorf("%v; want %v", err, ErrBecome)
			}
		})
	}
}

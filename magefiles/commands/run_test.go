package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/yaml"
)

// A program exits with the status that a command's error returns.
// The commands of Slipway's own source are named with the program too.
func TestNextStepOfSourceCommand(t *testing.T) {
	known := host.IsCommand
	t.Cleanup(func() { host.IsCommand = known })
	if got := host.TypedStep("zap --help"); got != "zap --help" {
		t.Errorf("TypedStep of no command = %q", got)
	}
	Root(New("zap", "Zap it"))
	for _, step := range []string{"zap --help", "build virt"} {
		if got, want := host.TypedStep(step), host.ProgramName()+" "+step; got != want {
			t.Errorf("TypedStep(%q) = %q; want %q", step, got, want)
		}
	}
}

// A next line may set a variable, or run git, before the user's line.
func TestNextStepBeforeTheLine(t *testing.T) {
	host.SetTyped([]string{"build", "mini"})
	t.Cleanup(func() { host.SetTyped(nil) })
	err := exitError{errors.New("edited\nnext: A=b repeat the line  # so\nnext: git -C '/a#b' stash && repeat the line")}
	line := host.ProgramName() + " build mini"
	if want := "edited\nnext: A=b " + line + "  # so\nnext: git -C '/a#b' stash && " + line; err.Error() != want {
		t.Errorf("error = %q; want %q", err, want)
	}
	if step := "df -h .  # make room, then repeat the line"; host.TypedStep(step) != step {
		t.Errorf("TypedStep(%q) = %q; want it as it was", step, host.TypedStep(step))
	}
}

// A step that shows the line of a file shows one that the file has.
func TestNextStepAtTheEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.yml", []byte("a: [\nb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"a.yml:2:1: x": "sed -n 2p a.yml", "a.yml:3:1: x": "tail -n 1 a.yml", "b.yml:3:1: x": ""} {
		if got := placeStep(text); got != want {
			t.Errorf("placeStep(%q) = %q; want %q", text, got, want)
		}
	}
}

func TestExitStatus(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	plain := errors.New("no such file")
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"went well", nil, 0},
		{"any other error", plain, 1},
		{"board unreachable", report.Because(t.Context(), report.ErrUnreachable, plain), 3},
		{"stopped while it was reached", report.Because(ended, report.ErrUnreachable, plain), 1},
		{"checks failed", fmt.Errorf("smoke x: %w", report.ErrFailed), 4},
		{"checks failed, and no report", errors.Join(fmt.Errorf("smoke x: %w", report.ErrFailed), plain), 4},
		{"a container's status", report.ContainerFailed{Status: 7}, 7},
		{"a container's status that says nothing", report.ContainerFailed{Status: 256}, 1},
		{"a container that failed", report.OfContainer(report.ContainerFailed{Status: 3}), 3},
		{"a container of a board unreachable", report.OfContainer(report.Because(t.Context(), report.ErrUnreachable, plain)), 255},
		{"a container that was not started", report.OfContainer(plain), 255},
		{"project file wrong", fmt.Errorf("build: %w%w", yaml.ErrProject, plain), 5},
		{"suite wrong", fmt.Errorf("smoke: %w", report.Because(t.Context(), report.ErrWrong, plain)), 5},
	} {
		err := withSignals(t.Context(), func(context.Context) error { return tt.err })
		if got := StatusOf(err); got != tt.want {
			t.Errorf("%s: exit status %d; want %d", tt.name, got, tt.want)
		}
		if tt.err != nil && (!strings.HasPrefix(err.Error(), tt.err.Error()) || !errors.Is(err, tt.err)) {
			t.Errorf("%s: run = %v; want %v", tt.name, err, tt.err)
		}
	}
	for text, want := range map[string]string{
		"no artifact\nnext: build virt":            "no artifact\nnext: " + host.ProgramName() + " build virt",
		"off\nnext: virt start x":                  "off\nnext: " + host.ProgramName() + " virt start x",
		"no suite\nnext: suites  # correct it":     "no suite\nnext: " + host.ProgramName() + " suites  # correct it",
		"no file\nnext: ls /x":                     "no file\nnext: ls /x",
		"a\nnext: build x\nb\nnext: make it again": "a\nnext: build x\nb\nnext: make it again",
		"off\nnext: virtual machines need KVM":     "off\nnext: virtual machines need KVM",
	} {
		if step := want[strings.LastIndex(want, "next: ")+6:]; strings.Count(text, "\n") == 1 {
			if _, next := report.SplitNext(errors.New(text), ""); next != step {
				t.Errorf("the next step of %q in a report is %q; want %q", text, next, step)
			}
		}
		if got := withStatus(withStatus(errors.New(text))).Error(); got != want {
			t.Errorf("%q is shown as %q; want %q", text, got, want)
		}
	}
	for _, own := range []bool{false, true} {
		want := "bad\nnext: " + host.ProgramName() + " boards  # after correcting the file"
		if own {
			t.Chdir(t.TempDir())
			if err := errors.Join(os.MkdirAll("boards/lab", 0o755), os.WriteFile("boards/lab/board.yml", []byte("extends: virt\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
			want = "bad\nnext: " + host.ProgramName() + " board check  # after correcting the file"
		}
		if got := withStatus(report.Because(t.Context(), report.ErrWrong, errors.New("bad"))).Error(); got != want {
			t.Errorf("a wrong file, in a project: %t: %q; want %q", own, got, want)
		}
	}
	locked := filepath.Join(t.TempDir(), "kas.yml")
	if err := os.WriteFile(locked, nil, 0); err != nil {
		t.Fatal(err)
	}
	denied := error(&fs.PathError{Op: "mkdir", Path: "/lab/x y/build", Err: fs.ErrPermission})
	for want, err := range map[string]error{
		"make it: mkdir /lab/x y/build: permission denied\nnext: ls -ld '/lab/x y'  # or go on in a folder of yours": fmt.Errorf("make it: %w", denied),
		"open " + locked + ": permission denied\nnext: ls -ld " + locked + "  # or go on in a folder of yours":       &fs.PathError{Op: "open", Path: locked, Err: fs.ErrPermission},
		"mkdir /lab/x y/build: permission denied\nnext: id":                                                          fmt.Errorf("%w\nnext: id", denied),
	} {
		if got := withStatus(err).Error(); got != want {
			t.Errorf("%q is shown as %q; want %q", err, got, want)
		}
	}
	err := runFor(t.Context(), "no-such-board", images.Load, func(context.Context, images.Spec) error { return nil })
	if got := StatusOf(err); got != 5 {
		t.Errorf("a board that nobody knows: %v, status %d; want 5", err, got)
	}
}

// Mage by itself would end a command 5 s after a Ctrl-C, before its clean-up is done.
func TestCtrlCIsNotMages(t *testing.T) {
	mages := make(chan os.Signal, 1)
	signal.Notify(mages, syscall.SIGINT)
	defer signal.Stop(mages)
	err := withSignals(t.Context(), func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if err == nil || len(mages) > 0 {
		t.Errorf("run = %v, and %d signals for Mage; want the work ended, and none", err, len(mages))
	}
}

// The work may clean up after SIGTERM, also if timeout sends it twice. A later signal ends that. A
// build ends at once, because its tasks take long.
func TestWorkCleansUpAfterSignals(t *testing.T) {
	send := func(signal syscall.Signal) {
		if err := syscall.Kill(os.Getpid(), signal); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Millisecond) // else the kernel merges equal signals
	}
	isClosed := func(c <-chan struct{}, within time.Duration) bool {
		select {
		case <-c:
			return true
		case <-time.After(within):
			return false
		}
	}
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		_ = runPatiently(t.Context(), func(ctx context.Context, now <-chan struct{}) error {
			build := endSoon(ctx, now)
			send(signal)
			send(signal)
			<-ctx.Done()
			if isClosed(now, 2*passedOn) {
				t.Errorf("%v: the work may not clean up", signal)
			}
			if isClosed(build, passedOn) != (signal == syscall.SIGTERM) {
				t.Errorf("%v: the build ended at once, or not", signal)
			}
			send(signal)
			if !isClosed(now, time.Minute) || !isClosed(build, time.Minute) {
				t.Errorf("a second %v did not end the work", signal)
			}
			return nil
		})
	}
}

// A command's error without a next step gets one.
func TestStepOfLastResort(t *testing.T) {
	host.SetTyped(nil)
	name := host.ProgramName()
	for want, err := range map[string]error{
		"it broke\nnext: " + name + " deploy files --help": errors.New("it broke"),
		"it broke\nnext: ls": errors.New("it broke\nnext: ls"),
		"2 of 3 checks: the board failed its checks\nnext: repeat the line  # after doing what each failed check says": fmt.Errorf("2 of 3 checks: %w", report.ErrFailed),
		"the container's program ended with status 7":                                                                  report.ContainerFailed{Status: 7},
	} {
		root := newRoot()
		cmd, _, found := root.Find([]string{"deploy", "files"})
		if found != nil {
			t.Fatal(found)
		}
		if got := withStatus(withStep(cmd, withStatus(err))).Error(); got != want {
			t.Errorf("%q is shown as %q; want %q", err, got, want)
		}
	}
	stopped := withSignals(t.Context(), func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return fmt.Errorf("flash: %w", context.Cause(ctx))
	})
	if !strings.HasSuffix(stopped.Error(), "\nnext: repeat the line") {
		t.Errorf("a stopped command: %q; want its next step", stopped)
	}
}

// A path that the board names is no file of this machine. A wrong file that the user named is corrected,
// and then the line repeated.
func TestStepNamesTheRightFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("app", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	root := newRoot()
	cmd, _, err := root.Find([]string{"deploy", "files"})
	if err != nil {
		t.Fatal(err)
	}
	cmd.SetContext(context.WithValue(t.Context(), typedKey{}, []string{"deploy", "files", "virt", "b", "app", "/opt/app"}))
	for want, err := range map[string]error{
		"next: deploy files --help":                          boardssh.BoardError("put app", errors.New("refused")),
		"next: ls -ld app":                                   errors.New("app is strange"),
		"next: repeat the line  # after correcting the file": withStatus(report.Because(t.Context(), report.ErrWrong, errors.New("app: the file is empty"))),
	} {
		if got := withStep(cmd, err); !strings.HasSuffix(got.Error(), "\n"+want) {
			t.Errorf("%v; want %s", got, want)
		}
	}
}

// A result is printed once, as JSON or as text, and not after an error.
func TestPrintResult(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		err         error
		json, shown bool
	}{{nil, false, true}, {nil, true, false}, {failed, false, false}, {failed, true, false}} {
		shown := false
		err := printResult("", tt.err, tt.json, func(io.Writer) error { shown = true; return nil })
		if !errors.Is(err, tt.err) || shown != tt.shown {
			t.Errorf("printResult(%v, json %t) = %v, shown %t; want %v, %t", tt.err, tt.json, err, shown, tt.err, tt.shown)
		}
	}
}

package tegra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Board is one board to flash, with its own settings.
type Board struct {
	Port   string
	Dir    string            // a copy of the package that nothing else uses: the scripts write into it
	Logs   string            // the folder for logs
	Module map[string]string // the module's data if its EEPROM is empty
	Keys   Keys
}

// Result describes a successful flash.
type Result struct {
	Verdict string // as the board reports it
	Logs    string
	Seconds float64
	Begun   bool // the script was started, so the board may have changed; also after an error
}

// moduleNames are the environment variables that replace the module's EEPROM for the scripts.
var moduleNames = []string{"BOARDID", "FAB", "BOARDSKU", "BOARDREV", "CHIPREV", "CHIP_SKU", "RAMCODE"}

// scriptVars are variables that steer the scripts. Slipway unsets those of the user's environment.
var scriptVars = append([]string{"serial_number", "fuselevel", "MACHINE", "BR_CID", "BASH_ENV", "ENV", "PYTHONPATH", "usb_instance"}, moduleNames...)

// ModuleNames returns the names that board.yml may set in flash.module.
func ModuleNames() []string { return slices.Clone(moduleNames) }

// Argv returns the command that flashes the board on a port, to run in the package's folder.
func (p *Package) Argv(port string, keys Keys) []string {
	script := []string{"bash", "./initrd-flash"}
	if p.Flow == Direct {
		script = []string{"sh", "./doflash.sh"}
	}
	return slices.Concat(script, []string{"--usb-instance", port}, keys.flags())
}

// Ready returns an error if this machine lacks the programs or the rights to flash the package.
func (p *Package) Ready(ctx context.Context) error {
	return errors.Join(p.missingTools(ctx, p.Flow), checkRoot(ctx))
}

// Flash runs the package's scripts on the board on b.Port. It locks the port, limits the time of
// each stage, keeps the logs, and leaves nothing running or mounted.
func (p *Package) Flash(ctx context.Context, h Host, b Board) (Result, error) {
	r := &flashRun{pkg: p, host: h, board: b, transcript: newTranscript(flows[p.Flow]), began: time.Now()}
	result, err := r.checkAndRun(ctx)
	if err != nil {
		return Result{Begun: r.step != nil}, fmt.Errorf("USB port %s: %w", b.Port, err)
	}
	return result, nil
}

// flashRun is one run of a script.
type flashRun struct {
	pkg   *Package
	host  Host
	board Board
	step  *progress.Step
	began time.Time

	mu         sync.Mutex // guards the transcript between the output and the clock
	transcript *transcript
	clock      *time.Timer
	stop       context.CancelCauseFunc
	over       bool
}

// checkAndRun locks the port, checks the board and runs the script. It refuses a second script
// that accepts any board, while one runs.
func (r *flashRun) checkAndRun(ctx context.Context) (Result, error) {
	if err := CheckPort(r.board.Port); err != nil {
		return Result{}, err
	}
	if strings.ContainsAny(r.board.Dir, " \t\n") {
		return Result{}, fmt.Errorf("%q: NVIDIA's scripts do not work in a folder with a space in its name; move it", r.board.Dir)
	}
	lock, err := r.host.lockPort(r.board.Port)
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if err := r.pkg.CheckBoard(r.host, r.board.Port); err != nil {
		return Result{}, err
	}
	if r.pkg.acceptsAnyBoard {
		alone, err := r.host.lockAny()
		if err != nil {
			return Result{}, err
		}
		defer alone.Close()
	}
	if err := r.pkg.CheckOthers(r.host, r.board.Port); err != nil {
		return Result{}, err
	}
	if err := os.MkdirAll(r.board.Logs, 0o755); err != nil {
		return Result{}, err
	}
	r.step = progress.Start(ctx, "flash "+r.board.Port, int64(len(r.transcript.flow.stages)), progress.Tasks)
	err = r.runScript(ctx, lock)
	r.step.End(fmt.Sprintf("%s, %s in %.0f s", r.pkg.Flow, r.successText(), time.Since(r.began).Seconds()), err)
	if err != nil {
		return Result{}, err
	}
	return Result{Verdict: r.successText(), Logs: r.board.Logs, Seconds: time.Since(r.began).Seconds(), Begun: true}, nil
}

// successText returns words for success: the status that the board reports, or only the script's.
func (r *flashRun) successText() string {
	if r.transcript.status != "" {
		return "the board reports " + r.transcript.status
	}
	return "the script ended well"
}

// CheckBoard returns an error unless a board in recovery mode, with p.Chip if known, is on port.
func (p *Package) CheckBoard(h Host, port string) error {
	found, err := At(h.Sys, port)
	if err != nil {
		return err
	}
	if p.Chip != "" && found.Chip != p.Chip {
		return fmt.Errorf("the board there is a %s (%s), and the package is for %s: it was built for another board", found.Module, found.Chip, p.Chip)
	}
	return nil
}

// lockPort locks the USB port; it fails if another flash has it.
func (h Host) lockPort(port string) (*os.File, error) {
	return h.lockAs(port, "another flash is at work on this port; wait for it")
}

// lockAny locks this machine for scripts that accept any board, and fails if one runs. CheckOthers
// is not enough: a board leaves the bus during its flash and comes back in recovery mode.
func (h Host) lockAny() (*os.File, error) {
	return h.lockAs("any", "another board is being flashed by scripts that do not say which board is meant; wait for it")
}

// lockAs opens and locks the file slipway-usb-NAME in /run/lock, or in the temporary folder if that
// is forbidden. If another process has the lock, the error has the text busy.
func (h Host) lockAs(name, busy string) (*os.File, error) {
	dir := filepath.Join(h.Run, "lock")
	if os.MkdirAll(dir, 0o755) != nil {
		dir = os.TempDir()
	}
	f, err := openLockFile(filepath.Join(dir, "slipway-usb-"+name))
	if errors.Is(err, os.ErrPermission) {
		f, err = openLockFile(filepath.Join(os.TempDir(), "slipway-usb-"+name))
	}
	if err != nil {
		return nil, err
	}
	if err := localfile.TryLock(f); err != nil {
		f.Close()
		if errors.Is(err, localfile.ErrLocked) {
			return nil, errors.New(busy)
		}
		return nil, err
	}
	return f, nil
}

// openLockFile opens a lock file, and creates it only if it does not exist. In a folder that
// everybody may write, the kernel refuses O_CREATE for another user's file, even for root.
func openLockFile(path string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.OpenFile(path, flags|os.O_CREATE, 0o644)
	}
	return f, err
}

// trapScript makes bash print each failing command that initrd-flash ignores.
const trapScript = `case $0 in *initrd-flash) trap 'echo "slipway: status $?: $BASH_COMMAND" >&2' ERR ;; esac
`

// runScript runs the script with a time limit for each stage, unmounts the board's disk, keeps logs
// and explains a failure. The script inherits the lock, because it may outlive a killed Slipway.
func (r *flashRun) runScript(ctx context.Context, lock *os.File) error {
	err := r.runStages(ctx, run.Command{Argv: r.pkg.Argv(r.board.Port, r.board.Keys), Log: filepath.Join(r.board.Logs, "output.log"), Hold: lock})
	released := r.host.unmountBoard(r.board.Port, r.sessionID())
	r.keepLogs()
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("%w\n  the board is not whole; %s", err, recoverAgain), released)
	}
	return errors.Join(r.explainEnd(err), released)
}

// runStages runs a script of the package in the board's folder, with a time limit for each stage.
func (r *flashRun) runStages(ctx context.Context, c run.Command) (err error) {
	if c.Env, err = r.environment(); err != nil {
		return err
	}
	ctx, r.stop = context.WithCancelCause(ctx)
	defer r.stop(nil)
	r.startStage()
	defer r.stopClock()
	c.Dir, c.Unset, c.Line = r.board.Dir, scriptVars, r.readLine
	return run.Run(ctx, c)
}

// environment returns the script's variables. It writes the trap script, which BASH_ENV names.
func (r *flashRun) environment() ([]string, error) {
	hook := filepath.Join(r.board.Dir, ".slipway-trap")
	if err := os.WriteFile(hook, []byte(trapScript), 0o600); err != nil {
		return nil, err
	}
	// Without a serial number the script takes any board's disk, unless the last variable is set.
	env := []string{"LC_ALL=C", "BASH_ENV=" + hook, "TEGRAFLASH_CHECK_USB_INSTANCE=yes"}
	for _, name := range slices.Sorted(maps.Keys(r.board.Module)) {
		env = append(env, name+"="+r.board.Module[name])
	}
	return env, nil
}

// readLine passes a line of output to the transcript, shows progress, and starts a stage's clock.
func (r *flashRun) readLine(text string) {
	r.mu.Lock()
	moved := r.transcript.readLine(text)
	says := r.transcript.describe()
	r.mu.Unlock()
	if moved {
		r.startStage()
	}
	r.step.Detail(plaintext.OneLine(says))
}

// startStage ends the limit and progress of the stage before, if any, and starts the current's.
func (r *flashRun) startStage() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clock != nil {
		r.clock.Stop()
		r.step.Add(1)
	}
	s := r.transcript.current()
	r.clock = time.AfterFunc(stageLimit(s), func() { r.stopOverdue(s) })
	r.step.Detail(r.transcript.describe())
}

// stopClock ends the current stage's time limit for good: the script has ended.
func (r *flashRun) stopClock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.clock.Stop()
}

// stageLimit returns the time limit of a stage. Tests set other ones.
var stageLimit = func(s stage) time.Duration { return s.limit }

// overdueError is the error of a stage that exceeded its limit.
type overdueError struct {
	stage stage
	limit time.Duration
}

func (o overdueError) Error() string {
	return fmt.Sprintf("%s took more than %v", o.stage.title, o.limit)
}

// stopOverdue stops the script if the stage still runs.
func (r *flashRun) stopOverdue(s stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && r.transcript.current().name == s.name {
		r.stop(overdueError{s, stageLimit(s)})
	}
}

// explainEnd returns nil if the script and the board report success. Else it returns an error with
// the stage, and the meaning of a known failure in the output or in the logs of NVIDIA's tools.
func (r *flashRun) explainEnd(err error) error {
	t := r.transcript
	if err == nil {
		if said := t.findFault(); said != "" {
			err = errors.New(said)
		} else if err = r.boardComplains(); err == nil {
			return nil
		}
	}
	next := ""
	if late, is := errors.AsType[overdueError](err); is {
		err, next = late, late.stage.hangs
	} else {
		err = fmt.Errorf("while %s: %w", t.current().title, err)
	}
	r.searchLogs()
	if t.known >= 0 {
		f := failures[t.known]
		next = f.means + ": " + f.next
	}
	if next != "" {
		err = fmt.Errorf("%w\n  what it is: %s", err, next)
	}
	return fmt.Errorf("%w\n  logs: %s", err, r.board.Logs)
}

// searchLogs searches each kept log's last MiB for known failures. Of these and the transcript's,
// it keeps in transcript.known the one that is first in failures.
func (r *flashRun) searchLogs() {
	t := r.transcript
	for _, path := range append(listPaths(r.board.Logs), listPaths(filepath.Join(r.board.Logs, "device-logs"))...) {
		for line := range strings.Lines(string(localfile.Tail(path, 1<<20))) {
			if i := findFailure(plaintext.OneLine(line)); i >= 0 && (t.known < 0 || i < t.known) {
				t.known = i
			}
		}
	}
}

// boardComplains returns an error with the first error line in the last MiB of the board's logs.
// The board reports SUCCESS even if a partition table that it checked is broken.
func (r *flashRun) boardComplains() error {
	for _, path := range r.boardLogs() {
		for line := range strings.Lines(string(localfile.Tail(path, 1<<20))) {
			if complaint().MatchString(line) {
				return fmt.Errorf("the board reports success, but its %s says: %s", plaintext.OneLine(filepath.Base(path)), shorten(strings.TrimSpace(line)))
			}
		}
	}
	return nil
}

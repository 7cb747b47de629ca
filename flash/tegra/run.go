package tegra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/lock"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// Board is one board that is flashed, and what is the matter of this one alone.
type Board struct {
	Port   string
	Dir    string // a copy of the package that nothing else uses: the scripts write into it
	Logs   string // a folder that keeps what was said
	Limits map[string]time.Duration
	Module map[string]string // what the module's EEPROM would say, where it is empty
	Keys   Keys
}

// Result is what came of a flash that went well.
type Result struct {
	Verdict string // in the board's own word
	Logs    string
	Seconds float64
}

// moduleNames are the variables by which scripts are told of a module instead of
// asking it.
var moduleNames = []string{"BOARDID", "FAB", "BOARDSKU", "BOARDREV", "CHIPREV", "CHIP_SKU", "RAMCODE"}

// private are all variables of the environment that steer the scripts. Whatever the
// user's shell has of them was meant for another board.
var private = append([]string{"serial_number", "fuselevel", "MACHINE", "BR_CID", "BASH_ENV", "ENV", "PYTHONPATH", "usb_instance"}, moduleNames...)

// ModuleNames are the names that board.yml may set in flash.module.
func ModuleNames() []string { return slices.Clone(moduleNames) }

// Argv is the command that flashes a board on a port, in the package's folder.
func (p *Package) Argv(port string, keys Keys) []string {
	script := []string{"bash", "./initrd-flash"}
	if p.Flow == Direct {
		script = []string{"sh", "./doflash.sh"}
	}
	return slices.Concat(script, []string{"--usb-instance", port}, keys.argv())
}

// Ready says why the package cannot be put onto a board from this machine.
func (p *Package) Ready(ctx context.Context) error {
	return errors.Join(p.lacks(ctx, p.Flow), rootless(ctx))
}

// Flash puts the package onto one board. The port is locked meanwhile, and nothing is
// left running or mounted, however it ends.
func (p *Package) Flash(ctx context.Context, h Host, b Board) (Result, error) {
	r := &flashRun{pkg: p, host: h, board: b, transcript: newTranscript(flows[p.Flow]), began: time.Now()}
	result, err := r.flash(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("USB port %s: %w", b.Port, err)
	}
	return result, nil
}

// flashRun is one script at work.
type flashRun struct {
	pkg   *Package
	host  Host
	board Board
	step  *progress.Step
	began time.Time

	mu         sync.Mutex // the transcript is the output's and the clock's
	transcript *transcript
	clock      *time.Timer
	stop       context.CancelCauseFunc
	over       bool
}

func (r *flashRun) flash(ctx context.Context) (Result, error) {
	if err := CheckPort(r.board.Port); err != nil {
		return Result{}, err
	}
	if strings.ContainsAny(r.board.Dir, " \t\n") {
		return Result{}, fmt.Errorf("%q: NVIDIA's scripts do not work in a folder with a space in its name; move it", r.board.Dir)
	}
	lock, err := r.host.lock(r.board.Port)
	if err != nil {
		return Result{}, err
	}
	defer lock.Close()
	if err := r.pkg.Suits(r.host, r.board.Port); err != nil {
		return Result{}, err
	}
	if r.pkg.takes {
		alone, err := r.host.lockAny()
		if err != nil {
			return Result{}, err
		}
		defer alone.Close()
	}
	if err := r.pkg.Aims(r.host, r.board.Port); err != nil {
		return Result{}, err
	}
	if err := os.MkdirAll(r.board.Logs, 0o755); err != nil {
		return Result{}, err
	}
	r.step = progress.Start(ctx, "flash "+r.board.Port, int64(len(r.transcript.flow.stages)), progress.Tasks)
	err = r.work(ctx, lock)
	r.step.End(fmt.Sprintf("%s, %s in %.0f s", r.pkg.Flow, r.word(), time.Since(r.began).Seconds()), err)
	if err != nil {
		return Result{}, err
	}
	return Result{Verdict: r.word(), Logs: r.board.Logs, Seconds: time.Since(r.began).Seconds()}, nil
}

// word is what a success is by.
func (r *flashRun) word() string {
	if r.transcript.status != "" {
		return "the board reports " + r.transcript.status
	}
	return "the script ended well"
}

// Suits refuses a board of another chip.
func (p *Package) Suits(h Host, port string) error {
	found, err := At(h.Sys, port)
	if err != nil {
		return err
	}
	if p.Chip != "" && found.Chip != p.Chip {
		return fmt.Errorf("the board there is a %s (%s), and the package is for %s: it was built for another board", found.Module, found.Chip, p.Chip)
	}
	return nil
}

// lock keeps a second flash off the port.
func (h Host) lock(port string) (*os.File, error) {
	return h.lockAs(port, "another flash is at work on this port; wait for it")
}

// lockAny keeps a second flash by scripts that take any board off this machine: a board
// that is being flashed leaves the bus at times, and comes back in recovery mode.
func (h Host) lockAny() (*os.File, error) {
	return h.lockAs("any", "another board is being flashed by scripts that do not say which board is meant; wait for it")
}

func (h Host) lockAs(name, busy string) (*os.File, error) {
	dir := filepath.Join(h.Run, "lock")
	if os.MkdirAll(dir, 0o755) != nil {
		dir = os.TempDir()
	}
	f, err := lockFile(filepath.Join(dir, "slipway-usb-"+name))
	if errors.Is(err, os.ErrPermission) {
		f, err = lockFile(filepath.Join(os.TempDir(), "slipway-usb-"+name))
	}
	if err != nil {
		return nil, err
	}
	if err := lock.Try(f); err != nil {
		f.Close()
		if errors.Is(err, lock.ErrHeld) {
			return nil, errors.New(busy)
		}
		return nil, err
	}
	return f, nil
}

// lockFile opens a file that may be another user's. In a folder where everybody may
// write the kernel refuses even root to create what is there already and another's.
func lockFile(path string) (*os.File, error) {
	const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, os.ErrNotExist) {
		f, err = os.OpenFile(path, flags|os.O_CREATE, 0o644)
	}
	return f, err
}

// trap makes bash say which command of the script itself failed where the script goes
// on as if nothing were. Only the script's own shell sets it.
const trap = `case $0 in *initrd-flash) trap 'echo "slipway: status $?: $BASH_COMMAND" >&2' ERR ;; esac
`

// work runs the script, which holds the lock with us: where this process is killed, what
// it began is still at the board.
func (r *flashRun) work(ctx context.Context, lock *os.File) error {
	env, err := r.environment()
	if err != nil {
		return err
	}
	limited, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r.stop = stop
	r.enter()
	log := filepath.Join(r.board.Logs, "output.log")
	err = run.Run(limited, run.Command{
		Argv: r.pkg.Argv(r.board.Port, r.board.Keys), Dir: r.board.Dir, Env: env, Unset: private, Log: log, Line: r.line, Hold: lock,
	})
	r.leave()
	released := r.host.release(r.board.Port, r.session())
	r.keepLogs()
	if ctx.Err() != nil {
		return errors.Join(fmt.Errorf("%w\n  the board is not whole; %s", err, recoverAgain), released)
	}
	return errors.Join(r.explainEnd(err), released)
}

func (r *flashRun) environment() ([]string, error) {
	hook := filepath.Join(r.board.Dir, ".slipway-trap")
	if err := os.WriteFile(hook, []byte(trap), 0o600); err != nil {
		return nil, err
	}
	// Without a serial number the script takes the first disk that comes, be it of
	// another board, unless this is set.
	env := []string{"LC_ALL=C", "BASH_ENV=" + hook, "TEGRAFLASH_CHECK_USB_INSTANCE=yes"}
	for _, name := range slices.Sorted(maps.Keys(r.board.Module)) {
		env = append(env, name+"="+r.board.Module[name])
	}
	return env, nil
}

// line is called with each line of output.
func (r *flashRun) line(text string) {
	r.mu.Lock()
	moved := r.transcript.line(text)
	says := r.transcript.says()
	r.mu.Unlock()
	if moved {
		r.enter()
	}
	r.step.Detail(plaintext.OneLine(says))
}

// enter starts the clock of the stage that began.
func (r *flashRun) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clock != nil {
		r.clock.Stop()
		r.step.Add(1)
	}
	s := r.transcript.stage()
	r.clock = time.AfterFunc(r.limit(s), func() { r.late(s) })
	r.step.Detail(r.transcript.says())
}

func (r *flashRun) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	r.clock.Stop()
}

func (r *flashRun) limit(s stage) time.Duration {
	if d := r.board.Limits[s.name]; d > 0 {
		return d
	}
	return s.limit
}

// overdue is a stage that did not end in its time.
type overdue struct {
	stage stage
	limit time.Duration
}

func (o overdue) Error() string {
	return fmt.Sprintf("%s took more than %v (board.yml: flash.limitsSec.%s)", o.stage.title, o.limit, o.stage.name)
}

func (r *flashRun) late(s stage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over && r.transcript.stage().name == s.name {
		r.stop(overdue{s, r.limit(s)})
	}
}

// explainEnd says what came of it, and what to do. The failures that are known show in the
// script's own log, to which it diverts most of what NVIDIA's programs say, or in the
// board's.
func (r *flashRun) explainEnd(err error) error {
	t := r.transcript
	if err == nil {
		if said := t.verdict(); said != "" {
			err = errors.New(said)
		} else if err = r.boardComplains(); err == nil {
			return nil
		}
	}
	var late overdue
	next := ""
	if errors.As(err, &late) {
		err, next = late, late.stage.hangs
	} else {
		err = fmt.Errorf("while %s: %w", t.stage().title, err)
	}
	r.searchLogs()
	if t.known >= 0 {
		f := failures[t.known]
		next = f.means + ": " + f.next
	}
	return explained(err, next, r.board.Logs)
}

func explained(err error, next, logs string) error {
	if next != "" {
		err = fmt.Errorf("%w\n  what it is: %s", err, next)
	}
	return fmt.Errorf("%w\n  logs: %s", err, logs)
}

// searchLogs looks for known failures in all that was kept.
func (r *flashRun) searchLogs() {
	t := r.transcript
	for _, path := range append(within(r.board.Logs), within(filepath.Join(r.board.Logs, "device-logs"))...) {
		for line := range strings.Lines(lastOf(path)) {
			if i := recognise(plaintext.OneLine(line)); i >= 0 && (t.known < 0 || i < t.known) {
				t.known = i
			}
		}
	}
}

// lastOf is the end of a log, at most a MiB.
func lastOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 1 << 20
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-most), most)) // what can be read of it
	return string(data)
}

// boardComplains looks into the logs that the board sent along: it reports SUCCESS
// also where a partition table that it checked was broken.
func (r *flashRun) boardComplains() error {
	for _, path := range r.boardLogs() {
		for line := range strings.Lines(lastOf(path)) {
			if complaint.MatchString(line) {
				return fmt.Errorf("the board reports success, but its %s says: %s", plaintext.OneLine(filepath.Base(path)), short(strings.TrimSpace(line)))
			}
		}
	}
	return nil
}

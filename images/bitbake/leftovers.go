package bitbake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// bitbake's server, its workers and their tasks are sessions of their own. They
// outlive a client that was killed, and keep the folder's lock.

// process is a process of this machine.
type process struct {
	pid, parent int
	began       string // tells it from a later one with the same number
	argv        string
}

func (p process) String() string { return fmt.Sprintf("%d (%s)", p.pid, truncateText(p.argv, 80)) }

// listProcesses returns all running processes that this user may see in /proc.
func listProcesses() []process {
	names, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	var all []process
	for _, dir := range names {
		if p, err := readProcess(dir); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// readProcess reads a process from its folder in /proc. It returns an error for a zombie.
func readProcess(dir string) (process, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, err
	}
	// "12 (a name, of any characters) S parent ... the time it began is the 22nd"
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	pid, err := strconv.Atoi(filepath.Base(dir))
	if err != nil || len(fields) < 20 || bytes.ContainsAny(fields[0], "ZX") {
		return process{}, errors.New("it has ended")
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return process{}, err
	}
	argv, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	return process{pid, parent, string(fields[19]), strings.ReplaceAll(string(argv), "\x00", " ")}, err
}

// isRunning reports whether the process still runs: one with the same number and start time.
func (p process) isRunning() bool {
	now, err := readProcess(fmt.Sprintf("/proc/%d", p.pid))
	return err == nil && now.began == p.began
}

// sendSignal signals the process if it still runs. If this user may not, sendSignal uses sudo
// without a password, because Isar's tasks run programs as root.
func (p process) sendSignal(s unix.Signal) {
	if !p.isRunning() {
		return
	}
	if err := unix.Kill(p.pid, s); errors.Is(err, unix.EPERM) { // another error: it has ended
		_ = run.Run(context.Background(), run.Command{Argv: []string{"sudo", "-n", "kill", "-s", strconv.Itoa(int(s)), strconv.Itoa(p.pid)}})
	}
}

// brokenOff holds the task processes that an interrupt breaks off. Some outlive the worker that
// started them, and then only their number tells them from other programs.
type brokenOff struct {
	mu    sync.Mutex
	tasks []process
}

// remember adds the processes to the tasks that bitbake breaks off.
func (b *brokenOff) remember(all []process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = append(b.tasks, all...)
}

// stillRunning returns those of the tasks that have not ended, and their child processes.
func (b *brokenOff) stillRunning() []process {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(b.tasks), func(p process) bool { return !p.isRunning() })
	return withChildren(left, listProcesses())
}

// lockHolder returns the ID of the process with the build folder's lock: 0 if none, -1 if unknown.
// A starting server has the lock before it writes its ID there.
func (t Tree) lockHolder() int {
	f, err := os.Open(filepath.Join(t.Build, "bitbake.lock"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		return -1
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	pid := -1
	_, _ = fmt.Fscan(io.LimitReader(f, 64), &pid) // an error leaves it
	return pid
}

// leftoverProcesses returns the bitbake servers and workers of this build folder and all their
// children, the holder of the lock first. A server releases the lock before its process has ended.
func (t Tree) leftoverProcesses() []process {
	all := listProcesses()
	server := t.lockHolder()
	var found []process
	for _, p := range all {
		ofBitbake := strings.Contains(p.argv, "/bitbake-server ") || strings.Contains(p.argv, "/bitbake-worker ")
		switch {
		case !(p.pid == server || ofBitbake) || !t.worksHere(p):
		case p.pid == server:
			found = slices.Insert(found, 0, p)
		default:
			found = append(found, p)
		}
	}
	return withChildren(found, all)
}

// withChildren returns the processes in found and all their descendants in all.
func withChildren(found, all []process) []process {
	for i := 0; i < len(found); i++ { // found grows by the children
		for _, p := range all {
			if p.parent == found[i].pid && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	return found
}

// worksHere reports whether a process has the build folder as its working directory.
func (t Tree) worksHere(p process) bool {
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
	build, resolved := filepath.EvalSymlinks(t.Build)
	return err == nil && resolved == nil && at == build
}

// stopLeftovers ends the processes of an earlier Slipway build that was killed. Another bitbake
// that builds here is an error. A server that builds nothing stays, for this build.
func (t Tree) stopLeftovers(ctx context.Context) error {
	killed := t.wasCutOff(RecordName) || t.wasCutOff(dryRunRecordName)
	if !killed && t.lockHolder() == 0 {
		return nil
	}
	left := t.leftoverProcesses()
	working := slices.ContainsFunc(left, func(p process) bool { return strings.Contains(p.argv, "/bitbake-worker ") })
	switch {
	case killed:
		return progress.Run(ctx, "clear", func(s *progress.Step) (string, error) {
			s.Detail("an earlier build was cut off")
			return fmt.Sprintf("%d processes of an earlier build that was cut off", len(left)), t.stopProcesses(left)
		})
	case working:
		return fmt.Errorf("%s: another bitbake builds here, process %v; wait for it, or end it: kill %d", t.Build, left[0], left[0].pid)
	}
	return nil
}

// wasCutOff reports whether the record file describes a run that never ended.
func (t Tree) wasCutOff(record string) bool {
	earlier, err := openRecord(filepath.Join(t.Dir, record))
	return err == nil && earlier.State == Running
}

// How long bitbake's processes have to end by themselves, and then the kernel.
const (
	termTimeout = 10 * time.Second
	killTimeout = 5 * time.Second
	exitPoll    = 50 * time.Millisecond
)

// stopProcesses sends SIGTERM to the processes, or only to the server if it holds the lock, and
// SIGKILL to those that remain. Then it removes the sockets that no server answers any more.
func (t Tree) stopProcesses(left []process) error {
	first := left
	if len(left) > 0 && left[0].pid == t.lockHolder() {
		first = left[:1]
	}
	for _, p := range first {
		p.sendSignal(unix.SIGTERM)
	}
	for _, p := range waitForExit(left, termTimeout) {
		p.sendSignal(unix.SIGKILL)
	}
	if still := waitForExit(left, killTimeout); len(still) > 0 {
		return fmt.Errorf("%s: bitbake's process %v does not end; end it and build again", t.Build, still[0])
	}
	if t.lockHolder() != 0 {
		return nil
	}
	return localfile.Remove(filepath.Join(t.Build, "bitbake.sock"), filepath.Join(t.Build, "hashserve.sock"))
}

// waitForExit waits at most the time most for the processes, and returns those that still run.
func waitForExit(all []process, most time.Duration) []process {
	for until := time.Now().Add(most); ; time.Sleep(exitPoll) {
		all = slices.DeleteFunc(slices.Clone(all), func(p process) bool { return !p.isRunning() })
		if len(all) == 0 || time.Now().After(until) {
			return all
		}
	}
}

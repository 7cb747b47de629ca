package bitbake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/progress"
)

// bitbake's server, its workers and their tasks are sessions of their own. They
// outlive a client that was killed, and keep the folder's lock.

// process is one of the machine's.
type process struct {
	pid, parent int
	began       string // tells it from a later one with the same number
	argv        string
}

func (p process) String() string { return fmt.Sprintf("%d (%s)", p.pid, cut(p.argv, 80)) }

// processes are all that this user may see.
func processes() []process {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var all []process
	for _, dir := range names {
		if p, err := processAt(dir); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func processAt(dir string) (process, error) {
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

func (p process) runs() bool {
	now, err := processAt(fmt.Sprintf("/proc/%d", p.pid))
	return err == nil && now.began == p.began
}

func (p process) signal(s unix.Signal) {
	if p.runs() {
		_ = unix.Kill(p.pid, s) // it may end before
	}
}

// server is the process that holds the build folder's lock; 0 where none does.
func (t Tree) server() int {
	f, err := os.Open(filepath.Join(t.Build, "bitbake.lock"))
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	var text [64]byte
	n, _ := f.Read(text[:])
	words := strings.Fields(string(text[:n]))
	if len(words) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(words[0])
	return pid
}

// left are the servers of this build folder and its workers, with all below them. The
// server that holds the lock comes first. A server that ends gives the lock back before
// its process has ended.
func (t Tree) left() []process {
	all := processes()
	server := t.server()
	var found []process
	for _, p := range all {
		ofBitbake := strings.Contains(p.argv, "/bitbake-server ") || strings.Contains(p.argv, "/bitbake-worker ")
		if (p.pid == server || ofBitbake) && t.isIn(p) {
			found = append(found, p)
		}
	}
	slices.SortStableFunc(found, func(a, b process) int {
		return boolInt(b.pid == server) - boolInt(a.pid == server)
	})
	for i := 0; i < len(found); i++ { // found grows by the children
		for _, p := range all {
			if p.parent == found[i].pid && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	return found
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// isIn says whether a process works in the build folder.
func (t Tree) isIn(p process) bool {
	at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
	build, resolved := filepath.EvalSymlinks(t.Build)
	return err == nil && resolved == nil && at == build
}

// clear ends what an earlier build of ours that was killed left running here. A
// server that only waits for its next client stays: this build is one. Somebody
// else's build is left alone.
func (t Tree) clear(ctx context.Context) error {
	killed := t.cutOff(RecordName) || t.cutOff(lookRecordName)
	if !killed && t.server() == 0 {
		return nil
	}
	left := t.left()
	working := slices.ContainsFunc(left, func(p process) bool { return strings.Contains(p.argv, "/bitbake-worker ") })
	switch {
	case killed:
		return progress.Run(ctx, "clear", func(s *progress.Step) (string, error) {
			s.Detail("an earlier build was cut off")
			return fmt.Sprintf("%d processes of an earlier build that was cut off", len(left)), t.stop(left)
		})
	case working:
		return fmt.Errorf("%s: another bitbake builds here, process %v; wait for it, or end it: kill %d", t.Build, left[0], left[0].pid)
	}
	return nil
}

func (t Tree) cutOff(record string) bool {
	earlier, err := open(filepath.Join(t.Dir, record))
	return err == nil && earlier.State == Running
}

// How long bitbake's processes have to end by themselves, and then the kernel.
const (
	toEnd  = 10 * time.Second
	toDie  = 5 * time.Second
	settle = 50 * time.Millisecond
)

// stop ends the processes, and removes the sockets that nobody answers any more.
func (t Tree) stop(left []process) error {
	if len(left) > 0 {
		left[0].signal(unix.SIGTERM)
		if left[0].pid != t.server() {
			for _, p := range left {
				p.signal(unix.SIGTERM)
			}
		}
	}
	for _, p := range outlast(left, toEnd) {
		p.signal(unix.SIGKILL)
	}
	if still := outlast(left, toDie); len(still) > 0 {
		return fmt.Errorf("%s: bitbake's process %v does not end; end it and build again", t.Build, still[0])
	}
	if t.server() != 0 {
		return nil
	}
	for _, name := range []string{"bitbake.sock", "hashserve.sock"} {
		if err := os.Remove(filepath.Join(t.Build, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// outlast are the processes that still run after that long.
func outlast(all []process, most time.Duration) []process {
	for until := time.Now().Add(most); ; time.Sleep(settle) {
		all = slices.DeleteFunc(slices.Clone(all), func(p process) bool { return !p.runs() })
		if len(all) == 0 || time.Now().After(until) {
			return all
		}
	}
}

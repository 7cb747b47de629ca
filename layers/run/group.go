package run

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runToEnd runs c, and returns its error with the lines of the tail. If ctx ends, or c is silent,
// it ends the process group, unless c is Gentle or has Stop.
func runToEnd(ctx context.Context, c Command, stdout, stderr io.Writer, tail *tailWriter) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	cmd := Prepare(ctx, c)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Start()
	if err == nil {
		if c.Silence > 0 {
			go endIfSilent(ctx, c.Silence, cmd.Process.Pid, end)
		}
		if !c.Gentle && c.Stop == nil {
			endGroup(ctx, cmd.Process.Pid)
		}
		err = cmd.Wait()
	}
	tail.flush()
	return exitError(ctx, c, err, tail.String())
}

// endGroup waits until the leader of a process group has ended. If ctx has ended too, it gives the
// other processes the rest of the grace period and then kills them. It does not reap the leader, so
// that no other process gets the leader's number.
func endGroup(ctx context.Context, leader int) {
	most := grace
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(most, cancel) })()
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, leader, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil || ctx.Err() == nil {
		return
	}
	awaitGroup(late, leader)
	_ = unix.Kill(-leader, unix.SIGKILL)
	// SIGKILL ends every process, but the kernel may take a while to do so.
	killed, done := context.WithTimeout(context.Background(), most)
	defer done()
	awaitGroup(killed, leader)
}

// awaitGroup waits until no process of a group runs, or ctx ends.
func awaitGroup(ctx context.Context, group int) {
	for ctx.Err() == nil && len(statsOf(group)) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

// statsOf returns the content of /proc/PID/stat of each process of the group that still runs.
func statsOf(group int) (stats []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended since
		}
		// "12 (a name, of any characters) S parent group"
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 2 && string(fields[2]) == strconv.Itoa(group) && !bytes.ContainsAny(fields[0], "ZX") {
			stats = append(stats, string(stat))
		}
	}
	return stats
}

// ErrSilent is the cause of the Failure of a program that was ended for its Silence.
var ErrSilent = errors.New("silent")

// endIfSilent calls end with ErrSilent when the process group has done nothing for the limit.
func endIfSilent(ctx context.Context, limit time.Duration, group int, end context.CancelCauseFunc) {
	for last, since := "", time.Now(); Sleep(ctx, limit/20) == nil; {
		if now := activity(group); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) >= limit {
			end(ErrSilent)
		}
	}
}

// activity returns a text that changes if a process of the group starts, ends, computes, reads or
// writes, or cannot be read. It leaves out ssh, which gets keep-alives from a silent server too.
func activity(group int) (all string) {
	for _, stat := range statsOf(group) {
		if pid, name, _ := strings.Cut(stat, " "); !strings.HasPrefix(name, "(ssh)") {
			moved, err := os.ReadFile("/proc/" + pid + "/io")
			if err != nil {
				return rand.Text() // it may be at work
			}
			all += stat + string(moved)
		}
	}
	return all
}

package run

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// startAndWait runs cmd. If ctx ends, it ends cmd's process group, unless c is Gentle or has Stop.
func startAndWait(ctx context.Context, c Command, cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	if !c.Gentle && c.Stop == nil {
		endGroup(ctx, cmd.Process.Pid)
	}
	return cmd.Wait()
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
	for ctx.Err() == nil && runsInGroup(group) {
		time.Sleep(10 * time.Millisecond)
	}
}

// runsInGroup reports whether a process of the group still runs.
func runsInGroup(group int) bool {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return false
	}
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended since
		}
		// "12 (a name, of any characters) S parent group"
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 2 && string(fields[2]) == strconv.Itoa(group) && !bytes.ContainsAny(fields[0], "ZX") {
			return true
		}
	}
	return false
}

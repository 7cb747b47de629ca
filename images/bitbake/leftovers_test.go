package bitbake

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
)

// bitbake's server releases its folder's lock, and removes its file, just before its process ends.
func TestServerWithoutLockIsStopped(t *testing.T) {
	here, elsewhere := Tree{Build: t.TempDir()}, Tree{Build: t.TempDir()}
	signals := filepath.Join(here.Build, "signals")
	server := exec.Command("sh", "-c", `trap 'echo TERM >>signals' TERM; echo >ready; until [ -e signals ]; do :; done; sleep 0.5; :`)
	server.Args[0] = "/bitbake/bin/bitbake-server"
	server.Dir = here.Build
	must(t, server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer server.Process.Kill()
	if left := elsewhere.leftoverProcesses(); len(left) > 0 {
		t.Errorf("left of another folder = %v; want nothing", left)
	}
	for !localfile.Exists(filepath.Join(here.Build, "ready")) {
		time.Sleep(time.Millisecond)
	}
	left := here.leftoverProcesses()
	if len(left) != 1 || left[0].pid != server.Process.Pid {
		t.Fatalf("left = %v; want the server, process %d", left, server.Process.Pid)
	}
	must(t, here.stopProcesses(left))
	<-ended
	if got, err := os.ReadFile(signals); err != nil || string(got) != "TERM\n" {
		t.Errorf("signals = %q, %v; want one SIGTERM", got, err)
	}
	if again := here.leftoverProcesses(); len(again) > 0 {
		t.Errorf("left after stop = %v; want nothing", again)
	}
}

// A server has the lock for a while before it writes its process ID there. Its sockets stay.
func TestStopKeepsSocketsOfLockHolder(t *testing.T) {
	for name, tt := range map[string]struct {
		content    string
		held, kept bool
	}{
		"starting":      {"", true, true},
		"no process ID": {"none\n", true, true},
		"running":       {fmt.Sprintf("%d localhost:8200\n", os.Getpid()), true, true},
		"ended":         {fmt.Sprintf("%d\n", os.Getpid()), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			tree := Tree{Build: t.TempDir()}
			lock, socket := filepath.Join(tree.Build, "bitbake.lock"), filepath.Join(tree.Build, "bitbake.sock")
			must(t, os.WriteFile(lock, []byte(tt.content), 0o600))
			must(t, os.WriteFile(socket, nil, 0o600))
			f, err := os.Open(lock)
			must(t, err)
			defer f.Close()
			if tt.held {
				must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
			}
			must(t, tree.stopProcesses(nil))
			if kept := localfile.Exists(socket); kept != tt.kept {
				t.Errorf("the socket is there: %v; want %v", kept, tt.kept)
			}
		})
	}
	tree := Tree{Build: t.TempDir()}
	must(t, os.Symlink("bitbake.lock", filepath.Join(tree.Build, "bitbake.lock")))
	if got := tree.lockHolder(); got != -1 {
		t.Errorf("lockHolder of a lock that cannot be opened = %d; want -1", got)
	}
	if got := (Tree{Build: t.TempDir()}).lockHolder(); got != 0 {
		t.Errorf("lockHolder without a lock = %d; want 0", got)
	}
}

// A task that outlives its worker is ended with what it started meanwhile.
func TestBrokenOff(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read go; sleep 60 & echo started; wait")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	task, err := readProcess(fmt.Sprintf("/proc/%d", cmd.Process.Pid))
	must(t, err)
	var b brokenOff
	b.remember([]process{task, {pid: 1, began: "long ago"}})
	fmt.Fprintln(in, "go")
	_, err = bufio.NewReader(out).ReadString('\n')
	must(t, err)
	left := b.stillRunning()
	for range 1000 { // a process that just begins has no words yet
		if len(left) == 2 && strings.Contains(left[1].argv, "sleep 60") {
			break
		}
		time.Sleep(10 * time.Millisecond)
		left = b.stillRunning()
	}
	if len(left) != 2 || left[0].pid != task.pid || !strings.Contains(left[1].argv, "sleep 60") {
		t.Errorf("stillRunning = %v; want the task and its sleep", left)
	}
	must(t, Tree{Build: t.TempDir()}.stopProcesses(left))
	if left := waitForExit(left, 0); len(left) > 0 {
		t.Errorf("after stopProcesses there are %v", left)
	}
}

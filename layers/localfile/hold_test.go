package localfile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// heldBy makes a lock file that names a process. A child holds the lock until its input ends.
func heldBy(t *testing.T, pid int) (name string, release func()) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "lock")
	f, err := OpenLock(name, 0o644)
	if err == nil {
		err = TryLock(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "process %d, since today\n", pid)
	child := exec.CommandContext(t.Context(), "cat")
	child.ExtraFiles = []*os.File{f}
	input, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return name, func() { input.Close(); _ = child.Wait() }
}

func TestLockOfALivingProcess(t *testing.T) {
	name, release := heldBy(t, os.Getpid())
	defer release()
	if _, err := Hold(name); !errors.Is(err, ErrHeld) {
		t.Errorf("Hold = %v; want %v", err, ErrHeld)
	}
}

// A child of a killed process has the lock until it becomes another program.
func TestLockOfAKilledProcess(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	name, release := heldBy(t, dead.Process.Pid)
	go release()
	unlock, err := Hold(name)
	if err != nil {
		t.Fatalf("Hold = %v; want the lock once the child has ended", err)
	}
	unlock()
}

// A process that looks whether the lock is free has it for a moment.
func TestLockOfALook(t *testing.T) {
	defer func(limit time.Duration) { lookLimit = limit }(lookLimit)
	lookLimit = execLimit
	name, release := heldBy(t, os.Getpid())
	go release()
	unlock, err := Hold(name)
	if err != nil {
		t.Fatalf("Hold = %v; want the lock once it is free", err)
	}
	unlock()
}

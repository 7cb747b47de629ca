package fleet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"slipway/layers/localfile"
)

// heldBy makes a lock file that names a process. A child holds the lock until its input ends.
func heldBy(t *testing.T, pid int) (name string, release func()) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "lock")
	f, err := localfile.OpenLock(name, 0o644)
	if err == nil {
		err = localfile.TryLock(f)
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
	if _, err := lockFile(name); !errors.Is(err, errHeld) {
		t.Errorf("lockFile = %v; want %v", err, errHeld)
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
	unlock, err := lockFile(name)
	if err != nil {
		t.Fatalf("lockFile = %v; want the lock once the child has ended", err)
	}
	unlock()
}

package bitbake

import (
	"os/exec"
	"testing"
)

// bitbake's server gives the lock of its folder back, and removes its file, a moment before
// its process has ended.
func TestServerWithoutLockIsStopped(t *testing.T) {
	here, elsewhere := Tree{Build: t.TempDir()}, Tree{Build: t.TempDir()}
	server := exec.Command("sleep", "600")
	server.Args[0] = "/bitbake/bin/bitbake-server"
	server.Dir = here.Build
	must(t, server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer server.Process.Kill()
	if left := elsewhere.leftoverProcesses(); len(left) > 0 {
		t.Errorf("left of another folder = %v; want nothing", left)
	}
	left := here.leftoverProcesses()
	if len(left) != 1 || left[0].pid != server.Process.Pid {
		t.Fatalf("left = %v; want the server, process %d", left, server.Process.Pid)
	}
	must(t, here.stopProcesses(left))
	<-ended
	if again := here.leftoverProcesses(); len(again) > 0 {
		t.Errorf("left after stop = %v; want nothing", again)
	}
}

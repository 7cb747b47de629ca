package host

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A process that starts again is in the group that its user was added to meanwhile, and
// has the same arguments and environment. It does not start again where sudo refuses.
func TestStartAgain(t *testing.T) {
	const again = "SLIPWAY_TEST_AGAIN"
	switch os.Getenv(again) {
	case "namespace": // as root, in a mount namespace of its own
		startAgainAsNobody(t)
		return
	case "nobody":
		group, err := user.LookupGroup("games")
		if err != nil {
			t.Fatal(err)
		}
		groups, err := exec.Command("id", "-Gn").Output()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("%q in %s", os.Args[2:], groups)
		if !slices.Contains(strings.Fields(string(groups)), group.Name) {
			os.Args = os.Args[:1] // as Mage's program does
			fmt.Println("it says:", RestartInGroup(t.Context(), os.Stdout, group.Gid))
		}
		return
	}
	if _, err := exec.LookPath("sudo"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and the Debian package sudo")
	}
	cmd := exec.Command("unshare", "--mount", os.Args[0], "-test.run=^TestStartAgain$", "-test.v")
	cmd.Env = append(os.Environ(), again+"=namespace")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func startAgainAsNobody(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "slipway-again") // nobody must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	do := func(argv ...string) string {
		t.Helper()
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), "SLIPWAY_TEST_AGAIN=nobody", "HOME=/nonexistent", "TMPDIR=/tmp")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
		return string(out)
	}
	self, groups, sudoers := filepath.Join(dir, "self"), filepath.Join(dir, "group"), filepath.Join(dir, "sudoers.d")
	do("chmod", "755", dir)
	do("cp", os.Args[0], self)
	do("cp", "/etc/group", groups)
	do("mkdir", sudoers)
	do("mount", "--bind", groups, "/etc/group")
	do("mount", "--bind", sudoers, "/etc/sudoers.d")
	asNobody := []string{"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", self, "-test.run=^TestStartAgain$", "an argument", ""}

	for _, tt := range []struct{ name, sudo, group, want string }{
		{"a user without sudo", "", "", "it says: not root to change the groups of a process"},
		{"a user who is not in the group", "nobody ALL=(ALL) NOPASSWD: ALL\n", "", "it says: not root to change the groups of a process"},
		{"a new member of the group", "nobody ALL=(ALL) NOPASSWD: ALL\n", "nobody", "Starting again, to be in the new group.\n[\"an argument\" \"\"] in nogroup games\n"},
	} {
		if err := os.WriteFile(filepath.Join(sudoers, "test"), []byte(tt.sudo), 0o440); err != nil {
			t.Fatal(err)
		}
		if tt.group != "" {
			do("sed", "-i", "s/^games:.*:$/&"+tt.group+"/", groups)
			do("umount", "/etc/group")
			do("mount", "--bind", groups, "/etc/group")
		}
		got := do(asNobody...)
		if !strings.Contains(got, tt.want) || strings.Count(got, "Starting again") > 1 {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// What is run as root is shown first.
func TestRunAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	file := filepath.Join(t.TempDir(), "made")
	var said strings.Builder
	if err := RunAsRoot(t.Context(), &said, []string{"touch", file}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil || said.String() != "Running:\n  touch "+file+"\n" {
		t.Errorf("RunAsRoot said %q, and: %v", &said, err)
	}
	if err := RunAsRoot(t.Context(), io.Discard, []string{"false"}); err == nil {
		t.Error("RunAsRoot says nothing of a command that fails")
	}
}

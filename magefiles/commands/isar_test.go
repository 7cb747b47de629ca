package commands

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"slipway/images/bitbake/bitbaketest"
)

// Isar's bitbake builds an image, which boots, takes the container and passes its suites.
// The second run has nothing to build.
func TestUpIsar(t *testing.T) {
	isar := os.Getenv("SLIPWAY_ISAR")
	if isar == "" {
		t.Skip("SLIPWAY_ISAR is not set: it names a checkout of Isar (git clone https://github.com/ilbers/isar)")
	}
	builder := builderInGroups(t)
	clone := copyClone(t, builder)
	program := filepath.Join(clone, "slipway") // where the builder may read it
	if out, err := exec.Command("cp", compileProgram(t), program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"passed", "cached"} { // the stage build
		up := exec.CommandContext(t.Context(), program, "up", "isar-amd64")
		up.Dir = clone
		up.Env = append(os.Environ(), "SLIPWAY_LOCAL=isar="+isar, "HOME="+clone,
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*") // the checkout is another user's
		up.SysProcAttr = &syscall.SysProcAttr{Credential: builder}
		up.Cancel = func() error { return up.Process.Signal(os.Interrupt) }
		up.WaitDelay = time.Minute
		if out, err := up.CombinedOutput(); err != nil {
			t.Fatalf("up isar-amd64: %v\n%s", err, out)
		}
		checkIsarReport(t, filepath.Join(clone, "build/isar-amd64/report.json"), want)
	}
	if out, err := exec.Command(program, "audit", filepath.Join(clone, "build/isar-amd64"), "--allow=access /etc/systemd/system/serial-getty@*.service.d/login.conf").CombinedOutput(); err != nil {
		t.Errorf("audit isar-amd64: %v\n%s", err, out)
	}
	checkIsarSignatures(t, filepath.Join(clone, "build/isar-amd64/bitbake/tmp/stamps"), clone)
}

// checkIsarSignatures checks that no input of a task names the folder or the user of this
// build. Otherwise another clone's shared state would never be taken.
func checkIsarSignatures(t *testing.T, stamps, clone string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(stamps, "*/slipway-*/*.sigdata.*"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d files of signatures in %s, %v; want at least 20", len(files), stamps, err)
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := zstd.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		var signature struct {
			Varvals map[string]any
		}
		if err := json.NewDecoder(z).Decode(&signature); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, found := signature.Varvals["SCHROOT_USER"]; found {
			t.Errorf("%s depends on the name of the user", filepath.Base(file))
		}
		for name, value := range signature.Varvals {
			if text, ok := value.(string); ok && strings.Contains(text, clone) {
				t.Errorf("%s: %s = %q names the folder of this build", filepath.Base(file), name, text)
			}
		}
	}
}

// checkIsarReport checks the result of the stage build, and that all suites ran and passed.
func checkIsarReport(t *testing.T, file, build string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Stages []struct{ Name, Status string }
		Suites []struct {
			Name   string
			Checks []struct{ Status string }
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	passed := map[string]int{}
	for _, s := range report.Suites {
		for _, c := range s.Checks {
			if c.Status == "passed" {
				passed[s.Name]++
			}
		}
	}
	for _, suite := range []string{"base", "slots", "containers"} {
		if passed[suite] == 0 {
			t.Errorf("no check of %s passed", suite)
		}
	}
	for _, s := range report.Stages {
		if s.Name == "build" && s.Status != build {
			t.Errorf("stage build: %s; want %s", s.Status, build)
		}
	}
}

// copyClone copies what an image is built of into a folder of the builder's.
func copyClone(t *testing.T, builder *syscall.Credential) string {
	t.Helper()
	dir := bitbaketest.PublicDir(t)
	list := exec.Command("git", "-C", "../..", "ls-files", "-z", "images", "layers/meta-slipway-isar", "recipes", "runtime-hook")
	files, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	cp := exec.Command("cp", "--parents", "--no-dereference", "--target-directory", dir)
	cp.Args = append(cp.Args, strings.Split(strings.TrimSuffix(string(files), "\x00"), "\x00")...)
	cp.Dir = "../.."
	if out, err := cp.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "--message=copy"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	bitbaketest.Own(t, dir, builder)
	t.Cleanup(func() { // files of root file systems are root's
		rm := exec.CommandContext(context.Background(), "sudo", "-n", "rm", "-rf", "--one-file-system", filepath.Join(dir, "build"))
		if out, err := rm.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	return dir
}

// builderInGroups returns the user who runs bitbake, or nil for this one, with its groups. It skips
// the test if this user is not in the group sbuild.
func builderInGroups(t *testing.T) *syscall.Credential {
	t.Helper()
	u, err := user.Current()
	builder := bitbaketest.Builder(t)
	if builder != nil {
		u, err = user.LookupId(strconv.Itoa(int(builder.Uid)))
	}
	if err != nil {
		t.Fatal(err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		t.Fatal(err)
	}
	sbuild, err := user.LookupGroup("sbuild")
	if err != nil || !slices.Contains(groups, sbuild.Gid) {
		t.Skipf("%s is not in the group sbuild (Debian package sbuild); SLIPWAY_BUILDER names another user", u.Username)
	}
	if builder == nil {
		return nil
	}
	for _, group := range groups {
		if id, err := strconv.ParseUint(group, 10, 32); err == nil {
			builder.Groups = append(builder.Groups, uint32(id))
		}
	}
	return builder
}

// Package bitbaketest finds the real bitbakes for tests, and a user who may run them.
package bitbaketest

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"slipway/layers/run"
)

// Checkouts returns the checkouts of bitbake that SLIPWAY_BITBAKE names, separated by colons. It
// skips the test if that is not set, or if the locale en_US.UTF-8 is missing.
func Checkouts(t *testing.T) []string {
	t.Helper()
	named := os.Getenv("SLIPWAY_BITBAKE")
	if named == "" {
		t.Skip("SLIPWAY_BITBAKE is not set: it names a checkout of bitbake, 1.46 or later (git clone https://git.openembedded.org/bitbake)")
	}
	out, err := run.Output(t.Context(), run.Command{Argv: []string{"locale", "-a"}})
	if err != nil || !bytes.Contains(bytes.ToLower(out), []byte("en_us.utf")) {
		t.Skip("the locale en_US.UTF-8 is missing (Debian package locales; localedef -i en_US -f UTF-8 en_US.UTF-8)")
	}
	return filepath.SplitList(named)
}

// ForUser returns the Checkouts for a test that runs bitbake. bitbake refuses root: ForUser then
// runs the test again as SLIPWAY_BUILDER or nobody, with a copy of testdata, and returns nil.
func ForUser(t *testing.T, testdata string) []string {
	t.Helper()
	checkouts := Checkouts(t)
	if os.Geteuid() != 0 {
		return checkouts
	}
	AsUser(t, testdata)
	return nil
}

// AsUser runs the current test again with args, as the user SLIPWAY_BUILDER or nobody, in a
// PublicDir with a copy of testdata. It fails or skips as that run did, and returns the folder.
func AsUser(t *testing.T, testdata string, args ...string) (dir string) {
	t.Helper()
	name := builderName()
	credential := lookupCredential(t, name)
	dir = copyTestBinary(t, testdata)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "bitbake.test"), append([]string{"-test.v", "-test.run=^" + t.Name() + "$"}, args...)...)
	cmd.Dir = dir
	tmp := filepath.Join(dir, "tmp")
	cmd.Env = append(os.Environ(), "HOME="+tmp, "TMPDIR="+tmp, "SLIPWAY_TESTDATA="+filepath.Join(dir, "testdata"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*") // the checkout is another user's
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("as %s:\n%s", name, out)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(out, []byte("--- SKIP: "+t.Name())) {
		t.Skip("the user " + name + " cannot run it; see above")
	}
	return dir
}

// builderName returns the user of SLIPWAY_BUILDER, or nobody.
func builderName() string { return cmp.Or(os.Getenv("SLIPWAY_BUILDER"), "nobody") }

// Builder returns the user who runs bitbake (SLIPWAY_BUILDER, or nobody), because bitbake refuses
// root. It returns nil if the tests do not run as root: bitbake then runs as the same user.
func Builder(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	return lookupCredential(t, builderName())
}

// Own makes the builder the owner of dir and all files below it. A nil builder changes nothing.
func Own(t *testing.T, dir string, builder *syscall.Credential) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || builder == nil {
			return err
		}
		return os.Lchown(path, int(builder.Uid), int(builder.Gid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// PublicDir returns a new folder that the builder may enter. The end of the test removes it.
func PublicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "slipway-bitbake-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Unpack copies paths of a branch from the first git clone that has it into a PublicDir, and
// returns that. It skips the test if no clone has the branch.
func Unpack(t *testing.T, clones []string, branch string, paths ...string) string {
	t.Helper()
	dir := PublicDir(t)
	for _, clone := range clones {
		for _, ref := range []string{branch, "origin/" + branch} {
			if exec.Command("git", "-C", clone, "rev-parse", "-q", "--verify", ref+"^{commit}").Run() != nil {
				continue
			}
			archive := filepath.Join(dir, "archive.tar")
			args := append([]string{"-C", clone, "archive", "-o", archive, ref}, paths...)
			if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
				t.Fatalf("git %v: %v\n%s", args, err, out)
			}
			if out, err := exec.Command("tar", "-x", "-C", dir, "-f", archive).CombinedOutput(); err != nil {
				t.Fatalf("tar: %v\n%s", err, out)
			}
			if err := os.Remove(archive); err != nil {
				t.Fatal(err)
			}
			return dir
		}
	}
	t.Skipf("%v has no branch %s; fetch it there", clones, branch)
	return ""
}

// lookupCredential returns the IDs of a user and its group. It fails the test if there is none.
func lookupCredential(t *testing.T, name string) *syscall.Credential {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// copyTestBinary makes a PublicDir of the test binary, testdata and a tmp that all may write.
func copyTestBinary(t *testing.T, testdata string) string {
	t.Helper()
	dir := PublicDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	tmp := filepath.Join(dir, "tmp")
	for _, err := range []error{
		run.WriteProgram(filepath.Join(dir, "bitbake.test"), program, 0o755),
		os.CopyFS(filepath.Join(dir, "testdata"), os.DirFS(testdata)),
		os.Mkdir(tmp, 0o777),
		os.Chmod(tmp, 0o777),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

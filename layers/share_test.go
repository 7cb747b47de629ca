package layers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// asUser runs a test once more, as another user of a group, with words in its
// environment, and returns what it printed.
func asUser(t *testing.T, uid, gid uint32, words ...string) (string, error) {
	t.Helper()
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	c.Dir = "/"
	c.Env = append(os.Environ(), append(words, "TMPDIR=/tmp", "HOME=/nonexistent")...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := c.CombinedOutput()
	return string(out), err
}

// Two users with one group share a folder of mirrors where that lets the group write.
func TestMirrorsOfTwoUsers(t *testing.T) {
	if commit := os.Getenv("SLIPWAY_OTHER_COMMIT"); commit != "" {
		syscall.Umask(0o022)
		ws := Workspace{Dir: filepath.Join(t.TempDir(), "checkouts"), Mirrors: os.Getenv("SLIPWAY_OTHER_MIRRORS")}
		if err := Checkout(t.Context(), loadRepo(t, "url: "+os.Getenv("SLIPWAY_OTHER_URL")+", commit: "+commit), ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != commit {
			t.Errorf("Checkout = %v; want HEAD at %s", err, commit)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("runs as two other users, for which it must be root")
	}
	const one, other, group = 61001, 61002, 61003
	url, first, second := server(t)
	dir := t.TempDir()
	write(t, dir, map[string]string{"gitconfig": "[safe]\n\tdirectory = *\n"})
	for _, folder := range []string{url, dir} {
		if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		mode os.FileMode
	}{
		{"shared", 0o775 | os.ModeSetgid},
		{"own", 0o755},
	} {
		mirrors := filepath.Join(dir, tt.name)
		if err := os.Mkdir(mirrors, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(mirrors, one, group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(mirrors, tt.mode); err != nil {
			t.Fatal(err)
		}
		words := []string{"SLIPWAY_OTHER_MIRRORS=" + mirrors, "SLIPWAY_OTHER_URL=" + url, "GIT_CONFIG_GLOBAL=" + filepath.Join(dir, "gitconfig")}
		if out, err := asUser(t, one, group, append(words, "SLIPWAY_OTHER_COMMIT="+first)...); err != nil {
			t.Fatalf("%s, the first user: %v\n%s", tt.name, err, out)
		}
		for _, commit := range []string{first, second} {
			if out, err := asUser(t, other, group, append(words, "SLIPWAY_OTHER_COMMIT="+commit)...); err != nil {
				t.Errorf("%s, the second user: %v\n%s", tt.name, err, out)
			}
		}
	}
}

// A mirror that cannot be written gives what it has, also without its server; what it
// lacks is fetched past it.
func TestMirrorThatCannotBeWritten(t *testing.T) {
	url, first, second := server(t)
	filled := mirrored(t)
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", tag: v1, commit: "+first), filled); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filled.Mirrors, filled.Mirrors, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("cannot bind a folder (needs CAP_SYS_ADMIN): %v", err)
	}
	t.Cleanup(func() { unix.Unmount(filled.Mirrors, unix.MNT_DETACH) })
	if err := unix.Mount("", filled.Mirrors, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ keys, want, warns string }{
		{"commit: " + first, first, ""},
		{"tag: v1, commit: " + first, first, ""},
		{"commit: " + second, second, "cannot be written: Slipway fetches " + second + " of repository r"},
		{"branch: main", second, "cannot be written: Slipway fetches main of repository r"},
		{"refspec: v1", first, "cannot be written: Slipway fetches v1 of repository r"},
	} {
		ws := Workspace{Dir: t.TempDir(), Mirrors: filled.Mirrors}
		p := loadRepo(t, "url: "+url+", "+tt.keys)
		seen := &progresstest.Recorder{}
		for range 2 {
			if err := Checkout(progress.With(t.Context(), progress.New(seen)), p, ws); err != nil || headOf(t, filepath.Join(ws.Dir, "r")) != tt.want {
				t.Errorf("Checkout of %s = %v; want HEAD at %s", tt.keys, err, tt.want)
			}
		}
		if got := seen.Last("warning").Detail; !strings.Contains(got, tt.warns) || tt.warns == "" && got != "" {
			t.Errorf("Checkout of %s warns %q; want %q", tt.keys, got, tt.warns)
		}
		mustRun(t, filepath.Join(ws.Dir, "r"), "git", "fsck", "--full")
	}
	older, newer := loadRepo(t, "url: "+url+", commit: "+first), loadRepo(t, "url: "+url+", commit: "+second)
	if moves, err := Diff(t.Context(), older, newer, filled, 5); err != nil || len(moves) != 1 || moves[0].Ahead != 1 {
		t.Errorf("Diff = %+v, %v; want the commit between", moves, err)
	}
	away := url + "-away"
	if err := os.Rename(url, away); err != nil {
		t.Fatal(err)
	}
	ws := Workspace{Dir: t.TempDir(), Mirrors: filled.Mirrors}
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+first), ws); err != nil {
		t.Errorf("Checkout without the server = %v; want it from the mirror", err)
	}
	ws = Workspace{Dir: t.TempDir(), Mirrors: filled.Mirrors}
	if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+second), ws); err == nil || !strings.Contains(err.Error(), "cannot fetch from "+url) {
		t.Errorf("Checkout of what the mirror lacks, without the server = %v; want that it cannot be fetched", err)
	}
}

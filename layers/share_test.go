package layers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
		name, want string
		mode       os.FileMode
	}{
		{"shared", "", 0o775 | os.ModeSetgid},
		{"own", "let 61001 delete it, which harms no checkout", 0o755},
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
		out, err := asUser(t, other, group, append(words, "SLIPWAY_OTHER_COMMIT="+second)...)
		if (err == nil) != (tt.want == "") || !strings.Contains(out, tt.want) {
			t.Errorf("%s, the second user: %v; want %q\n%s", tt.name, err, tt.want, out)
		}
	}
}

package layers

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// With these in its environment the test binary is the ssh to a git server that
// takes a wish for one commit as a wish for another.
const (
	liarServes = "SLIPWAY_LIAR_SERVES"
	liarWanted = "SLIPWAY_LIAR_WANTED"
	liarGives  = "SLIPWAY_LIAR_GIVES"
)

func init() {
	dir, set := os.LookupEnv(liarServes)
	if !set {
		return
	}
	server := exec.Command("git", "upload-pack", dir)
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	in, err := server.StdinPipe()
	if err != nil || server.Start() != nil {
		os.Exit(1)
	}
	wanted, given := []byte("want "+os.Getenv(liarWanted)), []byte("want "+os.Getenv(liarGives))
	for buf := make([]byte, 1<<16); ; {
		n, err := os.Stdin.Read(buf)
		io.Copy(in, bytes.NewReader(bytes.ReplaceAll(buf[:n], wanted, given)))
		if err != nil {
			break
		}
	}
	in.Close()
	server.Wait()
	os.Exit(server.ProcessState.ExitCode())
}

func TestCheckoutFromAServerThatGivesAnotherCommit(t *testing.T) {
	url, first, second := server(t)
	run(t, url, "git", "config", "uploadpack.allowAnySHA1InWant", "true")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"GIT_SSH": self, "GIT_SSH_VARIANT": "simple", liarServes: url, liarWanted: second, liarGives: second,
	} {
		t.Setenv(name, value)
	}
	p := loadRepo(t, "url: ssh://git@server.example/r, commit: "+second)
	honest := mirrored(t)
	if err := Checkout(t.Context(), p, honest); err != nil || headOf(t, filepath.Join(honest.Dir, "r")) != second {
		t.Fatalf("Checkout from an honest server = %v; want HEAD at %s", err, second)
	}
	t.Setenv(liarGives, first)
	for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
		if err := Checkout(t.Context(), p, ws); err == nil || exists(filepath.Join(ws.Dir, "r")) {
			t.Errorf("Checkout from a liar = %v; want an error and no checkout", err)
		}
	}
}

// A repository may hold a link that leads out of it. Nothing else may be checked
// out through that.
func TestCheckoutNotThroughALink(t *testing.T) {
	url, _, _ := server(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(url, "way-out")); err != nil {
		t.Fatal(err)
	}
	run(t, url, "git", "add", "-A")
	run(t, url, "git", "commit", "-q", "-m", "link")
	ws := mirrored(t)
	p := load(t, t.TempDir(), "header: {version: 14}\nrepos:\n  r: {url: "+url+", branch: main}\n  in: {url: "+url+", branch: main, path: r/way-out/in}\n")
	err := Checkout(t.Context(), p, ws)
	if err == nil || !strings.Contains(err.Error(), "r/way-out is a link; give it another path") {
		t.Errorf("Checkout = %v; want the link refused", err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside the workspace are %v, %v; want nothing", entries, err)
	}
}

// As with kas, submodules stay empty.
func TestCheckoutLeavesSubmodulesAlone(t *testing.T) {
	url, first, _ := server(t)
	run(t, url, "git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")
	run(t, url, "git", "commit", "-q", "-m", "submodule")
	run(t, url, "git", "rm", "-q", "--cached", "-r", ".")
	ws := mirrored(t)
	for _, commit := range []string{headOf(t, url), first, headOf(t, url)} {
		if err := Checkout(t.Context(), loadRepo(t, "url: "+url+", commit: "+commit), ws); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(ws.Dir, "r/sub")); err != nil || len(entries) > 0 {
		t.Errorf("the submodule's folder has %v, %v; want it empty", entries, err)
	}
}

// git is told what it may do, whatever the user's configuration or the address
// says: nothing that runs a command of a project's.
func TestCheckoutRefusesAddressesThatRunCommands(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	config := filepath.Join(t.TempDir(), "gitconfig")
	write(t, filepath.Dir(config), map[string]string{"gitconfig": "[protocol \"ext\"]\n\tallow = always\n"})
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	for _, url := range []string{"ext::touch% " + ran, "--upload-pack=touch " + ran, "-x"} {
		p := Project{Repos: []Repo{{ID: "r", Name: "r", URL: url, Branch: "main"}}}
		for _, ws := range []Workspace{mirrored(t), {Dir: t.TempDir()}} {
			if err := Checkout(t.Context(), p, ws); err == nil || exists(ran) {
				t.Errorf("Checkout of %q = %v; want it refused", url, err)
			}
		}
		if _, err := p.Repos[0].lookUp(t.Context()); err == nil || exists(ran) {
			t.Errorf("the tip of %q, %v; want it refused", url, err)
		}
	}
}

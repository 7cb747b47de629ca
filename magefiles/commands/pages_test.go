package commands

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the page of all commands")

// The page of all commands is the one that the program would write.
func TestReference(t *testing.T) {
	const path = "../commands.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("magefiles/commands.md is not what the commands say (%v)\nnext: go test ./magefiles/commands -run Reference -update", err)
	}
}

// writeManPages returns a folder with the manual pages.
func writeManPages(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := WriteManPages(folder, "v1.2.3", time.Date(2026, 11, 25, 23, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	return folder
}

// Each command has a manual page, in which man itself finds nothing wrong, and which says what
// help says.
func TestManPages(t *testing.T) {
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("man is not installed: apt-get install man-db")
	}
	folder := writeManPages(t)
	for _, cmd := range allCommands() {
		name := strings.Join(append([]string{"slipway"}, pathOf(cmd)...), "-")
		var said bytes.Buffer
		man := exec.Command("man", "--warnings", "--no-hyphenation", "--no-justification", "-l", filepath.Join(folder, name+".1"))
		man.Env = append(os.Environ(), "MANROFFSEQ=", "MANWIDTH=90", "LC_ALL=C.UTF-8", "MANPAGER=cat")
		man.Stderr = &said
		out, err := man.Output()
		if err != nil || said.Len() > 0 {
			t.Errorf("man -l %s.1: %v\n%s", name, err, said.String())
			continue
		}
		text := strings.Join(strings.Fields(string(out)), " ")
		for _, want := range append(cmdFlags(cmd), strings.ToUpper(name)+"(1)", "slipway v1.2.3", "2026-11-25", cmd.Short, strings.SplitN(cmd.Example, "\n", 2)[0]) {
			if !strings.Contains(text, strings.Join(strings.Fields(want), " ")) {
				t.Errorf("%s.1 lacks %q:\n%s", name, want, out)
			}
		}
	}
}

// Text that looks like a request, or like an escape, stays text.
func TestManText(t *testing.T) {
	var m manPage
	m.text(".SH x\n'y \\fB --flag\n...")
	if got, want := m.String(), "\\&.SH x\n\\&'y \\efB \\-\\-flag\n\\&...\n"; got != want {
		t.Errorf("text = %q; want %q", got, want)
	}
}

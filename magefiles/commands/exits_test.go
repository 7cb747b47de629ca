package commands

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// statusOfMissing is the table of all commands for what is missing, with those of deploy run,
// whose status 5 would be its container's.
var statusOfMissing = map[string]int{"nosuch": 5, "nosuch.yml": 5, "./nosuch/": 5, "virt": 7}

// lineFlags make lines whole.
var lineFlags = map[string][]string{"layers diff": {"--from=HEAD"}, "fleet run": {"--", "true"}}

// wordsBeside are the other words of lines.
var wordsBeside = map[string]string{"HOST": "127.0.0.1:1", "DEVICE": "/dev/null", "REFERENCE": "oci-dir:x:1"}

// checkMissingBoards runs each command that takes a board with one that is not there, or was not
// built. The status is that of the table, and help lists it.
func checkMissingBoards(t *testing.T, program string) {
	dir, tried := t.TempDir(), 0
	env := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	for _, cmd := range allCommands() {
		path := strings.Join(pathOf(cmd), " ")
		use, _, _ := strings.Cut(cmd.Use, " [--")
		words := strings.Fields(use)[1:]
		at := slices.IndexFunc(words, func(w string) bool {
			return slices.Contains([]string{"BOARD", "[BOARD]", "BOARD[,BOARD...]", "TARGET", "ARTIFACT"}, w)
		})
		like := cmd.Flag("like") != nil
		if at < 0 && !like {
			continue
		}
		_, help := exitOf(t, dir, env, append(append([]string{program}, pathOf(cmd)...), "--help")...)
		for name, want := range statusOfMissing {
			needsBuild := at >= 0 && (words[at] == "TARGET" || words[at] == "ARTIFACT")
			if like && strings.Contains(name, "/") || want == 7 && !needsBuild {
				continue
			}
			line := pathOf(cmd)
			for i, word := range words {
				switch beside := wordsBeside[strings.Split(word, "[")[0]]; {
				case i == at:
					line = append(line, name)
				case beside != "":
					line = append(line, beside)
				default:
					line = append(line, "x")
				}
			}
			if line = append(line, lineFlags[path]...); like {
				line = append(line, "--like="+name)
			}
			if path == "deploy run" {
				want = 255
			}
			tried++
			status, out := exitOf(t, dir, env, append([]string{program}, line...)...)
			if status != want || !strings.Contains(out, "\nnext: ") {
				t.Errorf("%q: status %d; want %d, and a next line\n%s", line, status, want, out)
			}
			if !strings.Contains(help, "\n  "+strconv.Itoa(want)+" ") && path != "deploy run" {
				t.Errorf("%s: help lists no status %d\n%s", path, want, help)
			}
		}
	}
	if tried < 100 {
		t.Errorf("%d lines; want 100 or more", tried)
	}
}

package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh/sshd"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// commit is the commit that the compiled program must report.
const commit = "0123456789abcdef0123456789abcdef01234567"

// compileProgram compiles slipway.
func compileProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "slipway")
	described := "-X slipway/images.described=v9.8-7-g" + commit
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "-ldflags", described, "slipway/magefiles/slipway").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// exitOf runs a program for at most a minute.
func exitOf(t *testing.T, dir string, env []string, argv ...string) (status int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var both bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &both, &both
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%q: %v", argv, err)
	}
	return cmd.ProcessState.ExitCode(), both.String()
}

// Tests of the compiled program.
func TestProgram(t *testing.T) {
	program := compileProgram(t)
	t.Run("missing boards", func(t *testing.T) { checkMissingBoards(t, program) })
	t.Run("starts nothing", func(t *testing.T) { startsNothing(t, program) })
	t.Run("beside others", func(t *testing.T) { checkLines(t, program) })
	t.Run("next steps", func(t *testing.T) { checkNextSteps(t, program) })
	t.Run("completion", func(t *testing.T) { checkCompletionInShells(t, program) })
	t.Run("a project of one's own", func(t *testing.T) { checkProject(t, program) })
	t.Run("locks of the machine", func(t *testing.T) { checkLocks(t, program) })
	t.Run("smoke anywhere", func(t *testing.T) { checkSmokeAnywhere(t, program) })
}

// SLIPWAY_LOCKS names a folder of locks that runs in all build folders share.
func checkLocks(t *testing.T, program string) {
	dir, locks := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hosts.yml"), []byte("all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unlock, err := localfile.Hold(filepath.Join(locks, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	env := []string{"HOME=" + dir, "PATH=" + dir}
	for set, want := range map[string]string{"": "FAILED  connection refused: 1", locks: "FAILED  in use: 1"} {
		if _, out := exitOf(t, dir, append(env, "SLIPWAY_LOCKS="+set), program, "fleet", "run", "hosts.yml", "--", "true"); !strings.Contains(out, want) {
			t.Errorf("SLIPWAY_LOCKS=%s: want %q\n%s", set, want, out)
		}
	}
}

// A stray word after any command starts nothing.
func startsNothing(t *testing.T, program string) {
	empty := t.TempDir()
	bare := []string{"HOME=" + t.TempDir(), "PATH=" + empty} // without any program to run
	for _, cmd := range allCommands() {
		path := pathOf(cmd)
		if strings.Contains(cmd.Use, "FILE...") || strings.Contains(cmd.Use, "FOLDER...") || path[0] == "help" || path[0] == "completion" {
			continue
		}
		words, flags := exampleArgs(cmd)
		argv := slices.Concat([]string{program}, path, words, []string{"stray"}, flags)
		if status, out := exitOf(t, empty, bare, argv...); status != 2 || !strings.Contains(out, "one word too many") {
			t.Errorf("%q: status %d\n%s", argv[1:], status, out)
		}
	}
	for line, want := range map[string]int{
		"--json boards": 2, "boards --json=maybe": 2, "nonsense": 2, "layers nosuch": 2, "help nosuch": 2,
		"boards -h": 0, "-h": 0, "help boards": 0, "": 0, "Boards --json": 0, "layers": 0,
		"virt ssh nosuch": 5, "virt stop nosuch": 5, "rig ssh nosuch": 5, "rig down nosuch": 5, "cache serve --board=nosuch": 5, "build nosuch": 5,
	} {
		if status, out := exitOf(t, empty, bare, slices.Concat([]string{program}, strings.Fields(line))...); status != want {
			t.Errorf("%s: status %d; want %d\n%s", line, status, want, out)
		}
	}
	for line, want := range map[string]string{
		"update virt 127.0.0.1:1 x": "--yes confirms without a question", "fleet update virt x y": "--yes confirms without a question",
		"fleet pin virt x": "give slipway_host_key in the inventory",
	} {
		if status, out := exitOf(t, empty, bare, slices.Concat([]string{program}, strings.Fields(line))...); status != 2 || !strings.Contains(out, want) || !strings.HasSuffix(out, line+" --dry-run\n") {
			t.Errorf("%s < /dev/null: status %d; want 2, %q and a dry run\n%s", line, status, want, out)
		}
	}
	own := filepath.Join(t.TempDir(), "boards")
	if err := errors.Join(os.MkdirAll(filepath.Join(own, "lab"), 0o755), os.WriteFile(filepath.Join(own, "lab/board.yml"), []byte("extends: virt\ndescription: our lab\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{"boards --boards=" + own: "our lab", "__complete flash --boards=" + own + " la": "lab\n", "virt ssh lab --boards=" + own: "lab: the virtual board is off"} {
		if _, out := exitOf(t, empty, bare, slices.Concat([]string{program}, strings.Fields(line))...); !strings.Contains(out, want) {
			t.Errorf("%s: want %q\n%s", line, want, out)
		}
	}
	if status, out := exitOf(t, empty, append(bare, "SLIPWAY_SILENCE=4"), program, "fleet", "run", "hosts.yml", "--", "true"); status != 2 || !strings.HasSuffix(out, "\nnext: unset SLIPWAY_SILENCE\n") {
		t.Errorf("SLIPWAY_SILENCE=4: status %d\n%.200s", status, out)
	}
	if status, out := exitOf(t, empty, append(bare, "SLIPWAY_PROGRESS=xml"), program, "boards"); status != 2 || !strings.Contains(out, "SLIPWAY_PROGRESS=xml: want json") {
		t.Errorf("SLIPWAY_PROGRESS=xml: status %d\n%.200s", status, out)
	}
	if status, out := exitOf(t, empty, append(bare, "SLIPWAY_PROGRESS=json:none/f"), program, "boards"); status != 2 || !strings.Contains(out, "open none/f: ") {
		t.Errorf("SLIPWAY_PROGRESS=json:none/f: status %d\n%.200s", status, out)
	}
	if left, err := os.ReadDir(empty); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkLines compares what the program says to right and wrong lines with the page lines.md,
// which also has what gh and kas say to the like. No line starts or writes anything.
func checkLines(t *testing.T, program string) {
	const page = "../lines.md"
	pairs, err := os.ReadFile("testdata/lines.txt")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(page)
	if err != nil && !*update {
		t.Fatal(err)
	}
	peers := map[string]string{}
	for row := range strings.Lines(string(before)) {
		if cells := strings.Split(strings.TrimSpace(row), " | "); len(cells) == 4 {
			peers[cells[2]] = cells[3]
		}
	}
	empty := t.TempDir()
	bare := []string{"HOME=" + t.TempDir(), "PATH=" + empty} // without any program to run
	rows := 0
	var text strings.Builder
	text.WriteString(linesHead)
	for pair := range strings.Lines(string(pairs)) {
		ours, theirs, found := strings.Cut(strings.TrimSpace(pair), " | ")
		if !found || strings.HasPrefix(pair, "#") {
			continue
		}
		rows++
		status, out := exitOf(t, empty, bare, append([]string{program}, splitWordsOf(ours)[1:]...)...)
		said := peers[code(theirs)]
		if *update {
			said = askPeer(t, splitWordsOf(theirs))
		}
		fmt.Fprintf(&text, "%s | %s | %s | %s\n", code(ours), describeOutput(status, strings.ReplaceAll(out, program, "slipway")), code(theirs), said)
	}
	if left, err := os.ReadDir(empty); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if *update {
		err = os.WriteFile(page, []byte(text.String()), 0o644)
	}
	if diff := cmp.Diff(string(before), text.String()); err != nil || diff != "" && !*update || rows < 60 {
		t.Errorf("%d lines, %v\n%s\nnext: go test ./magefiles/commands -run Program -update, with gh and kas", rows, err, diff)
	}
}

// checkNextSteps runs lines that fail on what is there, or not there.
func checkNextSteps(t *testing.T, program string) {
	lines, err := os.ReadFile("testdata/failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"junk": "x\n", "my.yml": "file: {/etc/passwd: {exists: false}}\n", "app/x": "hi\n",
		"hosts.yml": "all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", "badhosts.yml": "all: {hots: {a: {}}}\n",
		"art/artifact.json": `{"board": "virt", "files": [{"kind": "disk", "name": "disk.img", "sizeBytes": 1}]}`, "art/disk.img": "x",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	for line := range strings.Lines(string(lines)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		status, out := exitOf(t, dir, env, append([]string{program}, words...)...)
		if _, last, found := cutLast(strings.TrimSpace(out), "\nnext: "); status == 0 || !found || strings.Contains(last, "\n") {
			t.Errorf("%s: status %d, and no next step at the end:\n%s", strings.TrimSpace(line), status, out)
		}
	}
}

const linesHead = `# Right and wrong command lines

What Slipway says to a line, and what gh 2.23 and kas 3.1 of Debian 12 say to the like: the exit
status and the first line. Each line ran in an empty folder. Slipway left nothing there.

slipway | | gh or kas |
---|---|---|---
`

func code(line string) string { return "`" + line + "`" }

// describeOutput returns a status and the beginning of what was said.
func describeOutput(status int, out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	text := lines[0]
	if len(lines) > 1 && strings.HasPrefix(lines[1], "next: ") {
		text += plaintext.Either(strings.HasSuffix(text, "?"), " ", ". ") + lines[1]
	}
	text = plaintext.Shorten(strings.ReplaceAll(text, "|", "/"), 110)
	return fmt.Sprintf("%d: %s", status, strings.NewReplacer("<", "&lt;", "_", `\_`, "*", `\*`).Replace(text))
}

// askPeer runs gh or kas in an empty folder, without an account.
func askPeer(t *testing.T, argv []string) string {
	t.Helper()
	dir := t.TempDir()
	status, out := exitOf(t, dir, []string{"HOME=" + t.TempDir(), "PATH=/usr/bin:/bin", "GH_NO_UPDATE_NOTIFIER=1"}, argv...)
	for line := range strings.Lines(out) { // kas says first which folders it looks into
		if rest, found := strings.CutPrefix(line, "kas: error: "); found || strings.Contains(line, " - ERROR ") {
			out = strings.TrimPrefix(rest[strings.LastIndex(rest, " - ")+1:], "- ")
			break
		}
	}
	said := describeOutput(status, strings.ReplaceAll(out, dir, "."))
	if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
		said += ", and makes the folder " + left[0].Name()
	}
	return said
}

// splitWordsOf splits a line at blanks. "" is an empty word.
func splitWordsOf(line string) []string {
	words := strings.Fields(line)
	for i, w := range words {
		words[i] = strings.ReplaceAll(w, `""`, "")
	}
	return words
}

// A project is made, checked and enlarged without any other program.
func checkProject(t *testing.T, program string) {
	dir := t.TempDir()
	env := []string{"HOME=" + t.TempDir(), "PATH=" + t.TempDir()}
	for _, tt := range []struct {
		at, line string
		status   int
		want     string
	}{
		{"", "board check", 5, "no project: "},
		{"", "init lab --like=raspberrypi5 --ci=github --dry-run", 0, "would write lab/boards/raspberrypi5-lab/kas.yml\n"},
		{"", "init lab --like=raspberrypi5 --ci=github", 0, "  " + program + " flash raspberrypi5-lab DEVICE --dry-run"},
		{"", "init lab --like=virt", 1, "next: " + program + " board new lab --like=virt"},
		{"", "init lab --like=virt --name=raspberrypi5-lab", 1, "next: " + program + " board check --boards=lab/boards"},
		{"", "init lab2 --ci=jenkins", 1, "lab2 is no project, and a new one needs --like, the board that its own extends\nnext: " + program + " init lab2 --ci=jenkins --like=virt"},
		{"lab", "up", 1, "boards/raspberrypi5-lab/board.yml describes no virtual machine"},
		{"lab/suites", "doctor --offline", 1, "not ready for raspberrypi5-lab: "},
		{"lab", "board new rack --like=raspberrypi5-lab", 0, "wrote boards/rack/board.yml\n"},
		{"lab", "board new rack --like=virt", 1, "another board has this name"},
		{"lab/suites", "board check", 0, "boards that can be read: 2, lines to edit: 11\n"},
		{"lab", "boards", 0, "\nrack "},
		{"lab", "up", 1, "the project has 2 boards: rack, raspberrypi5-lab\nnext: " + program + " up rack"},
		{"lab", "layers dump rack", 0, "machine: raspberrypi5\n"},
		{"lab", "suites", 0, "\nproduct "},
	} {
		status, out := exitOf(t, filepath.Join(dir, tt.at), env, append([]string{program}, strings.Fields(tt.line)...)...)
		if status != tt.status || !strings.Contains(out, tt.want) {
			t.Errorf("%s: status %d; want %d, and %q\n%s", tt.line, status, tt.status, tt.want, out)
		}
	}
}

// In a folder that contains only a suite, the program checks any host.
func checkSmokeAnywhere(t *testing.T, program string) {
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	server, err := sshd.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	home, dir := t.TempDir(), t.TempDir()
	place := func(file, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range map[string]string{".ssh/id_ed25519": server.Identity, ".ssh/known_hosts": server.KnownHosts} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		place(filepath.Join(home, name), string(text))
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	lab := fmt.Sprintf("%s@127.0.0.1:%d", me.Username, server.Port)
	place(filepath.Join(dir, "my.yml"), "file: {/etc/passwd: {exists: true}}\n")
	place(filepath.Join(dir, "bad.yml"), "file: {/etc/passwd: {exists: false}}\n")
	place(filepath.Join(dir, "wrong.yml"), "fiel: {/etc/passwd: {exists: true}}\n")
	inventory := filepath.Join(home, "hosts.yml")
	place(inventory, "all: {hosts: {a: {ansible_host: 127.0.0.1}}}\n")
	root := filepath.Join(home, "rootfs")
	place(filepath.Join(root, "etc/passwd"), "root:x:0:0::/root:/bin/sh\n")
	place(filepath.Join(root, "usr/open/file"), "x")
	if err := os.Chmod(filepath.Join(root, "usr/open/file"), 0o666); err != nil {
		t.Fatal(err)
	}
	env := []string{"HOME=" + home, "PATH=" + filepath.Join(home, "nothing")} // without other programs
	run := func(line string) (int, string) {
		return exitOf(t, dir, env, append([]string{program}, strings.Fields(strings.Replace(line, " lab", " "+lab, 1))...)...)
	}
	for _, tt := range []struct {
		line   string
		status int
		want   string
	}{
		{"smoke lab --suite=my.yml", 0, "PASSED  " + lab},
		{"smoke lab --suite=my.yml --as=json", 0, fmt.Sprintf(`"board": %q`, lab)},
		{"smoke lab --suite=my.yml --as=json", 0, `"version": "v9.8-7",` + "\n" + `    "commit": "` + commit + `"`},
		{"--version", 0, "slipway v9.8-7, commit " + commit + "\ngo1."},
		{"version --json", 0, `"platform": "linux/`},
		{"smoke lab --suite=my.yml,bad.yml", 4, "1 of 2 checks failed"},
		{"smoke lab --suite=wrong.yml", 5, `unknown section "fiel"`},
		{"smoke 127.0.0.1:1 --suite=none.yml", 5, "none.yml: no such suite file"},
		{"smoke 127.0.0.1:1 --suite=my.yml", 3, "connect"},
		{"smoke lab", 2, "HOST is missing"},
		{"fleet smoke virt " + inventory + " --suite=my.yml --dry-run", 0, "would prove virt on 1 board,"},
		{"fleet smoke virt " + inventory + " --suite=wrong.yml --dry-run", 5, `unknown section "fiel"`},
		{"fleet run " + inventory + " --dry-run -- uptime -p", 0, "would run uptime -p on 1 board,"},
		{"audit " + root, 4, "findings; --allow names those that are wanted\nnext: "},
		{"audit " + root + " --allow=writabel", 2, `no rule "writabel": did you mean writable?`},
		{"fleet run " + inventory, 2, "the program is missing"},
		{"smoke virt lab --suite=my.yml", 0, "PASSED  virt"},
	} {
		if status, out := run(tt.line); status != tt.status || !strings.Contains(out, tt.want) {
			t.Errorf("%s: status %d; want %d, and %q\n%s", tt.line, status, tt.status, tt.want, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); len(left) != 3 || err != nil {
		t.Errorf("beside the suites there is %v, %v", left, err)
	}
	place(filepath.Join(dir, "build/virt/artifact.json"), `{"board": "virt", "key": "abc", "files": [{"kind": "disk", "name": "disk.img", "sizeBytes": 9}, {"kind": "container", "name": "c.tar", "sizeBytes": 9}]}`)
	for line, want := range map[string]string{
		"smoke virt lab --suite=my.yml": "report: build/reports/virt/report.html",
		"deploy virt lab":               "c.tar: no such file",
	} {
		if _, out := run(line); !strings.Contains(out, want) {
			t.Errorf("%s with artifact.json alone: want %q\n%s", line, want, out)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "build/reports/virt/report.json")); !strings.Contains(string(data), `"imageKey": "abc"`) {
		t.Errorf("report.json: %v; want the key of the artifact\n%s", err, data)
	}
}

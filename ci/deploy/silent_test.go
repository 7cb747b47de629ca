package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/undo"
	"slipway/layers/plaintext"
)

// logAndHang logs what a board is sent. A program whose line begins as the file hang says tells its
// process id, as all do, and then never ends. The board is slow to end it.
const logAndHang = `printf '%s\n===\n' "$SSH_ORIGINAL_COMMAND" >>"DIR/log"
case $SSH_ORIGINAL_COMMAND in *"kill -TERM"*) sleep 2 ;; esac
case ${SSH_ORIGINAL_COMMAND#*exec } in "$(cat "DIR/hang")"*) exec sh -c "${SSH_ORIGINAL_COMMAND%%exec *}exec sleep 1000" ;; esac
`

// workLine matches what is no question: it changes the board, or reads whole files, and may take long.
var workLine = plaintext.Regexp(`^'(sync|rm|chown)'|^'systemctl' '(restart|reload)'|mkdir -p|xargs -0 (rm|chown|chmod|sha256sum)|openssl dgst|>"\$1"|modprobe|nvpmodel -m`)

// questionsIn are the questions in a log, each without what differs between runs.
func questionsIn(log string) (all []string) {
	seen := map[string]bool{"": true}
	for line := range strings.SplitSeq(log, "\n===\n") {
		_, line, _ = strings.Cut(line, "exec ")
		words := strings.SplitAfterN(line, "' '", 3)
		switch {
		case workLine().MatchString(line):
			continue
		case strings.HasPrefix(line, "'sh' '-c' "):
			line, _, _ = strings.Cut(line, "' 'sh' '")
		case strings.HasPrefix(line, "'cat' '/var/lib/slipway/undo/"):
			line = "'cat' '/var/lib/slipway/undo/"
		case len(words) > 1:
			line = words[0] + words[1]
		}
		if !seen[line] {
			seen[line] = true
			all = append(all, line)
		}
	}
	return all
}

// hangingBoard is a board in a folder on which the lines that begin with question hang.
func hangingBoard(t *testing.T, question string) (c *boardssh.Conn, root, log string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hang"), []byte(question), 0o644); err != nil {
		t.Fatal(err)
	}
	c, root = boardInFolder(t, strings.ReplaceAll(logAndHang, "DIR", dir))
	return c, root, filepath.Join(dir, "log")
}

// deployAndUndo puts every question of deploy config and deploy undo.
func deployAndUndo(ctx context.Context, c *boardssh.Conn, config *configFile) error {
	for _, dry := range []bool{true, false} {
		if _, err := planAndApply(ctx, c, config, ConfigOptions{DryRun: dry}); err != nil {
			return err
		}
	}
	_, _, err := undoAndRestart(ctx, c, "", false)
	return err
}

// deployBroken puts every question of deploy files. The unit does not run then.
func deployBroken(ctx context.Context, c *boardssh.Conn, folder string) error {
	var done filesDone
	var err error
	o := FilesOptions{DirOptions: files.DirOptions{Delete: true}, Restart: []string{"broken.service"}}
	if done.Changes, done.Undo, err = undo.DeployDir(ctx, c, folder, "/opt", o.DirOptions, o.Restart); err != nil {
		return err
	}
	if err = restartOrUndo(ctx, c, &done, o); !done.Undone {
		return fmt.Errorf("the files were not put back: %w", err)
	}
	return err
}

// For each question that deploy puts, the program hangs: deploy ends after one limit, names the
// program and the next step, and puts back what it had begun.
func TestDeployEndsAtASilentProgram(t *testing.T) {
	folder, beside := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{folder + "/app": "a", beside + "/app.conf": "a\n", beside + "/frr.conf": "hostname after\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config, err := parseConfigFile(beside+"/lab.yml", []byte(strings.NewReplacer("MAXN", "2", ", restart: [app.service]", "", "bgpd: yes, ospfd: no", "ospfd: yes").Replace(configOfAll)))
	if err != nil {
		t.Fatal(err)
	}
	deploys := []func(context.Context, *boardssh.Conn) error{
		func(ctx context.Context, c *boardssh.Conn) error { return deployAndUndo(ctx, c, config) },
		func(ctx context.Context, c *boardssh.Conn) error { return deployBroken(ctx, c, folder) },
	}
	questions := make([][]string, len(deploys))
	for i, deploy := range deploys {
		sound, _, log := hangingBoard(t, "none")
		if err := deploy(t.Context(), sound); errors.Is(err, boardssh.ErrSilent) || err != nil && !errors.Is(err, undo.ErrUnit) {
			t.Fatalf("a board that answers: %v", err)
		}
		data, err := os.ReadFile(log)
		questions[i] = questionsIn(string(data))
		if err != nil || len(questions[i]) < []int{18, 6}[i] {
			t.Fatalf("%d questions: %q, %v", len(questions[i]), questions[i], err)
		}
	}
	const limit = "4s"
	t.Setenv(boardssh.SilenceVariable, limit)
	var all sync.WaitGroup
	for i, deploy := range deploys {
		for _, question := range questions[i] {
			c, root, _ := hangingBoard(t, question)
			all.Go(func() { checkHangs(t, c, root, question, limit, deploy) })
		}
	}
	all.Wait()
}

func checkHangs(t *testing.T, c *boardssh.Conn, root, question, limit string, deploy func(context.Context, *boardssh.Conn) error) {
	was := boardFiles(t, root)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	err := reach.MarkUnreachable(ctx, c, deploy(ctx, c))
	program := strings.Split(question, "'")[1]
	for _, want := range []string{"run " + program + " on ", "no progress for " + limit, boardssh.SilenceVariable, "\nnext: ssh "} {
		if report.ExitStatus(err) != 3 || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s hangs: status %d, %v; want 3 and %q", question, report.ExitStatus(err), err, want)
		}
	}
	now := boardFiles(t, root)
	values := "/proc/sys/net/ipv4/tcp_rmem" // the kernel prints tabs where we wrote blanks
	now[values] = strings.ReplaceAll(now[values], " 131072 ", "\t131072\t")
	undoes := strings.Contains(question, "/undo/") || strings.Contains(question, "find . ") || strings.Contains(question, "xargs -0 -n 200")
	if diff := cmp.Diff(was, now); diff != "" && !undoes {
		t.Errorf("%s hangs: %v\nbefore (-), after (+):\n%s", question, err, diff)
	}
}

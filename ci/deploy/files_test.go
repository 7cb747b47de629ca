package deploy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/undo"
	"slipway/images"
	"slipway/layers/run"
)

func TestFIFOIsNoFileToDeploy(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, remove, err := asFolder(fifo)
		if err == nil {
			remove()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || err.Error() != fifo+" is no regular file" {
			t.Errorf("asFolder = %v; want that it is no regular file", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("asFolder waits for a FIFO")
	}
}

// A deploy that failed half-way does not report its plan as done.
func TestShowFilesOfBrokenDeploy(t *testing.T) {
	for err, want := range map[string]string{"": "1 changes in /opt; deploy undo", "it broke off": "some of these 1 changes in /opt may be made; deploy undo"} {
		var out strings.Builder
		done := filesDone{Changes: []files.Change{{Path: "a", Kind: files.Added}}, Undo: "an ID", Error: err}
		if err := showFiles(&out, done, "/opt", FilesOptions{}); err != nil || !strings.Contains(out.String(), "\n"+want) {
			t.Errorf("showFiles with error %q: %v,\n%s; want %q", done.Error, err, out.String(), want)
		}
	}
}

// A deploy that failed leads to its undo, if it left something on the board. It lists no changes that
// were not made. An own next step of the error stays the last line.
func TestBrokenDeployLeadsToUndo(t *testing.T) {
	c, _ := boardInFolder(t)
	failed, hung := errors.New("it broke off"), boardssh.NextStep{Err: errors.New("it hung"), Step: "ssh b ps"}
	for _, tt := range []struct {
		done filesDone
		err  error
		want string
	}{
		{filesDone{Undo: "I-1"}, failed, "it broke off\nnext: deploy undo toy root@b --id=I-1"},
		{filesDone{Undo: "I-1", Undone: true}, failed, "it broke off"},
		{filesDone{}, failed, "it broke off"},
		{filesDone{Undo: "I-1"}, notedError{hung, errors.New(allBack)}, "it hung\n  all was put back as it was\nnext: ssh b ps"},
	} {
		if err := tt.done.addUndoStep(c, images.Spec{Board: "toy"}, "root@b", tt.err); err.Error() != tt.want {
			t.Errorf("%+v: %q; want %q", tt.done, err, tt.want)
		}
	}
	for _, done := range []filesDone{{Error: "refused"}, {Error: "refused", Undo: "I-1", Undone: true, Changes: []files.Change{{Path: "a", Kind: files.Added}}}} {
		var out strings.Builder
		if err := errors.Join(showFiles(&out, done, "/opt", FilesOptions{}), showConfig(&out, configDone{filesDone: done}, ConfigOptions{})); err != nil || out.Len() > 0 {
			t.Errorf("shown of %+v: %v\n%s", done, err, out.String())
		}
	}
}

// Whatever keeps systemd from restarting a unit, the files are put back.
func TestServiceIsPutBack(t *testing.T) {
	c, root := boardInFolder(t)
	folder := t.TempDir()
	if err := os.WriteFile(folder+"/app.service", []byte("[Service]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl := filepath.Join(root, "usr/local/bin/systemctl")
	for name := range simulatedBoard {
		if strings.HasSuffix(name, "/systemctl") {
			systemctl = filepath.Join(root, name)
		}
	}
	if err := run.WriteProgram(systemctl, []byte("#!/bin/sh\necho no bus >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	was := boardFiles(t, root)
	var done filesDone
	var err error
	o := FilesOptions{Restart: []string{"app.service"}}
	if done.Changes, done.Undo, err = undo.DeployDir(t.Context(), c, folder, "/etc/app", o.DirOptions, o.Restart); err != nil {
		t.Fatal(err)
	}
	err = restartOrUndo(t.Context(), c, &done, o)
	if err == nil || !done.Undone || !strings.Contains(err.Error(), "no bus\n  all was put back as it was") {
		t.Errorf("restartOrUndo = %v, undone: %t", err, done.Undone)
	}
	if diff := cmp.Diff(was, boardFiles(t, root)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// A wrong name is an error before the board is contacted, with where to look for the file.
func TestFilesThatAreNotHere(t *testing.T) {
	dir := t.TempDir()
	lost, below := filepath.Join(dir, "etcc"), filepath.Join(dir, "no/such/etc")
	spec, opt := images.Spec{Board: "toy"}, images.Options{Dir: dir}
	for _, tt := range []struct{ name, next string }{{lost, dir}, {below, dir}, {"no-such-folder", "."}, {"no/such", "."}} {
		_, report := report.ReadReports(tt.name)
		for what, err := range map[string]error{
			"deploy files":  Files(t.Context(), io.Discard, opt, spec, "root@127.0.0.1:1", tt.name, "/etc", FilesOptions{}),
			"deploy config": Config(t.Context(), io.Discard, opt, spec, "root@127.0.0.1:1", tt.name, ConfigOptions{}),
			"report":        report,
		} {
			want := fmt.Sprintf("read %q on this machine: no such file or directory\nnext: ls %s", tt.name, tt.next)
			if err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s of %s: %v; want %s", what, tt.name, err, want)
			}
		}
	}
}

// --delete removes nothing that a typo would make the system's.
func TestCheckDestination(t *testing.T) {
	for _, tt := range []struct {
		remote           string
		isFolder, remove bool
		want             string // at the error's end
	}{
		{"/opt/app", true, true, ""},
		{"/", true, false, ""},
		{"/etc", false, false, ""},
		{"opt/app", true, false, "\nnext: repeat the line with /opt/app for opt/app"},
		{"/", true, true, "  # or with a folder below"},
		{"/opt/../etc/", true, true, "  # or with a folder below"},
		{"/opt/app", false, true, "\nnext: repeat the line without --delete"},
	} {
		err := checkDestination(tt.remote, tt.isFolder, tt.remove)
		if (err != nil) != (tt.want != "") || err != nil && !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("checkDestination(%+v) = %v", tt, err)
		}
	}
}

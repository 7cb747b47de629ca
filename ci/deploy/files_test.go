package deploy

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh/files"
	"slipway/images"

	"golang.org/x/sys/unix"
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

package undo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/sshtest"
)

// useTempUndoDir makes a temporary folder the undoDir of a test.
func useTempUndoDir(t *testing.T) {
	t.Helper()
	was, wasHome := undoDir, homeUndoDir
	t.Cleanup(func() { undoDir, homeUndoDir = was, wasHome })
	undoDir = filepath.Join(t.TempDir(), "undo")
	if os.Geteuid() == 0 {
		return
	}
	homeUndoDir = strings.Repeat("../", 20) + undoDir[1:] // from whatever home the server gives
}

// makeFolders makes a folder on the board, and a local one that differs in all kinds of changes.
func makeFolders(t *testing.T) (local, remote string) {
	t.Helper()
	local, remote = t.TempDir(), filepath.Join(t.TempDir(), "board")
	sshtest.WriteTree(t, remote, map[string]string{
		"same": "1", "replaced": "old", "mode": "m", "gone/deep/file": "g", "link": "->same", "tolink": "file", "fromlink": "->same",
		"odd\nname": "o", "-rf": "x", "other": "kept", "dirlink": "->gone",
	})
	sshtest.WriteTree(t, local, map[string]string{
		"same": "1", "replaced": "new and longer", "mode": "m", "added": "a", "new/deep/file": "n", "link": "->replaced", "tolink": "->same", "fromlink": "file",
		"odd\nname": "changed", "-rf": "changed", "dirlink/in": "a folder where a link was",
	})
	for name, mode := range map[string]os.FileMode{remote + "/replaced": 0o640, remote + "/mode": 0o600, local + "/mode": 0o755} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	return local, remote
}

func TestUndo(t *testing.T) {
	for name, settings := range map[string][]string{"GNU": nil, "busybox": {sshtest.OnlyBusybox(t)}} {
		t.Run(name, func(t *testing.T) {
			useTempUndoDir(t)
			c := boardtest.Connect(t, settings...)
			local, remote := makeFolders(t)
			was := sshtest.ReadTree(t, remote)
			changes, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{Delete: true}, []string{"a.service"})
			if err != nil || id == "" || len(changes) < 10 {
				t.Fatalf("DeployDir = %d changes, %q, %v", len(changes), id, err)
			}
			sshtest.CheckTrees(t, local, remote)
			all, err := List(t.Context(), c)
			if err != nil || len(all) != 1 || all[0].ID != id || time.Since(all[0].Started) > time.Hour {
				t.Errorf("List = %+v, %v", all, err)
			}
			u, err := Restore(t.Context(), c, "", false)
			if err != nil || u.ID != id || !cmp.Equal(u.Units, []string{"a.service"}) {
				t.Errorf("Restore = %+v, %v", u, err)
			}
			if diff := cmp.Diff(was, sshtest.ReadTree(t, remote)); diff != "" {
				t.Errorf("before the deploy (-) and after the undo (+):\n%s", diff)
			}
			sshtest.CheckEntries(t, undoDir)
			_, err = Restore(t.Context(), c, "", false)
			sshtest.CheckError(t, err, "nothing to undo")
		})
	}
}

// What an interrupted deploy left, a deploy with --delete removes, and its undo does not restore.
func TestUndoDoesNotRestoreParts(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	local, remote := makeFolders(t)
	was := sshtest.ReadTree(t, remote)
	sshtest.WriteTree(t, remote, map[string]string{".replaced.0123456789abcdef0123.part": "half", "gone/deep/.file.ABCDEFGHIJ.part": "half"})
	if _, _, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{Delete: true}, nil); err != nil {
		t.Fatal(err)
	}
	sshtest.CheckTrees(t, local, remote)
	if _, err := Restore(t.Context(), c, "", false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(was, sshtest.ReadTree(t, remote)); diff != "" {
		t.Errorf("before the interrupted deploy (-) and after the undo (+):\n%s", diff)
	}
}

// If a deploy cannot save the old files, it changes nothing.
func TestDeployThatCannotBeKept(t *testing.T) {
	useTempUndoDir(t)
	if err := os.WriteFile(undoDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := boardtest.Connect(t)
	local, remote := makeFolders(t)
	was := sshtest.ReadTree(t, remote)
	if changes, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{Delete: true}, nil); err == nil || id != "" || len(changes) > 0 {
		t.Errorf("DeployDir = %v, %q, %v; want an error, no change and no ID", changes, id, err)
	}
	if diff := cmp.Diff(was, sshtest.ReadTree(t, remote)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

// A failed deploy leaves something to undo only if it changed something.
func TestDeployThatIsRefused(t *testing.T) {
	for name, tt := range map[string]struct{ fails, want string }{
		"nothing": {"mkdir", ""}, "a folder": {"ln", "new"},
	} {
		t.Run(name, func(t *testing.T) {
			useTempUndoDir(t)
			local, remote := t.TempDir(), t.TempDir()
			c := boardtest.Connect(t, sshtest.BeforeProgram(t, tt.fails, `case "$*" in *`+filepath.Base(filepath.Dir(undoDir))+`*|*claim*|*/old) ;; *) echo refused >&2; exit 1 ;; esac`))
			sshtest.WriteTree(t, local, map[string]string{"new": "", "link": "->new"})
			changes, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil)
			sshtest.CheckError(t, err, "refused")
			all, failed := List(t.Context(), c)
			kept := tt.want != ""
			if failed != nil || (id != "") != kept || len(changes) > 0 != kept || len(all) > 0 != kept {
				t.Errorf("DeployDir = %v, %q; then %d deploys, %v; want any: %v", changes, id, len(all), failed, kept)
			}
			sshtest.CheckEntries(t, remote, strings.Fields(tt.want)...)
		})
	}
}

// A user who is not root deploys to what is his own, and undoes it.
func TestDeployOfAUser(t *testing.T) {
	home, err := os.MkdirTemp("", "slipway-home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	useTempUndoDir(t)
	a := boardtest.AddressOf(sshtest.StartSudo(t, sshtest.SudoRights["NOPASSWD"], "SetEnv HOME="+home))
	a.User = sshtest.SudoUser
	c := boardtest.Dial(t, a)
	owner, err := c.Output(t.Context(), "id", "-u")
	uid, bad := strconv.Atoi(owner)
	if err = errors.Join(err, bad, os.Chown(home, uid, uid), os.Chmod(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	local, remote := t.TempDir(), filepath.Join(home, "app")
	sshtest.WriteTree(t, local, map[string]string{"sub/a": "1", "l": "->sub"})
	_, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil)
	if err != nil || id == "" {
		t.Fatalf("DeployDir = %q, %v", id, err)
	}
	sshtest.CheckEntries(t, filepath.Join(home, homeUndoDir), id)
	_, id, err = DeployDir(t.Context(), c, local, "/srv/app", files.DirOptions{}, nil)
	sshtest.CheckError(t, err, "ermission denied\nnext: repeat the line with --become")
	if all, err := List(t.Context(), c); id != "" || err != nil || len(all) != 1 {
		t.Errorf("after a refusal: %q, %d deploys, %v; want one", id, len(all), err)
	}
	root := a
	root.Become = "root"
	_, err = Restore(t.Context(), boardtest.Dial(t, root), "", false)
	sshtest.CheckError(t, err, undoDir+" has no deploy")
	if _, err := Restore(t.Context(), c, "", false); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(remote); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the deploy made %s, and the undo left it: %v", remote, err)
	}
	_, err = Restore(t.Context(), c, "", false)
	sshtest.CheckError(t, err, homeUndoDir+" has no deploy; undo deploys of --become with --become")
}

// A board that lets nobody make a folder says so once.
func TestClaimThatFails(t *testing.T) {
	c := boardtest.Connect(t, sshtest.BeforeProgram(t, "mkdir", `case "$*" in *claim*) echo refused >&2; exit 1 ;; esac`))
	r, err := c.Run(t.Context(), "sh", "-c", claimScript, "sh", t.TempDir(), "20260101T000000Z-aaaaaa")
	if err != nil || r.Status != 1 || string(r.Stderr) != "refused\n" {
		t.Errorf("%d, %q, %v; want 1, and refused once", r.Status, r.Stderr, err)
	}
}

func TestUndoOfWhatChanged(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	local, remote := makeFolders(t)
	was := sshtest.ReadTree(t, remote)
	if _, _, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	sshtest.WriteTree(t, remote, map[string]string{"replaced": "by somebody", "new/deep/theirs": "t"})
	_, err := Restore(t.Context(), c, "", false)
	sshtest.CheckError(t, err, "changed since the deploy: replaced")
	sshtest.CheckError(t, err, "'ls -l "+remote+"/replaced'  # ")
	if _, err := Restore(t.Context(), c, "", true); err != nil {
		t.Fatal(err)
	}
	now := sshtest.ReadTree(t, remote)
	for _, theirs := range []string{"/new", "/new/deep", "/new/deep/theirs"} {
		if now[theirs] == "" {
			t.Errorf("%s is gone", theirs)
		}
		delete(now, theirs)
	}
	if diff := cmp.Diff(was, now); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

func TestUndoKeepsTheLast(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	local, remote := t.TempDir(), filepath.Join(t.TempDir(), "board")
	for i := range maxKept + 2 {
		sshtest.WriteTree(t, local, map[string]string{"file": fmt.Sprint(i)})
		if _, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil); err != nil || id == "" {
			t.Fatal(id, err)
		}
	}
	if _, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil); err != nil || id != "" {
		t.Errorf("a deploy that changes nothing: %q, %v", id, err)
	}
	if all, err := List(t.Context(), c); err != nil || len(all) != maxKept {
		t.Errorf("%d deploys kept, %v; want %d", len(all), err, maxKept)
	}
}

// renameDeploy gives a deploy the ID that another clock or another release would have given it.
func renameDeploy(t *testing.T, id, to string) {
	t.Helper()
	manifest := filepath.Join(undoDir, to, "manifest.json")
	if err := os.Rename(filepath.Join(undoDir, id), filepath.Dir(manifest)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(manifest)
	if err == nil {
		err = os.WriteFile(manifest, bytes.ReplaceAll(data, []byte(id), []byte(to)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The board knows the order of deploys, whatever the operators' clocks. Older releases come first.
func TestUndoOrder(t *testing.T) {
	for name, settings := range map[string][]string{"GNU": nil, "busybox": {sshtest.OnlyBusybox(t)}} {
		t.Run(name, func(t *testing.T) {
			useTempUndoDir(t)
			c := boardtest.Connect(t, settings...)
			local, remote := t.TempDir(), filepath.Join(t.TempDir(), "board")
			deploy := func(text string) string {
				sshtest.WriteTree(t, local, map[string]string{"file": text})
				_, id, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil)
				if err != nil || id == "" {
					t.Fatal(id, err)
				}
				return id
			}
			for i, to := range []string{"20260101T000000Z-aaaaaa-1", "20990101T000000Z-bbbbbb-2", "20990101T000000Z-cccccc-3", "20200101T000000Z-dddddd-9"} {
				renameDeploy(t, deploy(fmt.Sprint(i)), to)
				if i == 1 { // a claim that a killed deploy left
					if err := os.Mkdir(filepath.Join(undoDir, "claim-10"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
			}
			last := deploy("last")
			all, err := List(t.Context(), c)
			var got []string
			for _, u := range all {
				got = append(got, u.ID)
			}
			if want := []string{last, "20200101T000000Z-dddddd-9", "20990101T000000Z-cccccc-3", "20990101T000000Z-bbbbbb-2", "20260101T000000Z-aaaaaa-1"}; err != nil || !slices.Equal(got, want) || !strings.HasSuffix(last, "-11") {
				t.Errorf("List() = %q, %v; want %q, the first with -11", got, err, want)
			}
			if u, err := Restore(t.Context(), c, "", false); err != nil || u.ID != last {
				t.Errorf("Restore() = %s, %v; want %s", u.ID, err, last)
			}
			if text, err := os.ReadFile(filepath.Join(remote, "file")); string(text) != "3" {
				t.Errorf("the file holds %q, %v; want 3", text, err)
			}
			for i := range 3 {
				last = deploy(fmt.Sprint("more ", i))
			}
			all, err = List(t.Context(), c)
			if err != nil || len(all) != maxKept || all[0].ID != last || all[4].ID != "20990101T000000Z-cccccc-3" {
				t.Errorf("List() = %+v, %v; want that the oldest are gone", all, err)
			}
		})
	}
}

// Each of several deploys at the same time has a number of its own.
func TestUndoNumbers(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() {
			ids[i], _ = c.Output(t.Context(), "sh", "-c", claimScript, "sh", undoDir, fmt.Sprintf("20260101T000000Z-aaaaa%d", i))
		})
	}
	all.Wait()
	slices.SortFunc(ids, compareIDs)
	for i, id := range ids {
		if !strings.HasSuffix(id, fmt.Sprintf("-%d", i+1)) {
			t.Fatalf("the deploys are %q; want the numbers from 1 to 8", ids)
		}
	}
}

// A board that does not list its deploys has not none.
func TestUndoListThatFails(t *testing.T) {
	useTempUndoDir(t)
	for name, script := range map[string]string{"nothing": "exit 0", "a few": "echo 20260101T000000Z-aaaaaa-1", "an error": "exit 1"} {
		dir := t.TempDir()
		sshtest.PlaceFile(t, filepath.Join(dir, "sh"), "#!/bin/sh\n"+script+"\n", 0o755)
		c := boardtest.Connect(t, "SetEnv HOME="+dir+" PATH="+dir+":/usr/bin:/bin")
		if all, err := List(t.Context(), c); err == nil {
			t.Errorf("%s: List() = %v; want an error", name, all)
		}
	}
	if all, err := List(t.Context(), boardtest.Connect(t)); err != nil || len(all) > 0 {
		t.Errorf("without a folder: List() = %v, %v", all, err)
	}
}

var errKilled = errors.New("killed")

// A deploy can be undone after an interrupt at any step, also with a partly uploaded file. An
// interrupted undo can be repeated.
func TestUndoAfterKills(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	for steps := range 6 {
		local, remote := makeFolders(t)
		was := sshtest.ReadTree(t, remote)
		_, err := files.PutDir(t.Context(), c, local, remote, files.DirOptions{Delete: true, Before: func(ctx context.Context, p *files.Plan) error {
			u := Deployment{ID: fmt.Sprintf("20260101T00000%dZ-abcdef", steps), Root: p.Root}
			if _, err := saveReplaced(ctx, c, p, u); err != nil {
				return err
			}
			all, err := p.Transitions(ctx)
			if err != nil {
				return err
			}
			return applySome(local, remote, all, steps)
		}})
		if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if steps > 1 {
			sshtest.WriteTree(t, remote, map[string]string{
				"new/deep/.file.ABCDEFGHIJ.part": "half", "new/deep/.file.0123456789abcdef0123.part": "half",
				"new/deep/..file.0123456789abcdef0123.part.ABCDEFGHIJ.part": "copy",
			})
		}
		all, err := List(t.Context(), c)
		if err != nil || len(all) != 1 {
			t.Fatalf("after %d steps: %d deploys, %v", steps, len(all), err)
		}
		restoreHalf(t, c, all[0])
		if _, err := Restore(t.Context(), c, "", false); err != nil {
			t.Errorf("after %d steps: %v", steps, err)
		}
		if diff := cmp.Diff(was, sshtest.ReadTree(t, remote)); diff != "" {
			t.Errorf("after %d steps, then undone: before (-), after (+):\n%s", steps, diff)
		}
	}
}

// applySome does the first steps of a deploy in the folder itself. The steps are folders,
// files, links, modes and deletions.
func applySome(local, remote string, all []files.Transition, steps int) error {
	work := []func(e files.Transition, here, there string) error{
		func(e files.Transition, _, there string) error {
			if e.After.Kind != files.Folder || e.Before.Kind == files.Folder {
				return nil
			}
			return errors.Join(os.RemoveAll(there), os.Mkdir(there, 0o700))
		},
		func(e files.Transition, here, there string) error {
			if e.After.Kind != files.File {
				return nil
			}
			data, err := os.ReadFile(here)
			return errors.Join(err, os.RemoveAll(there), os.WriteFile(there, data, 0o600))
		},
		func(e files.Transition, here, there string) error {
			if e.After.Kind != files.Link {
				return nil
			}
			to, err := os.Readlink(here)
			return errors.Join(err, os.RemoveAll(there), os.Symlink(to, there))
		},
		func(e files.Transition, here, there string) error {
			if e.After.Kind != files.File && e.After.Kind != files.Folder {
				return nil
			}
			info, err := os.Stat(here)
			if err != nil {
				return err
			}
			return os.Chmod(there, info.Mode())
		},
		func(e files.Transition, _, there string) error {
			if e.After.Kind != files.None {
				return nil
			}
			return os.RemoveAll(there)
		},
	}
	for _, step := range work[:steps] {
		for _, e := range all {
			if err := step(e, filepath.Join(local, e.Path), filepath.Join(remote, e.Path)); err != nil {
				return err
			}
		}
	}
	return errKilled
}

// restoreHalf does the first half of an undo.
func restoreHalf(t *testing.T, c *boardssh.Conn, u Deployment) {
	t.Helper()
	todo, changed, parts, err := compareEntries(t.Context(), c, u)
	if err != nil || len(changed) > 0 {
		t.Fatal(changed, err)
	}
	ops, err := io.ReadAll(restoreInput(todo, parts))
	if err != nil {
		t.Fatal(err)
	}
	args := strings.SplitAfter(string(ops), "\x00")
	half := strings.Join(args[:len(args)/8*4], "")
	if r, err := c.Feed(t.Context(), strings.NewReader(half), "sh", "-c", restoreScript, "sh", u.Root, undoDir+"/"+u.ID); err != nil || r.Status != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// A deploy that is interrupted before it wrote its manifest has changed nothing.
func TestSaveIsInterrupted(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	local, remote := makeFolders(t)
	was := sshtest.ReadTree(t, remote)
	if err := os.WriteFile(undoDir, nil, 0o600); err != nil { // no folder can be made there
		t.Fatal(err)
	}
	if _, _, err := DeployDir(t.Context(), c, local, remote, files.DirOptions{}, nil); err == nil {
		t.Error("DeployDir succeeded")
	}
	if diff := cmp.Diff(was, sshtest.ReadTree(t, remote)); diff != "" {
		t.Errorf("before (-), after (+):\n%s", diff)
	}
}

func TestDeployDirRefuses(t *testing.T) {
	useTempUndoDir(t)
	c := boardtest.Connect(t)
	local := t.TempDir()
	sshtest.WriteTree(t, local, map[string]string{"a": "1"})
	_, _, err := DeployDir(t.Context(), c, local, "relative", files.DirOptions{}, nil)
	sshtest.CheckError(t, err, "no absolute path")
	_, _, err = DeployDir(t.Context(), c, local, t.TempDir(), files.DirOptions{}, []string{"-x; reboot"})
	sshtest.CheckError(t, err, "no name of a unit")
	_, err = Restore(t.Context(), c, "../../etc", false)
	sshtest.CheckError(t, err, "no ID")
}

func TestParseManifest(t *testing.T) {
	good := `{"id":"20260101T000000Z-abcdef-1","root":"/etc","entries":[{"path":"a/b","before":{"kind":"none"},"after":{"kind":"file","mode":"0644","sha256":"` + strings.Repeat("a", 64) + `"}}]}`
	if _, err := parseManifest([]byte(good)); err != nil {
		t.Errorf("parseUndo: %v", err)
	}
	for _, change := range [][2]string{
		{"/etc", "etc"},
		{"20260101", "x"},
		{"abcdef", "abcdef-0"},
		{"abcdef", "abcdef-1x"},
		{"abcdef", "abcdef-1/../.."},
		{"a/b", "../b"},
		{"a/b", "/b"},
		{"a/b", `a\u0000b`},
		{"none", "pipe"},
		{"0644", "0644; id"},
		{"aaaa", "$(id)"},
		{`"kind":"none"`, `"kind":"file"`},
		{`"entries"`, `"units":["-x"],"entries"`},
		{`"entries"`, `"settings":[{"kind":"kernel","name":"/etc/passwd","before":"","after":"1"}],"entries"`},
		{`"entries"`, `"settings":[{"kind":"kernel","name":"/proc/sys/../../etc/passwd","before":"","after":"1"}],"entries"`},
		{`"entries"`, `"settings":[{"kind":"kernel","name":"/proc/sys/vm/x","before":"a\nb","after":"1"}],"entries"`},
		{`"entries"`, `"settings":[{"kind":"module","name":"-r","before":"absent","after":"loaded"}],"entries"`},
		{`"entries"`, `"settings":[{"kind":"service","name":"--all","before":"active","after":"active"}],"entries"`},
		{`"entries"`, `"settings":[{"kind":"program","name":"x","before":"","after":""}],"entries"`},
		{"{", ""},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if u, err := parseManifest([]byte(bad)); err == nil {
			t.Errorf("parseUndo(%s) = %+v; want an error", bad, u)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte(`{"id":"20260101T000000Z-abcdef-1","root":"/etc","entries":[{"path":"a","before":{"kind":"none"},"after":{"kind":"folder"}}]}`))
	f.Add([]byte(`{"id":"20260101T000000Z-abcdef-1","root":"/","among":true,"settings":[{"kind":"kernel","name":"/proc/sys/vm/x","before":"1","after":"2"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		u, err := parseManifest(data)
		if err != nil {
			return
		}
		for _, s := range u.Settings {
			if strings.Contains(s.Name, "/../") || strings.HasPrefix(s.Name, "-") || strings.ContainsAny(s.Before+s.After, "\n\x00\x1b") {
				t.Errorf("setting %+v", s)
			}
		}
		for _, e := range u.Entries {
			if strings.HasPrefix(e.Path, "/") || strings.Contains("/"+e.Path+"/", "/../") {
				t.Errorf("path %q", e.Path)
			}
		}
	})
}

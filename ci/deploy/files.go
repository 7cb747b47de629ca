package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/ci/reach"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/undo"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// FilesOptions says how Files runs.
type FilesOptions struct {
	files.DirOptions
	Restart []string      // units to restart afterwards
	Watch   time.Duration // how long they must keep running
	Keep    bool          // keep the files if a unit does not start
	JSON    bool
	Now     <-chan struct{} // closed when putting back must end too
}

// filesDone is the result of Files.
type filesDone struct {
	Undo    string         `json:"undo,omitempty"` // the ID for deploy undo
	Changes []files.Change `json:"changes"`
	Undone  bool           `json:"undone,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// Files copies a local folder's content, or one file, to a folder on a board. o.Delete also removes
// the folder's other files. Files restarts units and writes what changed. If a unit does not keep
// running, it undoes all changes, unless o.Keep is set. A dry run only writes the changes.
func Files(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, local, remote string, o FilesOptions) error {
	folder, remove, err := asFolder(local)
	if err != nil {
		return err
	}
	defer remove()
	if err := checkDestination(remote, folder == local, o.Delete); err != nil {
		return err
	}
	return reach.WithConnection(ctx, opt, spec, host, func(conn *boardssh.Conn) error {
		defer reach.CloseOnInterrupt(conn, o.Now)()
		var done filesDone
		var err error
		if folder != local {
			o.Name = local
		}
		done.Changes, done.Undo, err = undo.DeployDir(ctx, conn, folder, remote, o.DirOptions, o.Restart)
		if err == nil && len(o.Restart) > 0 && !o.DryRun {
			err = restartOrUndo(ctx, conn, &done, o)
		}
		if err != nil {
			done.Error = err.Error()
		}
		return errors.Join(done.addUndoStep(conn, spec, host, err), showFiles(w, done, remote, o))
	})
}

// addUndoStep adds the line that undoes a deploy to an error without next step, if changes remain.
func (d *filesDone) addUndoStep(conn *boardssh.Conn, spec images.Spec, host string, err error) error {
	if err == nil || d.Undo == "" || d.Undone || strings.Contains(err.Error(), "\nnext: ") {
		return err
	}
	line := fmt.Sprintf("deploy undo %s %s --id=%s", plaintext.Quote(spec.TypedName()), plaintext.Quote(host), d.Undo)
	if conn.Address().Become != "" {
		line += " --become"
	}
	return boardssh.NextStep{Err: err, Step: line}
}

// checkDestination refuses a relative path. With remove (--delete) it also refuses system folders,
// and the folder of a single file, because other files there would be removed.
func checkDestination(remote string, isFolder, remove bool) error {
	clean := path.Clean(remote)
	switch {
	case !path.IsAbs(remote):
		return fmt.Errorf("%q is no absolute path on the board\nnext: repeat the line with %s for %s", remote, plaintext.Quote(path.Join("/", remote)), plaintext.Quote(remote))
	case remove && !isFolder:
		return fmt.Errorf("--delete of a single file would remove all others in %s\nnext: repeat the line without --delete", clean)
	case remove && (clean == "/" || path.Dir(clean) == "/" && slices.Contains(systemFolders, path.Base(clean))):
		return fmt.Errorf("--delete would remove the board's own files in %s\nnext: repeat the line without --delete  # or with a folder below", clean)
	}
	return nil
}

// systemFolders are top folders that a board needs to run.
var systemFolders = []string{"bin", "boot", "data", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"}

// asFolder returns local, or for a file a temporary folder with its copy. The caller calls remove.
func asFolder(local string) (folder string, remove func(), err error) {
	info, err := os.Stat(local)
	if err != nil {
		return "", nil, localfile.ExplainUnreadable(local, err)
	}
	if info.IsDir() {
		return local, func() {}, nil
	}
	if folder, err = os.MkdirTemp("", "slipway-deploy"); err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(folder) }
	data, err := localfile.Read(local, math.MaxInt64-1)
	if err == nil {
		name := filepath.Join(folder, filepath.Base(local))
		err = errors.Join(os.WriteFile(name, data, 0o600), os.Chmod(name, info.Mode().Perm()))
	}
	if err != nil {
		remove()
	}
	return folder, remove, err
}

// restartOrUndo restarts the units and watches them for o.Watch. If that fails, it undoes the
// deploy, unless o.Keep is set or ctx ended.
func restartOrUndo(ctx context.Context, conn *boardssh.Conn, done *filesDone, o FilesOptions) error {
	err := undo.RestartUnits(ctx, conn, o.Restart, o.Watch)
	if err == nil || ctx.Err() != nil || o.Keep || done.Undo == "" {
		return err
	}
	return putBack(ctx, conn, done, false, err)
}

// putBackLimit is how long putting back may take after Ctrl-C.
const putBackLimit = 2 * time.Minute

// putBack undoes a failed deploy (with force also what changed since) and sets done.Undone. It
// works even if ctx was canceled, up to putBackLimit. It returns err with the result.
func putBack(ctx context.Context, conn *boardssh.Conn, done *filesDone, force bool, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackLimit)
	defer cancel()
	_, restored, failed := undoAndRestart(ctx, conn, done.Undo, force)
	switch done.Undone = restored; {
	case failed == nil:
		return notedError{err, errors.New(allBack)}
	case restored:
		return notedError{err, failed}
	}
	return notedError{err, fmt.Errorf("what was there could not be put back: %w", failed)}
}

// allBack says that a board's files and settings are as before a deploy.
const allBack = "all was put back as it was"

// notedError is an error with a note below it, before its next step.
type notedError struct{ error, note error }

// Error returns the error's text, the note, and the error's next step unless the note has one.
func (e notedError) Error() string {
	text, next, found := strings.Cut(e.error.Error(), "\nnext: ")
	text += "\n  " + e.note.Error()
	if found && !strings.Contains(text, "\nnext: ") {
		text += "\nnext: " + next
	}
	return text
}

func (e notedError) Unwrap() []error { return []error{e.error, e.note} }

// showFiles writes the changes of a run of Files as JSON, or as text if they were not undone.
func showFiles(w io.Writer, done filesDone, remote string, o FilesOptions) error {
	if o.JSON {
		return plaintext.WriteJSON(w, done)
	}
	if done.Undone {
		return nil // the error says it
	}
	for _, c := range done.Changes {
		fmt.Fprintf(w, "%-13s  %q\n", c.Kind, c.Path)
	}
	done.showEnd(w, len(done.Changes), " in "+remote, remote, o.DryRun)
	return nil
}

// showEnd writes that n changes were made at place (" in DIR" or ""), or that target needs none.
func (d filesDone) showEnd(w io.Writer, n int, place, target string, dryRun bool) {
	switch {
	case dryRun && d.Error == "":
		fmt.Fprintf(w, "%d changes%s; nothing was done\n", n, place)
	case d.Undo != "" && d.Error != "":
		fmt.Fprintf(w, "some of these %d changes%s may be made; deploy undo puts back what was there (--id=%s)\n", n, place, d.Undo)
	case d.Undo != "":
		fmt.Fprintf(w, "%d changes%s; deploy undo puts back what was there (--id=%s)\n", n, place, d.Undo)
	case n == 0 && d.Error == "":
		fmt.Fprintf(w, "%s is as it should be\n", target)
	}
}

// UndoOptions says what Undo does.
type UndoOptions struct {
	ID    string // the last one if not given
	List  bool   // only list what can be undone
	Force bool   // undo also what was changed since
	JSON  bool
}

// Undo restores what a deploy replaced, and restarts its units. With o.List it only lists deploys.
func Undo(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host string, o UndoOptions) error {
	return reach.WithConnection(ctx, opt, spec, host, func(conn *boardssh.Conn) error {
		if o.List {
			all, err := undo.List(ctx, conn)
			if err != nil {
				return err
			}
			return showUndos(w, all, o.JSON)
		}
		u, _, err := undoAndRestart(ctx, conn, o.ID, o.Force)
		if errors.Is(err, undo.ErrNothing) {
			err = boardssh.NextStep{Err: err, Step: "repeat the line with --list"}
		}
		if err != nil {
			return err
		}
		if o.JSON {
			return plaintext.WriteJSON(w, u)
		}
		_, err = fmt.Fprintf(w, "%q is as it was before %s: %d names\n", u.Root, u.ID, len(u.Entries)+len(u.Settings))
		return err
	})
}

// undoAndRestart undoes a deploy and restarts its units, even if the board refused a setting. It
// stops units that the deploy added. restored says that only a restart can have failed.
func undoAndRestart(ctx context.Context, conn *boardssh.Conn, id string, force bool) (u undo.Deployment, restored bool, err error) {
	u, err = undo.Restore(ctx, conn, id, force)
	if restored = err == nil; !restored && !errors.Is(err, undo.ErrSetting) || len(u.Units) == 0 {
		return u, restored, err
	}
	failed := undo.RestoreUnits(ctx, conn, u.Units)
	if failed != nil && restored {
		failed = fmt.Errorf(allBack+", and still: %w", failed)
	}
	return u, restored, errors.Join(err, failed)
}

// showUndos lists the deploys that can be undone, as text or JSON.
func showUndos(w io.Writer, all []undo.Deployment, asJSON bool) error {
	if asJSON {
		return plaintext.WriteJSON(w, all)
	}
	for _, u := range all {
		fmt.Fprintf(w, "%s  %s  %q  %d names  %s\n", u.ID, u.Started.Local().Format(time.DateTime), u.Root, len(u.Entries)+len(u.Settings), strings.Join(u.Units, " "))
	}
	if len(all) == 0 {
		fmt.Fprintln(w, "no deploy can be undone")
	}
	return nil
}

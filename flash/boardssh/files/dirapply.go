package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh"
	"slipway/layers/progress"
)

// Small files share a channel and are verified together; each alone waits for a dozen round trips.
const (
	smallBytes    = 1 << 20
	smallAtOnce   = 12
	smallTogether = 256
)

// These scripts get the folder as $1, and names on standard input as the scripts in dirlist.go do.
const (
	// A file or a link with a folder's name is replaced by a folder, even if the link leads to one.
	folderScript = `mkdir -p "$1" && cd "$1" && xargs -0 sh -c 'for f; do
	{ [ -d "$f" ] && [ ! -L "$f" ]; } || { rm -f "$f" && mkdir -m 700 "$f"; } || exit 1
done' sh`
	linkScript   = `cd "$1" && xargs -0 -n 2 sh -c '[ $# = 0 ] || ln -sfn -- "$2" "$1"' sh`
	chownScript  = `cd "$1" && xargs -0 chown -h "$2"`
	chmodScript  = `cd "$1" && xargs -0 chmod "$2"`
	removeFiles  = `cd "$1" && xargs -0 rm -f`
	removeFolder = `cd "$1" && xargs -0 rmdir`
)

// applyChanges makes the planned changes on the board, deletions last, and syncs its disk.
func (d *folderUpload) applyChanges(ctx context.Context, step *progress.Step) error {
	if err := d.runOver(ctx, "make folders", folderScript, d.folders); err != nil {
		return err
	}
	if err := d.sendFiles(ctx, step); err != nil {
		return err
	}
	if err := d.makeLinks(ctx); err != nil {
		return err
	}
	if err := d.setRights(ctx); err != nil {
		return err
	}
	if err := d.deleteExtra(ctx); err != nil {
		return err
	}
	return syncNames(ctx, d.conn)
}

// syncNames runs sync on the board, so that the new names of files survive a power cut. Its status
// is ignored: a board without that program writes the names some seconds later.
func syncNames(ctx context.Context, c *boardssh.Conn) error {
	_, err := c.Run(ctx, "sync")
	return err
}

// runOver runs a script on the board with the names as its input. The script must succeed.
func (d *folderUpload) runOver(ctx context.Context, what, script string, names []string, args ...string) error {
	return RunScript(ctx, d.conn, what, ListForXargs(names), script, append([]string{d.remote}, args...)...)
}

// RunScript runs a shell script on the board. A status over 0 is an error that begins with what.
func RunScript(ctx context.Context, c *boardssh.Conn, what string, stdin io.Reader, script string, args ...string) error {
	r, err := c.Feed(ctx, stdin, append([]string{"sh", "-c", script, "sh"}, args...)...)
	if err == nil && r.Status != 0 {
		err = fmt.Errorf("%s: status %d: %s", what, r.Status, bytes.TrimSpace(r.Stderr))
	}
	return err
}

// runOverAny runs a script with the names as its input, as runOver does, if there are any names.
func (d *folderUpload) runOverAny(ctx context.Context, what, script string, names []string, args ...string) error {
	if len(names) == 0 {
		return nil
	}
	return d.runOver(ctx, what, script, names, args...)
}

// sendFiles sends large files one after the other, then small ones in groups of smallTogether.
func (d *folderUpload) sendFiles(ctx context.Context, step *progress.Step) error {
	var small []string
	for _, name := range d.files {
		if d.want[name].size <= smallBytes {
			small = append(small, name)
			continue
		}
		step.Detail(boardssh.Printable(name))
		if err := d.sendLarge(ctx, name, step); err != nil {
			return err
		}
	}
	for len(small) > 0 {
		n := min(len(small), smallTogether)
		step.Detail(boardssh.Printable(small[0]))
		if err := d.sendSmall(ctx, small[:n], step); err != nil {
			return err
		}
		small = small[n:]
	}
	return nil
}

// checkSpace returns ErrFull if the board reports less free space than the files to send need.
func (d *folderUpload) checkSpace(ctx context.Context) error {
	if len(d.files) == 0 {
		return nil
	}
	b, err := openChannel(ctx, d.conn)
	if err != nil {
		return err
	}
	defer b.close()
	return checkFreeSpace(ctx, d.conn, b, d.remote, d.countBytes())
}

// sendLarge uploads a file with putSource, and checks that it has not changed since it was listed.
func (d *folderUpload) sendLarge(ctx context.Context, name string, step *progress.Step) error {
	f, src, err := openSource(d.localPath(name))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := putSource(ctx, d.conn, src, path.Join(d.remote, name), d.want[name].mode, step); err != nil {
		return err
	}
	return d.checkUnchanged(name)
}

func (d *folderUpload) localPath(name string) string {
	return filepath.Join(d.local, filepath.FromSlash(name))
}

// checkUnchanged returns an error if a local file has another size or time than when it was listed.
func (d *folderUpload) checkUnchanged(name string) error {
	info, err := os.Lstat(d.localPath(name))
	if err != nil {
		return err
	}
	if want := d.want[name]; info.Size() != want.size || !info.ModTime().Equal(want.modified) {
		return fmt.Errorf("%s changed while it was read: call this again", d.localPath(name))
	}
	return nil
}

// readFile reads a local file and checks that it has not changed since it was listed.
func (d *folderUpload) readFile(name string) ([]byte, error) {
	f, err := os.Open(d.localPath(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, d.want[name].size+1))
	if err != nil {
		return nil, err
	}
	return data, d.checkUnchanged(name)
}

// sendSmall uploads files under hidden names, compares their digests on the board, and then renames
// them. After an error it removes the hidden files.
func (d *folderUpload) sendSmall(ctx context.Context, names []string, step *progress.Step) (err error) {
	b, err := openChannel(ctx, d.conn)
	if err != nil {
		return err
	}
	defer b.close()
	temps, sums := make([]string, len(names)), make([]string, len(names))
	for i, name := range names {
		temps[i] = path.Clean(tempName(name))
	}
	defer func() {
		if err = explainFailure(ctx, d.conn, d.remote, err); err != nil {
			d.removeTemps(ctx, temps)
		}
	}()
	err = eachAtOnce(ctx, b, len(names), func(ctx context.Context, i int) (err error) {
		sums[i], err = d.sendOne(ctx, b, names[i], temps[i])
		step.Add(d.want[names[i]].size)
		return err
	})
	if err != nil {
		return err
	}
	arrived, err := fileDigests(ctx, d.conn, d.remote, temps)
	if err != nil {
		return err
	}
	for i, sum := range arrived {
		if sum != sums[i] {
			return fmt.Errorf("%s: %w: the board found the digest %s, want %s", boardssh.Printable(names[i]), ErrDamaged, sum, sums[i])
		}
	}
	return eachAtOnce(ctx, b, len(names), func(ctx context.Context, i int) error {
		return b.rename(ctx, path.Join(d.remote, temps[i]), path.Join(d.remote, names[i]))
	})
}

// eachAtOnce calls work for each index below n, a few at a time, and returns the first error.
func eachAtOnce(ctx context.Context, b boardFiles, n int, work func(context.Context, int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(min(smallAtOnce, b.inFlight(unknownRoundTrip)))
	for i := range n {
		all.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return work(ctx, i)
		})
	}
	return all.Wait()
}

// sendOne uploads a file as temp, syncs it, sets its mode and returns the digest of the sent data.
func (d *folderUpload) sendOne(ctx context.Context, b boardFiles, name, temp string) (digest string, err error) {
	data, err := d.readFile(name)
	if err != nil {
		return "", err
	}
	temp = path.Join(d.remote, temp)
	file, err := b.createFile(ctx, temp)
	if err != nil {
		return "", fmt.Errorf("create a file for %s: %w", boardssh.Printable(name), err)
	}
	if err := b.do(ctx, func() error { return writeWhole(ctx, file, b.pieceBytes(), data) }); err != nil {
		return "", err
	}
	if err := file.sync(ctx, int64(len(data))); err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), file.finish(ctx, d.want[name].mode)
}

// writeWhole writes data to the file in pieces of up to most bytes.
func writeWhole(ctx context.Context, file pieceWriter, most int64, data []byte) (err error) {
	for at := int64(0); at < int64(len(data)) && err == nil; at += most {
		err = file.writePiece(ctx, bytes.NewReader(data), piece{at, min(most, int64(len(data))-at)})
	}
	return err
}

// removeTemps removes the hidden files of a failed sendSmall, even after a Ctrl-C.
func (d *folderUpload) removeTemps(ctx context.Context, temps []string) {
	ctx, cancel := boardssh.CleanupContext(ctx)
	defer cancel()
	_ = d.runOver(ctx, "clean up", removeFiles, temps) // a lost connection leaves hidden files
}

// makeLinks makes the planned symlinks on the board, and replaces files and links of their names.
func (d *folderUpload) makeLinks(ctx context.Context) error {
	if len(d.links) == 0 {
		return nil
	}
	var pairs bytes.Buffer
	for _, name := range d.links {
		fmt.Fprintf(&pairs, "./%s\x00%s\x00", name, d.want[name].target)
	}
	return RunScript(ctx, d.conn, "make links", &pairs, linkScript, d.remote)
}

// setRights sets owners and then modes on the board, because chown removes setuid.
func (d *folderUpload) setRights(ctx context.Context) error {
	owned := map[string][]string{}
	for _, name := range d.chowns {
		owner := d.options.ownerOf(name)
		owned[owner] = append(owned[owner], name)
	}
	for owner, names := range owned {
		if err := d.runOver(ctx, "set owners", chownScript, names, owner); err != nil {
			return err
		}
	}
	for _, kind := range []fs.FileMode{0, fs.ModeDir} { // what is in a folder before the folder
		modes := map[fs.FileMode][]string{}
		for _, name := range d.chmods {
			if e := d.want[name]; e.kind == kind {
				modes[e.mode] = append(modes[e.mode], name)
			}
		}
		for mode, names := range modes {
			if err := d.runOver(ctx, "set modes", chmodScript, names, fmt.Sprintf("%04o", mode)); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteExtra deletes what only the board has: all files, then the empty folders.
func (d *folderUpload) deleteExtra(ctx context.Context) error {
	var files, folders []string
	for _, name := range d.deletes {
		if d.have[name].kind == fs.ModeDir {
			folders = append(folders, name)
		} else {
			files = append(files, name)
		}
	}
	if err := d.runOverAny(ctx, "delete files", removeFiles, files); err != nil {
		return err
	}
	return d.runOverAny(ctx, "delete folders", removeFolder, folders)
}

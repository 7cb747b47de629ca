package files

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// DirOptions say how PutDir changes a folder on a board. The zero value adds and replaces.
type DirOptions struct {
	Owner  string // user, or user:group, by name or number, of everything in the folder afterwards; "" leaves the owners
	Delete bool   // remove what only the board has
	DryRun bool   // change nothing
	Name   string // shown for a local folder that the user does not know

	// Among copies into a folder that holds other files. Slipway ignores names that it does not
	// send. Existing folders, and links to folders, stay as they are.
	Among  bool
	Owners map[string]string // of single names, instead of Owner

	// PutDir calls Before, which may be nil, once before the first change. Its error ends PutDir.
	Before func(context.Context, *Plan) error
}

// Change is one change that PutDir makes, or would make, below the folder on the board.
type Change struct {
	Path      string `json:"path"` // below the folder, with slashes
	Kind      string `json:"kind"` // one of the following
	SizeBytes int64  `json:"sizeBytes,omitempty"`
}

// Kinds of changes.
const (
	Added    = "added"
	Replaced = "replaced"
	Mode     = "mode or owner"
	Deleted  = "deleted"
)

// mostEntries is how many files, links and folders one folder may hold.
const mostEntries = 100_000

// PutDir uploads a local folder into one on the board: files, compared by size and digest, their
// modes, folders, and symlinks as links. o.Delete removes what only the board has. The board needs
// find, stat, xargs, and sha256sum or openssl; busybox has the first four. Each file appears whole
// or not at all, but not all at once; you can repeat a broken call. On the board, a symlink in a
// folder's place is replaced, never followed; remote may be one. A folder in a file's place fails.
// changes are the planned ones, also after an error.
func PutDir(ctx context.Context, c *boardssh.Conn, local, remote string, o DirOptions) (changes []Change, err error) {
	if remote == "" || strings.IndexByte(remote, 0) >= 0 {
		return nil, fmt.Errorf("put %s: %q is no name for a folder", local, remote)
	}
	if err := o.checkOwners(); err != nil {
		return nil, fmt.Errorf("put %s: %w", local, err)
	}
	d := &folderUpload{conn: c, local: local, remote: pathArgument(remote), options: o}
	what := cmp.Or(o.Name, "folder "+local)
	step := progress.Start(ctx, "compare "+cmp.Or(o.Name, "folder "+filepath.Base(local)), 0, progress.Bytes)
	if err = d.planChanges(ctx, step); err == nil && !o.DryRun {
		step.End(fmt.Sprintf("%d changes", len(d.changes)), nil)
		step = progress.Start(ctx, "put changes of "+filepath.Base(cmp.Or(o.Name, local)), d.countBytes(), progress.Bytes)
		if err = d.checkSpace(ctx); err == nil && o.Before != nil {
			err = o.Before(ctx, &Plan{Root: d.remote, Changes: d.changes, upload: d})
		}
		if err == nil {
			err = d.applyChanges(ctx, step)
		}
	}
	if err != nil {
		err = boardssh.BoardError(fmt.Sprintf("put %s to %s:%s", what, c.Address().Host, boardssh.Printable(remote)), err)
	}
	step.End(fmt.Sprintf("%d changes%s", len(d.changes), describeTransport(c)), err)
	return d.changes, err
}

// checkOwners returns an error for an owner that is neither "" nor user or user:group.
func (o DirOptions) checkOwners() error {
	for _, owner := range append(slices.Collect(maps.Values(o.Owners)), o.Owner) {
		if owner != "" && !ownerPattern().MatchString(owner) {
			return fmt.Errorf("%q is no owner, such as user, user:group or 1000:1000", owner)
		}
	}
	return nil
}

// ownersScript prints the first user or group of its arguments that is not on the board.
const ownersScript = `id >/dev/null || exit 0
for o; do
	u=${o%%:*} g=${o#"$u"} g=${g#:}
	case $u in *[!0-9]*) id -u "$u" >/dev/null 2>&1 || { echo "user $u"; exit; } ;; esac
	case $g in *[!0-9]*) getent group "$g" >/dev/null 2>&1 || grep -q "^$g:" /etc/group || { echo "group $g"; exit; } ;; esac
done`

// checkOwnersExist refuses an owner that the board does not have. It asks only about names.
func (d *folderUpload) checkOwnersExist(ctx context.Context) error {
	names := append(slices.Collect(maps.Values(d.options.Owners)), d.options.Owner)
	names = slices.DeleteFunc(names, func(owner string) bool { return strings.Trim(owner, "0123456789:") == "" })
	if len(names) == 0 {
		return nil
	}
	missing, err := d.conn.AskOutput(ctx, append([]string{"sh", "-c", ownersScript, "sh"}, names...)...)
	if err != nil || missing == "" {
		return err
	}
	return d.conn.NextOnBoard(fmt.Errorf("the board has no %s", missing), "cat /etc/passwd /etc/group", "see which names it has")
}

// ownerOf returns the owner that a name gets, or "" if it keeps its owner.
func (o DirOptions) ownerOf(name string) string { return cmp.Or(o.Owners[name], o.Owner) }

// folderUpload is one call of PutDir: the local and the board's entries, and the changes.
type folderUpload struct {
	conn          *boardssh.Conn
	local, remote string
	options       DirOptions

	want    map[string]entry
	have    map[string]entry
	changes []Change

	folders, links, files, chmods, chowns, deletes []string // in the order of their names
}

// entry describes a file, folder or link. Maps of entries have its path below the folder as key.
type entry struct {
	kind     fs.FileMode // its type
	mode     fs.FileMode // its permissions
	size     int64
	owner    [4]string // user and group, by number and by name
	target   string    // of a symlink
	modified time.Time
}

// planChanges checks that the owners exist, lists both folders, and fills in what differs.
func (d *folderUpload) planChanges(ctx context.Context, step *progress.Step) (err error) {
	step.Detail("looking")
	if d.want, err = scanFolder(ctx, d.local); err != nil {
		return err
	}
	if err := d.checkOwnersExist(ctx); err != nil {
		return err
	}
	if d.options.Delete {
		d.have, err = listFolder(ctx, d.conn, d.remote)
	} else {
		d.have, err = listNames(ctx, d.conn, d.remote, sortedNames(d.want), d.options.Among)
	}
	if err != nil {
		return err
	}
	same, err := d.sameContents(ctx)
	if err != nil {
		return err
	}
	for _, name := range sortedNames(d.want) {
		if err := d.planName(name, same[name]); err != nil {
			return err
		}
	}
	if d.options.Delete {
		d.planDeletes()
	}
	slices.SortFunc(d.changes, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}

func sortedNames(entries map[string]entry) []string {
	return slices.Sorted(maps.Keys(entries)) // folders come before what is in them
}

// scanFolder lists files, folders, symlinks below local. Others, or over mostEntries, are errors.
func scanFolder(ctx context.Context, local string) (map[string]entry, error) {
	root, err := os.Stat(local)
	if err != nil {
		return nil, err
	}
	if !root.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", local)
	}
	entries := map[string]entry{}
	err = filepath.WalkDir(local, func(name string, found fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return cmp.Or(err, context.Cause(ctx))
		}
		rel, err := filepath.Rel(local, name)
		if err != nil || rel == "." {
			return err
		}
		if len(entries) == mostEntries {
			return fmt.Errorf("%s holds more than %d entries", local, mostEntries)
		}
		e, err := localEntry(name, found)
		entries[filepath.ToSlash(rel)] = e
		return err
	})
	return entries, err
}

// localEntry describes a local file, folder or symlink. Another kind of file is an error.
func localEntry(name string, found fs.DirEntry) (entry, error) {
	info, err := found.Info()
	if err != nil {
		return entry{}, err
	}
	e := entry{kind: info.Mode().Type(), mode: chmodBits(info.Mode()), modified: info.ModTime()}
	switch e.kind {
	case 0:
		e.size = info.Size()
	case fs.ModeDir:
	case fs.ModeSymlink:
		e.target, err = os.Readlink(name)
	default:
		err = boardssh.NextStep{
			Err:  fmt.Errorf("%s is %s; Slipway sends only files, folders and symlinks", name, cmp.Or(kindNames[e.kind&^fs.ModeCharDevice], "a device")),
			Step: fmt.Sprintf("find %s ! -type f ! -type d ! -type l  # these must not be in the folder", plaintext.Quote(filepath.Dir(name))),
		}
	}
	return e, err
}

var kindNames = map[fs.FileMode]string{0: "a file", fs.ModeSymlink: "a symlink", fs.ModeSocket: "a socket", fs.ModeNamedPipe: "a named pipe"}

// chmodBits returns the permissions with setuid, setgid and sticky in chmod's octal form.
func chmodBits(m fs.FileMode) fs.FileMode {
	p := m.Perm()
	for bit, octal := range map[fs.FileMode]fs.FileMode{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			p |= octal
		}
	}
	return p
}

var ownerPattern = plaintext.Regexp(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

// planName adds a name to the lists of what to make, send, chown and chmod, and to the changes, if
// the two sides differ. same: their content is equal. A file or link in the place of a board's
// folder is an error. With Among, an existing folder stays as it is.
func (d *folderUpload) planName(name string, same bool) error {
	want := d.want[name]
	have, there := d.have[name]
	if there && have.kind == fs.ModeDir && want.kind != fs.ModeDir {
		there := path.Join(d.remote, name)
		err := fmt.Errorf("%s on the board is a folder, and %s is %s: a file does not replace a folder", there, d.localPath(name), kindNames[want.kind])
		return d.conn.NextOnBoard(err, "mv "+plaintext.Quote(there)+" "+plaintext.Quote(there+".old"), "then repeat the line")
	}
	there = there && have.kind == want.kind
	switch {
	case there && want.kind == fs.ModeDir && d.options.Among:
		return nil
	case there && (same || want.kind == fs.ModeDir):
		d.compareRights(name, want, have)
		return nil
	case want.kind == fs.ModeDir:
		d.folders = append(d.folders, name)
	case want.kind == fs.ModeSymlink:
		d.links = append(d.links, name)
	default:
		d.files = append(d.files, name)
	}
	owner := d.options.ownerOf(name)
	if owner != "" {
		d.chowns = append(d.chowns, name)
	}
	if want.kind == fs.ModeDir || want.kind == 0 && (owner != "" || want.mode != want.mode.Perm()) {
		d.chmods = append(d.chmods, name) // other files come with their mode
	}
	kind := Added
	if _, old := d.have[name]; old {
		kind = Replaced
	}
	d.changes = append(d.changes, Change{name, kind, want.size})
	return nil
}

// compareRights adds a name to d.changes and d.chmods if its mode or owner on the board differs,
// and to d.chowns if its owner does. It ignores folders' setuid and setgid, and symlinks' modes.
func (d *folderUpload) compareRights(name string, want, have entry) {
	mode := want.kind != fs.ModeSymlink && want.mode != have.mode
	if want.kind == fs.ModeDir {
		mode = (want.mode^have.mode)&0o1777 != 0 // folders inherit setgid, and chmod keeps it
	}
	owner := !have.ownedBy(d.options.ownerOf(name))
	if mode {
		d.chmods = append(d.chmods, name)
	}
	if owner {
		d.chowns = append(d.chowns, name)
		if want.kind != fs.ModeSymlink && !mode {
			d.chmods = append(d.chmods, name) // chown removes setuid
		}
	}
	if mode || owner {
		d.changes = append(d.changes, Change{Path: name, Kind: Mode})
	}
}

// ownedBy reports whether owner, a user or user:group by name or number, is the entry's, or "".
func (e entry) ownedBy(owner string) bool {
	user, group, both := strings.Cut(owner, ":")
	is := func(want, number, name string) bool { return want == "" || want == number || want == name }
	return is(user, e.owner[0], e.owner[2]) && (!both || is(group, e.owner[1], e.owner[3]))
}

// planDeletes adds to d.deletes and d.changes what only the board has, a folder after its contents.
// Files of broken uploads are no changes, so that an undo does not restore them.
func (d *folderUpload) planDeletes() {
	for _, name := range slices.Backward(sortedNames(d.have)) {
		if _, wanted := d.want[name]; wanted {
			continue
		}
		d.deletes = append(d.deletes, name)
		if PartOf(name) == "" || d.have[name].kind != 0 {
			d.changes = append(d.changes, Change{name, Deleted, d.have[name].size})
		}
	}
}

// countBytes returns the size of all files to send.
func (d *folderUpload) countBytes() (sum int64) {
	for _, name := range d.files {
		sum += d.want[name].size
	}
	return sum
}

// sameContents returns by name which files and links have the same content on both sides.
func (d *folderUpload) sameContents(ctx context.Context) (map[string]bool, error) {
	var files, links []string
	for _, name := range sortedNames(d.want) {
		want, have := d.want[name], d.have[name]
		switch {
		case have.kind != want.kind || have.owner[0] == "": // not there
		case want.kind == fs.ModeSymlink:
			links = append(links, name)
		case want.kind == 0 && want.size == have.size:
			files = append(files, name)
		}
	}
	same := map[string]bool{}
	if err := d.markSame(ctx, files, fileDigests, d.fileDigest, same); err != nil {
		return nil, err
	}
	return same, d.markSame(ctx, links, linkDigests, d.linkDigest, same)
}

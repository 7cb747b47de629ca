// Package undo turns a folder or a configuration into changes of a board. Before the first change,
// it saves on the board what the deploy replaces, and restores that on request.
package undo

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// A deploy saves on the board what it replaces:
//
//	<folder>/<id>/manifest.json   the states before and after
//	<folder>/<id>/old/...         the files and links from before
//
// The manifest is written last, by a rename, and before the first change. A deploy that is
// interrupted later can be undone. One that is interrupted earlier has changed nothing.
//
// An ID ends with a number that the board counts up. Only that number says which deploy is the
// latest one: the time before it comes from the deploying machine, whose clock may be wrong.
const (
	maxKept          = 5
	maxSettings      = 1000
	maxEntries       = 100_000 // as many as a folder may hold
	maxUndoBytes     = 1 << 30
	maxManifestBytes = 32 << 20
)

// undoDir is root's folder of saved deploys on the board. Tests change it. homeUndoDir is the
// folder of other users, below their home.
var undoDir, homeUndoDir = "/var/lib/slipway/undo", ".local/state/slipway/undo"

// Deployment is a deploy that can be undone.
type Deployment struct {
	ID      string             `json:"id"`
	Root    string             `json:"root"`
	Started time.Time          `json:"started"`
	Units   []string           `json:"units,omitempty"` // restarted after the deploy
	Entries []files.Transition `json:"entries"`

	NewRoots int       `json:"newRoots,omitempty"` // how many folders of Root, from its end, were not there
	Among    bool      `json:"among,omitempty"`    // as in files.DirOptions
	Settings []Setting `json:"settings,omitempty"`

	dir string // the deploy's folder on the board
}

// claimScript makes the folder of a deploy, under the first number that is free, and prints
// its ID. A claim belongs to one deploy, also if several begin at the same time.
const claimScript = `mkdir -p "$1" && cd "$1" || exit
n=0 tries=0
for d in *Z-*-*; do
	case ${d##*-} in *[!0-9]* | "" | ?????????????*) ;; *) [ "${d##*-}" -le "$n" ] || n=${d##*-} ;; esac
done
while n=$((n + 1)); do
	said=$(mkdir -m 700 "claim-$n" 2>&1) || { tries=$((tries + 1)); [ "$tries" -lt 50 ] || { echo "$said" >&2; exit 1; }; continue; }
	set -- "$1" "$2" *Z-*-"$n"
	[ -d "$3" ] || break
	rmdir "claim-$n" || exit
done
mv "claim-$n" "$2-$n" && mkdir -m 700 "$2-$n/old" && echo "$2-$n"`

// listScript prints the names in the user's folder of deploys, and a last line with that folder.
const listScript = `case $(id -u) in 0 | "") d=$1 ;; *) d=$HOME/$2 ;; esac
cd "$d" 2>/dev/null || [ ! -e "$d" ] || cd "$d" || exit
[ ! -e "$d" ] || for f in *; do echo "$f"; done
echo "end $d"`

// The scripts are fixed texts. Names reach them through xargs, as in files.PutDir.
const (
	saveScript = `cd "$1" && xargs -0 sh -c 'd=$0; for f; do
	case $f in */*) mkdir -p "$d/old/${f%/*}" ;; esac
	cp -pP "$f" "$d/old/$f" || exit 255
done' "$2" && sync`

	// Arguments: operation, name, mode, owner. A file appears by rename, as in files.PutDir.
	restoreScript = `mkdir -p "$1" && cd "$1" && xargs -0 -n 4 sh -c 'd=$0; [ $# = 4 ] || exit 0
case $1 in
remove) rm -f "$2" ;;
rmdir) rmdir "$2" 2>/dev/null || true ;;
mkdir) [ ! -L "$2" ] || rm -f "$2"; mkdir -p "$2" && chown -h "$4" "$2" && chmod "$3" "$2" ;;
put) t="$2.slipway-undo" && rm -f "$t" && cp -pP "$d/old/$2" "$t" && { [ ! -L "$2" ] || rm -f "$2"; } && mv -f "$t" "$2" ;;
rights) chown -h "$4" "$2" && { [ -L "$2" ] || chmod "$3" "$2"; } ;;
esac || exit 255' "$2" && sync`

	// newRootsScript counts missing folders of $1. removeRootsScript removes $2 of them, if empty.
	newRootsScript    = `d=$1 n=0; while [ ! -e "${d:=/}" ]; do n=$((n + 1)) d=${d%/*}; done; echo "$n"`
	removeRootsScript = `d=$1 n=$2; while [ "$n" -gt 0 ] && rmdir "$d" 2>/dev/null; do n=$((n - 1)) d=${d%/*}; done; true`
)

// DeployDir is files.PutDir that first saves on the board what it replaces, for Restore. It records
// units, but restarts none. remote must be absolute. It ignores o.Before. The ID is empty after a
// dry run or without changes. If a failed deploy changed nothing, ID and changes are empty.
func DeployDir(ctx context.Context, c *boardssh.Conn, local, remote string, o files.DirOptions, units []string) (changes []files.Change, id string, err error) {
	if !path.IsAbs(remote) {
		return nil, "", fmt.Errorf("put folder %s: %q is no absolute path on the board", local, remote)
	}
	if err := CheckUnits(units); err != nil {
		return nil, "", err
	}
	return deployDir(ctx, c, local, path.Clean(remote), o, Deployment{Units: units})
}

// deployDir uploads local to remote with files.PutDir, and calls saveReplaced before the first
// change. After a failed deploy that changed nothing, it removes what it saved and returns no ID. A
// denied permission gets the next step --become.
func deployDir(ctx context.Context, c *boardssh.Conn, local, remote string, o files.DirOptions, u Deployment) (changes []files.Change, id string, err error) {
	o.Before = func(ctx context.Context, p *files.Plan) error {
		if len(p.Changes)+len(u.Settings) == 0 {
			return nil
		}
		u.Root, u.Started = p.Root, time.Now().UTC()
		u.ID = u.Started.Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:6])
		saved, err := saveReplaced(ctx, c, p, u)
		if err == nil {
			u, id = saved, saved.ID // without saved files nothing has changed, so there is nothing to undo
		}
		return err
	}
	changes, err = files.PutDir(ctx, c, local, remote, o)
	if err != nil && id != "" && !errors.Is(err, boardssh.ErrSilent) && removeUnused(ctx, c, u) {
		id = ""
	}
	if err != nil && id == "" {
		changes = nil
	}
	if a := c.Address(); a.User != "root" && a.Become == "" && err != nil && strings.Contains(err.Error(), "ermission denied") {
		err = boardssh.NextStep{Err: err, Step: "repeat the line with --become"}
	}
	return changes, id, err
}

// removeUnused removes what a failed deploy saved, and the empty root that it made, if the board's
// files are as before the deploy. It returns false if they are not, or if that failed.
func removeUnused(ctx context.Context, c *boardssh.Conn, u Deployment) bool {
	todo, _, parts, err := compareEntries(ctx, c, u)
	if err != nil || len(todo)+len(parts) > 0 || removeRoots(ctx, c, u) != nil {
		return false
	}
	_, err = c.Output(ctx, "rm", "-rf", u.dir)
	return err == nil
}

// removeRoots removes the deploy's root and folders above, if empty and made by the deploy.
func removeRoots(ctx context.Context, c *boardssh.Conn, u Deployment) error {
	if u.NewRoots == 0 {
		return nil
	}
	_, err := c.AskOutput(ctx, "sh", "-c", removeRootsScript, "sh", u.Root, strconv.Itoa(u.NewRoots))
	return err
}

// saveReplaced copies the files that the deploy will replace or remove into a new folder on the
// board, and writes the manifest there. It refuses more than maxUndoBytes, and first removes the
// oldest saved deploys. It returns u with its entries, new roots, ID and folder.
func saveReplaced(ctx context.Context, c *boardssh.Conn, p *files.Plan, u Deployment) (_ Deployment, err error) {
	if u.Entries, err = p.Transitions(ctx); err != nil {
		return u, err
	}
	missing, err := c.AskOutput(ctx, "sh", "-c", newRootsScript, "sh", u.Root)
	if err != nil {
		return u, err
	}
	if u.NewRoots, err = strconv.Atoi(missing); err != nil || u.NewRoots > strings.Count(u.Root, "/") {
		return u, fmt.Errorf("look for %s on %s: it answers %s", u.Root, c.Address(), boardssh.Printable(missing))
	}
	var saved []string
	var size int64
	for i, e := range u.Entries {
		if (e.Before.Kind == files.File || e.Before.Kind == files.Link) && p.Changes[i].Kind != files.Mode {
			saved, size = append(saved, e.Path), size+p.BytesBefore(e.Path)
		}
	}
	if size > maxUndoBytes {
		return u, fmt.Errorf("keep what is replaced: %d MiB, where at most %d are kept; deploy less at once, or without undo", size>>20, maxUndoBytes>>20)
	}
	data, err := json.Marshal(u)
	if err == nil && len(data)+maxNumberBytes > maxManifestBytes { // the undo could not read it
		err = fmt.Errorf("keep what is replaced: %d changes are too many; deploy less at once, or without undo", len(u.Entries))
	}
	if err != nil {
		return u, err
	}
	dir, err := removeOldDeployments(ctx, c)
	if err != nil {
		return u, err
	}
	made, err := c.Output(ctx, "sh", "-c", claimScript, "sh", dir, u.ID)
	if number, ok := strings.CutPrefix(made, u.ID); err == nil && (!ok || number == "" || !idPattern().MatchString(made)) {
		err = fmt.Errorf("make a folder in %s of %s: it answers %s", dir, c.Address(), boardssh.Printable(made))
	}
	if err != nil {
		return u, err
	}
	u.ID, u.dir = made, dir+"/"+made
	if data, err = json.Marshal(u); err != nil {
		return u, err
	}
	if len(saved) > 0 {
		err := files.RunScript(ctx, c, "keep what is replaced", files.ListForXargs(saved), saveScript, u.Root, u.dir)
		if err != nil {
			return u, err
		}
	}
	_, err = files.PutBytes(ctx, c, data, u.dir+"/manifest.json", 0o600)
	return u, err
}

// The last group of an ID is its number.
var idPattern = plaintext.Regexp(`^\d{8}T\d{6}Z-[a-z0-9]{6}-[1-9]\d{0,11}$`)

const maxNumberBytes = 13

// compareIDs orders deploy IDs by their number, then by their time.
func compareIDs(a, b string) int {
	number := func(id string) int64 {
		n, _ := strconv.ParseInt(id[strings.LastIndexByte(id, '-')+1:], 10, 64) // its digits fit
		return n
	}
	return cmp.Or(cmp.Compare(number(a), number(b)), cmp.Compare(a, b))
}

// List returns the deploys that can be undone, the last one first.
func List(ctx context.Context, c *boardssh.Conn) ([]Deployment, error) {
	_, all, err := list(ctx, c)
	return all, err
}

// list returns the folder of saved deploys, and the deploys with a manifest among the last
// 2*maxKept, newest first. One invalid manifest is an error.
func list(ctx context.Context, c *boardssh.Conn) (dir string, all []Deployment, err error) {
	dir, ids, err := listIDs(ctx, c)
	if err != nil {
		return dir, nil, err
	}
	for _, id := range slices.Backward(ids[max(0, len(ids)-2*maxKept):]) { // a hostile board may list many
		u, err := readManifest(ctx, c, dir, id)
		if err != nil {
			return dir, nil, err
		}
		if u.ID != "" {
			all = append(all, u)
		}
	}
	return dir, all, nil
}

// listIDs returns the folder of saved deploys on the board, and the IDs in it, the oldest first.
func listIDs(ctx context.Context, c *boardssh.Conn) (dir string, ids []string, err error) {
	text, err := c.AskOutput(ctx, "sh", "-c", listScript, "sh", undoDir, homeUndoDir)
	lines := strings.Split(text, "\n")
	dir, ended := strings.CutPrefix(lines[len(lines)-1], "end ")
	if err == nil && (!ended || !path.IsAbs(dir) || boardssh.Printable(dir) != dir) {
		err = fmt.Errorf("list the deploys on %s: it answers %s", c.Address(), boardssh.Printable(text))
	}
	if err != nil {
		return "", nil, err
	}
	ids = slices.DeleteFunc(lines, func(id string) bool { return !idPattern().MatchString(id) })
	slices.SortFunc(ids, compareIDs)
	return dir, ids, nil
}

// readManifest reads and checks the manifest of a deploy. The Deployment is empty if the board has
// no manifest, as after an interrupted deploy.
func readManifest(ctx context.Context, c *boardssh.Conn, dir, id string) (Deployment, error) {
	r, err := c.AskUpTo(ctx, nil, maxManifestBytes, "cat", dir+"/"+id+"/manifest.json")
	if err != nil || r.Status != 0 {
		return Deployment{}, err
	}
	u, err := parseManifest(r.Stdout)
	if err == nil && u.ID != id {
		err = fmt.Errorf("it says that it is of %s", boardssh.Printable(u.ID))
	}
	if err != nil {
		return Deployment{}, fmt.Errorf("%s/%s/manifest.json on %s: %w", dir, id, c.Address(), err)
	}
	u.dir = dir + "/" + id
	return u, nil
}

var (
	modePattern   = plaintext.Regexp(`^[0-7]{4}$`)
	ownerPattern  = plaintext.Regexp(`^\d{1,10}:\d{1,10}$`)
	digestPattern = plaintext.Regexp(`^([0-9a-f]{64}|-)$`)
)

// parseManifest parses a manifest. It refuses paths outside the root, invalid states, settings and
// units, and too many of them, because a hostile board could have written it.
func parseManifest(data []byte) (Deployment, error) {
	var u Deployment
	if err := json.Unmarshal(data, &u); err != nil {
		return u, err
	}
	if !path.IsAbs(u.Root) || !idPattern().MatchString(u.ID) || len(u.Entries) > 2*maxEntries || u.NewRoots < 0 || u.NewRoots > strings.Count(u.Root, "/") {
		return u, errors.New("it is no manifest of a deploy")
	}
	for _, e := range u.Entries {
		if !fs.ValidPath(strings.ToValidUTF8(e.Path, "_")) || strings.IndexByte(e.Path, 0) >= 0 {
			return u, fmt.Errorf("%s is no name below a folder", boardssh.Printable(e.Path))
		}
		for _, s := range []files.State{e.Before, e.After} {
			known := slices.Contains([]string{files.None, files.File, files.Folder, files.Link}, s.Kind)
			if !known || s.Mode != "" && !modePattern().MatchString(s.Mode) || s.Owner != "" && !ownerPattern().MatchString(s.Owner) || s.SHA256 != "" && !digestPattern().MatchString(s.SHA256) {
				return u, fmt.Errorf("%s: a state that makes no sense", boardssh.Printable(e.Path))
			}
		}
		if b := e.Before; b.Kind != files.None && (b.Mode == "" || b.Owner == "") {
			return u, fmt.Errorf("%s: a state without mode or owner", boardssh.Printable(e.Path))
		}
	}
	return u, u.checkContent()
}

// checkContent checks the settings, at most maxSettings, and the unit names of u.
func (u Deployment) checkContent() error {
	if len(u.Settings) > maxSettings {
		return fmt.Errorf("more than %d settings", maxSettings)
	}
	for _, s := range u.Settings {
		if err := s.checkValues(); err != nil {
			return err
		}
	}
	return CheckUnits(u.Units)
}

// removeOldDeployments removes the oldest saved deploys, so that with the next one there are
// maxKept. It returns the folder of saved deploys.
func removeOldDeployments(ctx context.Context, c *boardssh.Conn) (dir string, err error) {
	dir, ids, err := listIDs(ctx, c)
	for i := 0; err == nil && i <= len(ids)-maxKept; i++ {
		_, err = c.Output(ctx, "rm", "-rf", dir+"/"+ids[i])
	}
	return dir, err
}

// Restore undoes a deploy: it restores what the deploy replaced, removes what it added, and removes
// the saved files. An empty ID means the last deploy. If a file or setting changed since the
// deploy, Restore returns an error and changes nothing, unless forced. After an interrupt it can be
// repeated. With ErrSetting, it restored all but the settings that the error names.
func Restore(ctx context.Context, c *boardssh.Conn, id string, force bool) (Deployment, error) {
	u, err := findDeployment(ctx, c, id)
	if err != nil {
		return u, err
	}
	step := progress.Start(ctx, "undo "+u.ID, 0, progress.Bytes)
	restored := 0
	if restored, err = restoreDeployment(ctx, c, u, force); err != nil {
		err = boardssh.BoardError(fmt.Sprintf("undo %s on %s", u.ID, c.Address()), err)
	}
	step.End(strconv.Itoa(restored)+" put back", err)
	return u, err
}

// ErrNothing means that the board has no such deploy.
var ErrNothing = errors.New("nothing to undo")

// findDeployment returns the saved deploy with this ID ("": the last one), or ErrNothing.
func findDeployment(ctx context.Context, c *boardssh.Conn, id string) (Deployment, error) {
	if id != "" && !idPattern().MatchString(id) {
		return Deployment{}, fmt.Errorf("%q is no ID of a deploy; --list shows them", id)
	}
	dir, all, err := list(ctx, c)
	if err != nil {
		return Deployment{}, err
	}
	i := slices.IndexFunc(all, func(u Deployment) bool { return id == "" || u.ID == id })
	if i < 0 {
		return Deployment{}, fmt.Errorf("%w on %s: %s has no deploy%s%s", ErrNothing, c.Address(), dir, plaintext.Either(id == "", "", " "+id), plaintext.Either(dir == undoDir, "", "; undo deploys of --become with --become"))
	}
	return all[i], nil
}

// restoreDeployment restores the files of u, checks them, restores the settings, and removes the
// deploy's folder. Unless forced, it refuses if something changed since the deploy. It returns how
// many entries and settings it restored.
func restoreDeployment(ctx context.Context, c *boardssh.Conn, u Deployment, force bool) (int, error) {
	todo, changed, parts, err := compareEntries(ctx, c, u)
	if err != nil {
		return 0, err
	}
	settings, others, err := compareSettings(ctx, c, u)
	if err != nil {
		return 0, err
	}
	if all := slices.Concat(changed, others); len(all) > 0 && !force {
		shown := all[:min(len(all), 10)]
		for i, name := range shown {
			shown[i] = boardssh.Printable(name)
		}
		err := fmt.Errorf("changed since the deploy: %s; --force restores the state before it anyway", strings.Join(shown, ", "))
		if len(changed) > 0 && !plaintext.HasControls(changed[0]) {
			err = c.NextOnBoard(err, "ls -l "+plaintext.Quote(path.Join(u.Root, changed[0])), "see when it changed")
		}
		return 0, err
	}
	if len(todo)+len(parts) > 0 {
		err := files.RunScript(ctx, c, "put back", restoreInput(todo, parts), restoreScript, u.Root, u.dir)
		if err != nil {
			return 0, err
		}
		left, _, _, err := compareEntries(ctx, c, u)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%s is not as it was, after all was put back", boardssh.Printable(left[0].Path))
		}
		if err != nil {
			return 0, err
		}
	}
	if err := errors.Join(removeRoots(ctx, c, u), restoreSettings(ctx, c, settings)); err != nil {
		return 0, err
	}
	_, err = c.Output(ctx, "rm", "-rf", u.dir)
	return len(todo) + len(settings), err
}

// restoreSettings writes each setting's value from before the deploy. It continues after a setting
// that the board does not accept, such as a module in use, and returns those errors.
func restoreSettings(ctx context.Context, c *boardssh.Conn, settings []Setting) error {
	var refused error
	for _, s := range settings {
		err := writeSetting(ctx, c, s, s.Before)
		if err != nil && !errors.Is(err, ErrSetting) {
			return errors.Join(refused, err)
		}
		refused = errors.Join(refused, err)
	}
	return refused
}

// compareEntries compares the board's files with the manifest. todo are the entries that differ
// from their state before the deploy, without added folders that have other files. changed are the
// names of existing ones whose kind or content is neither that before nor that after the deploy.
// parts are files of interrupted uploads.
func compareEntries(ctx context.Context, c *boardssh.Conn, u Deployment) (todo []files.Transition, changed, parts []string, err error) {
	found, err := listTouched(ctx, c, u)
	if err != nil {
		return nil, nil, nil, err
	}
	ours := u.paths()
	parts = removeParts(found, ours)
	now := make([]files.Transition, len(u.Entries))
	for i, e := range u.Entries {
		now[i] = files.Transition{Path: e.Path, Before: files.State{Kind: files.None}}
		if is, there := found[e.Path]; there {
			now[i].Before = is
		}
	}
	if err := files.AddDigests(ctx, c, u.Root, now); err != nil {
		return nil, nil, nil, err
	}
	for i, e := range u.Entries {
		is := now[i].Before
		if is == e.Before || e.Before.Kind == files.Link && is.Kind == files.Link && is.SHA256 == e.Before.SHA256 {
			continue
		}
		leftFolder := e.Before.Kind == files.None && is.Kind == files.Folder && e.After.Kind == files.Folder && hasOtherFiles(found, ours, e.Path)
		if leftFolder {
			continue // the folder has other files, which stay
		}
		todo = append(todo, e)
		same := is.Kind == e.Before.Kind && is.SHA256 == e.Before.SHA256 // only its mode or owner differs
		// Somebody or an interrupted undo removed a missing file. Restoring it loses nothing.
		if !same && is.Kind != files.None && (is.Kind != e.After.Kind || is.SHA256 != e.After.SHA256) {
			changed = append(changed, e.Path)
		}
	}
	return todo, changed, parts, nil
}

// listTouched lists states, by path, of board files that the deploy may have changed: its entries
// and the contents of folders that it added.
func listTouched(ctx context.Context, c *boardssh.Conn, u Deployment) (map[string]files.State, error) {
	if u.NewRoots > 0 {
		return files.ListStates(ctx, c, u.Root)
	}
	names := make([]string, len(u.Entries))
	for i, e := range u.Entries {
		names[i] = e.Path
	}
	listed := map[string]bool{}
	found, err := files.ListSomeStates(ctx, c, u.Root, names, u.Among)
	for _, e := range u.Entries {
		if err != nil || e.Before.Kind != files.None || e.After.Kind != files.Folder || found[e.Path].Kind != files.Folder || listed[path.Dir(e.Path)] {
			listed[e.Path] = listed[path.Dir(e.Path)]
			continue
		}
		listed[e.Path] = true
		var in map[string]files.State
		in, err = files.ListStates(ctx, c, path.Join(u.Root, e.Path))
		for name, one := range in {
			found[e.Path+"/"+name] = one
		}
	}
	return found, err
}

// paths returns the set of paths that the deploy changed.
func (u Deployment) paths() map[string]bool {
	ours := map[string]bool{}
	for _, e := range u.Entries {
		ours[e.Path] = true
	}
	return ours
}

// removeParts deletes this deploy's interrupted uploads from the map found and returns their names.
func removeParts(found map[string]files.State, ours map[string]bool) (parts []string) {
	for name := range found {
		for of := files.PartOf(name); of != ""; of = files.PartOf(of) { // the copy of a part has two endings
			if ours[of] && !ours[name] {
				parts = append(parts, name)
				delete(found, name)
				break
			}
		}
	}
	return parts
}

// hasOtherFiles reports whether a folder has files that are not from the deploy.
func hasOtherFiles(found map[string]files.State, ours map[string]bool, folder string) bool {
	for name := range found {
		if strings.HasPrefix(name, folder+"/") && !ours[name] {
			return true
		}
	}
	return false
}

// restoreInput returns the operations for restoreScript. They first remove what the deploy added,
// the contents of a folder before the folder, and then make folders and restore files.
func restoreInput(todo []files.Transition, parts []string) *strings.Reader {
	var b strings.Builder
	add := func(op string, e files.Transition) {
		for _, arg := range []string{op, "./" + e.Path, cmp.Or(e.Before.Mode, "-"), cmp.Or(e.Before.Owner, "-")} {
			b.WriteString(arg + "\x00")
		}
	}
	for _, name := range parts {
		add("remove", files.Transition{Path: name})
	}
	byName := func(a, b files.Transition) int { return cmp.Compare(a.Path, b.Path) }
	sorted := slices.SortedFunc(slices.Values(todo), byName)
	for _, e := range slices.Backward(sorted) {
		switch {
		case e.After.Kind == files.Folder && e.Before.Kind != files.Folder:
			add("rmdir", e)
		case e.Before.Kind == files.None:
			add("remove", e)
		}
	}
	for _, e := range sorted {
		switch {
		case e.Before.Kind == files.Folder:
			add("mkdir", e)
		case e.Before.Kind == files.None:
		case e.After.Kind == e.Before.Kind && e.After.SHA256 == e.Before.SHA256:
			add("rights", e) // the deploy saved no content
		default:
			add("put", e)
		}
	}
	return strings.NewReader(b.String())
}

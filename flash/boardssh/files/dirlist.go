package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"slipway/flash/boardssh"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Scripts are fixed text. The folder is their first argument, and names reach them on
// standard input with a zero byte after each, so that a name may hold anything.
const (
	// needPrograms ends the script with the name of the first program that the board lacks.
	needPrograms = `has() { command -v "$1" >/dev/null; }
for p in find stat xargs; do has "$p" || { echo "the board has no $p" >&2; exit 127; }; done
has sha256sum || has openssl || { echo "the board has neither sha256sum nor openssl" >&2; exit 127; }
`
	// needFolder ends the script if $1 is missing, with "absent", or no folder.
	needFolder = needPrograms + `[ -d "$1" ] || { [ -e "$1" ] || [ -L "$1" ] || { echo absent; exit 0; }; echo "it is not a folder" >&2; exit 1; }
`
	// printStates prints a line for each argument. One that is removed meanwhile, such as another
	// upload's hidden file, is left out. Other names are then listed twice.
	printStates = `stat -c "%f %s %u %g %U %G %n" "$@" || for f; do
	stat -c "%f %s %u %g %U %G %n" "$f" || { [ ! -e "$f" ] && [ ! -L "$f" ]; } || exit 1
done`
	listScript = needFolder + `cd "$1" && find . -xdev -exec sh -c '` + printStates + `' sh {} +`

	// namesScript lists only the given names that exist, and parts that broken uploads of them
	// left. With $2, a link to a folder counts as a folder, and each folder's name ends in "/.".
	namesScript = needFolder + `cd "$1" && xargs -0 -n 200 sh -c 'for f; do
	shift
	for p in "$f" "${f%/*}/.${f##*/}".*.part; do
		[ -z "$0" ] || [ ! -d "$p" ] || p=$p/.
		[ ! -e "$p" ] && [ ! -L "$p" ] || set -- "$@" "$p"
	done
done
[ $# = 0 ] || ` + printStates + `' "$2"`

	// quickDigestScript's output is unusable if a file cannot be read, or with busybox and a
	// newline in a name; then fileDigestScript starts a process for each file.
	quickDigestScript = `cd "$1" && xargs -0 sha256sum`

	fileDigestScript = `cd "$1" && xargs -0 sh -c 'for f; do s=$(` + inputDigest + ` <"$f") && echo "$s" || echo -; done' sh`

	// Command substitution drops newlines at the end, and the dot keeps those of the target.
	linkDigestScript = `cd "$1" && xargs -0 sh -c 'for f; do t=$(readlink "$f"; echo .); printf %s "$t" | ` + inputDigest + ` || echo -; done' sh`
)

// noProgram is a shell's status for a program that is missing, and that of needPrograms.
const noProgram = 127

// mostListed limits the bytes of a folder's list: enough for mostEntries names.
const mostListed = 32 << 20

// listFolder lists the folder on the board. A missing folder is empty.
func listFolder(ctx context.Context, c *boardssh.Conn, remote string) (map[string]entry, error) {
	return runList(ctx, c, nil, listScript, remote)
}

// listNames lists those of the names that exist in the folder on the board, and part files that
// broken uploads of them left. With follow, a link to a folder counts as a folder. Without it,
// names behind a link that is among the names do not exist.
func listNames(ctx context.Context, c *boardssh.Conn, remote string, names []string, follow bool) (map[string]entry, error) {
	if len(names) == 0 {
		return nil, nil
	}
	found, err := runList(ctx, c, ListForXargs(names), namesScript, remote, plaintext.Either(follow, "follow", ""))
	maps.DeleteFunc(found, func(name string, _ entry) bool {
		for in := path.Dir(name); in != "."; in = path.Dir(in) {
			if e, there := found[in]; there && e.kind != fs.ModeDir {
				return true
			}
		}
		return false
	})
	return found, err
}

// runList runs a list script for the board's folder args[0] and parses its output. An absent folder
// is nil, and one with too many entries an error.
func runList(ctx context.Context, c *boardssh.Conn, names io.Reader, script string, args ...string) (map[string]entry, error) {
	r, err := c.AskUpTo(ctx, names, mostListed, append([]string{"sh", "-c", script, "sh"}, args...)...)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Status == noProgram:
		said := strings.TrimSpace(string(r.Stderr)) // a login script may say something before
		return nil, c.NextOnBoard(errors.New(said[strings.LastIndex(said, "\n")+1:]), "apt-get install coreutils findutils", "or add both to the board's image")
	case r.Status != 0:
		return nil, fmt.Errorf("list the folder on the board: status %d: %s", r.Status, bytes.TrimSpace(r.Stderr))
	}
	if r.Truncated {
		return nil, errMuch
	}
	if names == nil && len(r.Stdout) == 0 { // a correct list contains at least the folder itself
		return nil, fmt.Errorf("list %s on the board: it answers nothing, and ended with status 0", boardssh.Printable(args[0]))
	}
	if string(r.Stdout) == "absent\n" {
		return nil, nil
	}
	return parseList(r.Stdout)
}

// longestPath is Linux's PATH_MAX.
const longestPath = 4096

var errMuch = fmt.Errorf("the folder on the board has more than %d entries, or very long names", mostEntries)

var statPattern = plaintext.Regexp(`^([0-9a-f]{1,8}) (\d{1,18}) (\d{1,10}) (\d{1,10}) (\S{1,256}) (\S{1,256}) \.(/(?s:.*))?$`)

// parseList reads what listScript printed. A line of another form continues the name before it,
// because names may contain newlines. Names outside of the folder are errors.
func parseList(out []byte) (map[string]entry, error) {
	entries := map[string]entry{}
	var found entry // the entry called last; its name may go on in the next line
	last, inside := "", false
	add := func() {
		if inside {
			entries[strings.TrimSuffix(last, "/.")] = found
		}
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		m := statPattern().FindStringSubmatch(line)
		switch {
		case m == nil && !inside:
			return nil, fmt.Errorf("the board lists the folder in a way that is not known: %s", boardssh.Printable(line))
		case m == nil && len(last)+len(line) > longestPath:
			return nil, errMuch
		case m == nil:
			last += "\n" + line
		case m[7] == "": // the folder itself
			add()
			inside = false
		default:
			add()
			last, inside, found = m[7][1:], true, listedEntry(m)
		}
		if len(entries) > mostEntries {
			return nil, errMuch
		}
	}
	if add(); len(entries) > mostEntries {
		return nil, errMuch
	}
	for name := range entries {
		if !fs.ValidPath(strings.ToValidUTF8(name, "_")) {
			return nil, fmt.Errorf("the board lists %s, which is no name in a folder", boardssh.Printable(name))
		}
	}
	return entries, nil
}

// listedEntry makes an entry of statPattern's match of a line. Only a regular file has a size.
func listedEntry(m []string) entry {
	raw, _ := strconv.ParseUint(m[1], 16, 32) // their digits fit
	size, _ := strconv.ParseInt(m[2], 10, 64)
	kinds := map[uint64]fs.FileMode{0x8000: 0, 0x4000: fs.ModeDir, 0xa000: fs.ModeSymlink}
	kind, known := kinds[raw&0xf000]
	if !known {
		kind = fs.ModeIrregular
	}
	e := entry{kind: kind, mode: fs.FileMode(raw & 0o7777), size: size, owner: [4]string(m[3:7])}
	if kind != 0 {
		e.size = 0
	}
	return e
}

// digester reads the digests of names in a folder from the board.
type digester func(ctx context.Context, c *boardssh.Conn, remote string, names []string) ([]string, error)

// markSame computes the names' digests on both sides at once, and marks equal ones in same.
func (d *folderUpload) markSame(ctx context.Context, names []string, onBoard digester, local func(context.Context, string) (string, error), same map[string]bool) error {
	if len(names) == 0 {
		return nil
	}
	ours, theirs := make([]string, len(names)), []string(nil)
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		theirs, err = onBoard(ctx, d.conn, d.remote, names)
		return err
	})
	both.Go(func() (err error) {
		for i := 0; i < len(names) && err == nil; i++ {
			ours[i], err = local(ctx, names[i])
		}
		return err
	})
	err := both.Wait()
	for i := 0; i < len(names) && err == nil; i++ {
		same[names[i]] = theirs[i] == ours[i]
	}
	return err
}

// fileDigests returns the digests of files on the board, in the order of names. If the quick script
// fails, it runs the one that starts a process for each file. An unreadable file has "-".
func fileDigests(ctx context.Context, c *boardssh.Conn, remote string, names []string) ([]string, error) {
	sums, err := digestLines(ctx, c, remote, quickDigestScript, names)
	if err != nil && ctx.Err() == nil {
		sums, err = digestLines(ctx, c, remote, fileDigestScript, names)
	}
	return sums, err
}

func linkDigests(ctx context.Context, c *boardssh.Conn, remote string, names []string) ([]string, error) {
	return digestLines(ctx, c, remote, linkDigestScript, names)
}

// digestLines runs script ($1 is remote, its input the names) and returns its digests, or "-" each.
func digestLines(ctx context.Context, c *boardssh.Conn, remote, script string, names []string) ([]string, error) {
	r, err := c.FeedUpTo(ctx, ListForXargs(names), mostListed, "sh", "-c", script, "sh", remote)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(string(r.Stdout), "\n"), "\n")
	if r.Status != 0 || len(lines) != len(names) {
		return nil, fmt.Errorf("the board gave %d digests of %d, status %d: %s", len(lines), len(names), r.Status, bytes.TrimSpace(r.Stderr))
	}
	sums := make([]string, len(names))
	for i, line := range lines {
		sums[i] = "-"
		if m := digestPattern().FindStringSubmatch(line); m != nil {
			sums[i] = m[1]
		}
	}
	return sums, nil
}

// ListForXargs returns the names as input for xargs -0, each with ./ before it.
func ListForXargs(names []string) io.Reader {
	var b strings.Builder
	for _, name := range names {
		b.WriteString("./" + name + "\x00")
	}
	return strings.NewReader(b.String())
}

// fileDigest returns the SHA-256 of a local file.
func (d *folderUpload) fileDigest(ctx context.Context, name string) (string, error) {
	f, err := os.Open(filepath.Join(d.local, filepath.FromSlash(name)))
	if err != nil {
		return "", err
	}
	defer f.Close()
	return localfile.Digest(ctx, f, nil)
}

func (d *folderUpload) linkDigest(_ context.Context, name string) (string, error) {
	sum := sha256.Sum256([]byte(d.want[name].target + "\n."))
	return hex.EncodeToString(sum[:]), nil
}

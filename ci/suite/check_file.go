package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// maxFileBytes is how much of a file's contents, or of an HTTP body, is read.
const maxFileBytes = 1 << 20

// file is a file, folder, link or device on the board. As in goss, the attributes of a
// link are its own, and the contents are those of the file that it points to.
type file struct {
	path     string
	exists   bool
	mode     match.Matcher
	filetype match.Matcher
	size     match.Matcher
	owner    match.Matcher
	group    match.Matcher
	uid, gid match.Matcher
	linkedTo match.Matcher
	contents match.Matcher
	digests  []digest
}

type digest struct {
	name string // of the algorithm
	want match.Matcher
}

// fileTypes are goss's names of file types, by the type bits of st_mode.
var fileTypes = map[uint64]string{
	0o100000: "file", 0o040000: "directory", 0o120000: "symlink", 0o140000: "socket",
	0o010000: "pipe", 0o020000: "character-device", 0o060000: "block-device",
}

// readFile parses a check of the section file. It accepts contains, goss's old name of contents.
func readFile(e *Entry) Probe {
	f := file{
		path:     e.Path("path"),
		exists:   e.Bool("exists", true),
		mode:     e.readMode(),
		filetype: e.readFileType(),
		uid:      e.Matcher("uid", match.Number),
		gid:      e.Matcher("gid", match.Number),
		size:     e.Matcher("size", match.Number),
		owner:    e.Matcher("owner", match.String),
		group:    e.Matcher("group", match.String),
		linkedTo: e.Matcher("linked-to", match.String),
		contents: e.Matcher("contents", match.Text),
	}
	if old := e.Fields["contains"]; old != nil {
		if e.Fields["contents"] != nil {
			e.Fail(old, "contains is goss's old name of contents; keep one")
		}
		f.contents = e.Matcher("contains", match.Text)
	}
	for _, name := range []string{"md5", "sha256", "sha512"} {
		if m := e.Matcher(name, match.String); !m.Empty() {
			f.digests = append(f.digests, digest{name, m})
		}
	}
	return f
}

var modePattern = plaintext.Regexp(`^[0-7]{4}$`)

// readMode returns a mode's matcher. Plain values other than four quoted octal digits are errors.
func (e *Entry) readMode() match.Matcher {
	n := e.Fields["mode"]
	if n != nil && n.Kind == yaml.ScalarNode && (n.ShortTag() != "!!str" || !modePattern().MatchString(n.Value)) {
		e.Fail(n, "mode must be four octal digits in quotes, like \"0755\", not %s", n.Value)
	}
	return e.Matcher("mode", match.String)
}

// readFileType returns the matcher for a file type. It refuses a name that is none of fileTypes.
func (e *Entry) readFileType() match.Matcher {
	n := e.Fields["filetype"]
	if known := slices.Sorted(maps.Values(fileTypes)); n != nil && n.Kind == yaml.ScalarNode && !slices.Contains(known, n.Value) {
		e.Fail(n, "filetype %q is not one of %s", n.Value, strings.Join(known, ", "))
	}
	return e.Matcher("filetype", match.String)
}

// Inspect checks that the file exists, or does not, and its attributes, contents and digests.
func (f file) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var found Finding
	// In another language the error would read otherwise.
	r, err := s.Board.Run(ctx, "env", "LC_ALL=C", "stat", "-c", "%f %s %U %G %u %g", f.path)
	if err != nil {
		return found, err
	}
	absent := r.Status != 0 && strings.Contains(string(r.Stderr), "No such file or directory")
	if r.Status != 0 && !absent {
		found.Expect(false, "an answer about "+f.path, DescribeResult(r))
		return found, nil
	}
	found.expectState(f.path, !absent, f.exists, " exists", " does not exist")
	if absent || !f.exists {
		return found, nil
	}
	if err := f.checkStat(&found, string(r.Stdout)); err != nil {
		return found, err
	}
	return found, f.checkLinkAndContents(ctx, s, &found)
}

// checkStat parses the output of stat and compares its fields with the matchers.
func (f file) checkStat(found *Finding, out string) error {
	fields := strings.Fields(out)
	if len(fields) != 6 {
		return fmt.Errorf("stat %s answered %q", f.path, plaintext.Clean(out, 200))
	}
	bits, err := strconv.ParseUint(fields[0], 16, 32)
	if err != nil {
		return fmt.Errorf("stat %s answered %q", f.path, plaintext.Clean(out, 200))
	}
	mode, filetype := fmt.Sprintf("%04o", bits&0o7777), fileTypes[bits&0o170000]
	found.ExpectMatch("mode", f.mode, mode, "mode "+mode)
	found.ExpectMatch("filetype", f.filetype, filetype, "a "+filetype)
	found.ExpectMatch("size", f.size, match.AnsweredNumber(fields[1]), fields[1]+" bytes")
	found.ExpectMatch("owner", f.owner, fields[2], "owner "+fields[2])
	found.ExpectMatch("group", f.group, fields[3], "group "+fields[3])
	found.ExpectMatch("uid", f.uid, match.AnsweredNumber(fields[4]), "uid "+fields[4])
	found.ExpectMatch("gid", f.gid, match.AnsweredNumber(fields[5]), "gid "+fields[5])
	return nil
}

// checkLinkAndContents compares a link's target, the contents and the digests with the matchers.
func (f file) checkLinkAndContents(ctx context.Context, s *Session, found *Finding) error {
	if !f.linkedTo.Empty() {
		out, err := s.Output(ctx, "readlink", f.path)
		if err != nil {
			return err
		}
		found.ExpectMatch("linked-to", f.linkedTo, plaintext.TrimNewline(out), "links to "+plaintext.TrimNewline(out))
	}
	if !f.contents.Empty() {
		if err := f.checkContents(ctx, s, found); err != nil {
			return err
		}
	}
	for _, d := range f.digests {
		out, err := s.Output(ctx, d.name+"sum", f.path)
		if err != nil {
			return err
		}
		sum, _, _ := strings.Cut(out, " ")
		found.ExpectMatch(d.name, d.want, sum, d.name+" "+sum)
	}
	return nil
}

// checkContents compares the contents with the matcher. A file over maxFileBytes fails the check.
func (f file) checkContents(ctx context.Context, s *Session, found *Finding) error {
	out, err := s.Output(ctx, "head", "-c", fmt.Sprint(maxFileBytes+1), f.path)
	if errors.Is(err, errTruncated) || len(out) > maxFileBytes {
		if found.OK() {
			found.Next = fmt.Sprintf("look into it on the board instead, with a command check such as: %s; or check its sha256", ShellLine([]string{"grep", "-q", "TEXT", f.path}))
		}
		found.Expect(false, "contents: all of them", "contents: "+moreThan(maxFileBytes))
		return nil
	}
	if err != nil {
		return err
	}
	found.ExpectMatch("contents", f.contents, out, "contents: "+quoteOutput([]byte(out)))
	return nil
}

func (f file) Next() string {
	return "look at it on the board: " + ShellLine([]string{"ls", "-ld", f.path})
}

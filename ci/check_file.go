package ci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"

	"go.yaml.in/yaml/v4"
)

// maxFileBytes of a file are read for its contents.
const maxFileBytes = 1 << 20

// file is a file, folder, link or device on the board. As in goss, attributes are
// those of a link itself, and contents those of what it points to.
type file struct {
	path     string
	exists   *bool
	mode     matcher
	filetype matcher
	size     matcher
	owner    matcher
	group    matcher
	uid, gid matcher
	linkedTo matcher
	contents matcher
	digests  []digest
}

type digest struct {
	name string // of the algorithm
	want matcher
}

// fileTypes are goss's words for the kinds of files, by the type bits of st_mode.
var fileTypes = map[uint64]string{
	0o100000: "file", 0o040000: "directory", 0o120000: "symlink", 0o140000: "socket",
	0o010000: "pipe", 0o020000: "character-device", 0o060000: "block-device",
}

func readFile(e *entry) probe {
	f := file{
		path:     e.Path("path"),
		exists:   e.Flag("exists"),
		mode:     e.mode(),
		filetype: e.fileType(),
		uid:      e.matcher("uid", numberValue),
		gid:      e.matcher("gid", numberValue),
		size:     e.matcher("size", numberValue),
		owner:    e.matcher("owner", stringValue),
		group:    e.matcher("group", stringValue),
		linkedTo: e.matcher("linked-to", stringValue),
		contents: e.matcher("contents", textValue),
	}
	if old := e.Fields["contains"]; old != nil {
		if e.Fields["contents"] != nil {
			e.Fail(old, "contains is goss's old name of contents; keep one")
		}
		f.contents = e.matcher("contains", textValue)
	}
	for _, name := range []string{"md5", "sha256", "sha512"} {
		if m := e.matcher(name, stringValue); !m.empty() {
			f.digests = append(f.digests, digest{name, m})
		}
	}
	return f
}

var modePattern = regexp.MustCompile(`^[0-7]{4}$`)

// mode is text: what YAML makes of 0755 without quotes equals no mode.
func (e *entry) mode() matcher {
	n := e.Fields["mode"]
	if n != nil && n.Kind == yaml.ScalarNode && (n.ShortTag() != "!!str" || !modePattern.MatchString(n.Value)) {
		e.Fail(n, "mode must be four octal digits in quotes, like \"0755\", not %s", n.Value)
	}
	return e.matcher("mode", stringValue)
}

func (e *entry) fileType() matcher {
	n := e.Fields["filetype"]
	if known := slices.Sorted(maps.Values(fileTypes)); n != nil && n.Kind == yaml.ScalarNode && !slices.Contains(known, n.Value) {
		e.Fail(n, "filetype %q is not one of %s", n.Value, strings.Join(known, ", "))
	}
	return e.matcher("filetype", stringValue)
}

func (f file) Inspect(ctx context.Context, s *session) (finding, error) {
	var found finding
	// In another language the error would read otherwise.
	r, err := s.board.Run(ctx, "env", "LC_ALL=C", "stat", "-c", "%f %s %U %G %u %g", f.path)
	if err != nil {
		return found, err
	}
	absent := r.Status != 0 && strings.Contains(string(r.Stderr), "No such file or directory")
	if r.Status != 0 && !absent {
		found.expect(false, "an answer about "+f.path, describe(r))
		return found, nil
	}
	wanted := f.exists == nil || *f.exists
	found.expect(wanted != absent, existence(f.path, wanted), existence(f.path, !absent))
	if absent || !wanted {
		return found, nil
	}
	if err := f.stat(&found, string(r.Stdout)); err != nil {
		return found, err
	}
	return found, f.read(ctx, s, &found)
}

func existence(what string, there bool) string {
	if there {
		return what + " exists"
	}
	return what + " does not exist"
}

// stat holds what stat said against what is wanted.
func (f file) stat(found *finding, out string) error {
	fields := strings.Fields(out)
	if len(fields) != 6 {
		return fmt.Errorf("stat %s answered %q", f.path, plaintext.Clean(out, 200))
	}
	bits, err := strconv.ParseUint(fields[0], 16, 32)
	if err != nil {
		return fmt.Errorf("stat %s answered %q", f.path, plaintext.Clean(out, 200))
	}
	mode, filetype := fmt.Sprintf("%04o", bits&0o7777), fileTypes[bits&0o170000]
	found.match("mode", f.mode, mode, "mode "+mode)
	found.match("filetype", f.filetype, filetype, "a "+filetype)
	found.match("size", f.size, answeredNumber(fields[1]), fields[1]+" bytes")
	found.match("owner", f.owner, fields[2], "owner "+fields[2])
	found.match("group", f.group, fields[3], "group "+fields[3])
	found.match("uid", f.uid, answeredNumber(fields[4]), "uid "+fields[4])
	found.match("gid", f.gid, answeredNumber(fields[5]), "gid "+fields[5])
	return nil
}

// read holds what is in the file against what is wanted.
func (f file) read(ctx context.Context, s *session, found *finding) error {
	if !f.linkedTo.empty() {
		out, err := s.output(ctx, "readlink", f.path)
		if err != nil {
			return err
		}
		found.match("linked-to", f.linkedTo, plaintext.TrimNewline(out), "links to "+plaintext.TrimNewline(out))
	}
	if !f.contents.empty() {
		if err := f.readContents(ctx, s, found); err != nil {
			return err
		}
	}
	for _, d := range f.digests {
		out, err := s.output(ctx, d.name+"sum", f.path)
		if err != nil {
			return err
		}
		sum, _, _ := strings.Cut(out, " ")
		found.match(d.name, d.want, sum, d.name+" "+sum)
	}
	return nil
}

// readContents asks for one byte more than is looked at, which tells a file that
// is longer.
func (f file) readContents(ctx context.Context, s *session, found *finding) error {
	out, err := s.output(ctx, "head", "-c", fmt.Sprint(maxFileBytes+1), f.path)
	if errors.Is(err, errCut) || len(out) > maxFileBytes {
		if found.ok() {
			found.next = fmt.Sprintf("look into it on the board instead, with a command check such as: %s; or check its sha256", shellLine([]string{"grep", "-q", "TEXT", f.path}))
		}
		found.expect(false, "contents: all of them", "contents: "+moreThan(maxFileBytes))
		return nil
	}
	if err != nil {
		return err
	}
	found.match("contents", f.contents, out, "contents: "+quoteOutput([]byte(out)))
	return nil
}

func (f file) Next() string {
	return "look at it on the board: " + shellLine([]string{"ls", "-ld", f.path})
}

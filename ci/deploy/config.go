// Package deploy changes a running board: configuration, files (both can be undone), containers.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/diff"
	goyaml "go.yaml.in/yaml/v4"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/undo"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/yaml"
)

// configSections are the sections of a file of deploy config, in the order of their changes.
var configSections = []struct {
	name string
	read func(*configFile, *goyaml.Node) (configPart, error)
}{
	{"modules", readModules},
	{"sysctl", readSysctls},
	{"hugepages", readHugepages},
	{"files", readConfigFiles},
	{"nvpmodel", readNvpmodel},
	{"frr", readFRR},
}

// configPart is one section of the file. plan compares the section with the board, without changing
// the board, and adds the necessary changes to p.
type configPart interface {
	plan(ctx context.Context, p *configPlan) error
}

// configFile is a parsed file of deploy config. Files that it names must be in its folder or below.
type configFile struct {
	name  string
	parts []configPart
}

func (f *configFile) errorAt(n *goyaml.Node, format string, args ...any) error {
	return yaml.ErrorAt(f.name, n, format, args...)
}

// maxConfigBytes is far above what a person writes.
const maxConfigBytes = 1 << 20

// parseConfigFile parses the text of a file, and reads the files it names. No section is an error.
func parseConfigFile(name string, data []byte) (*configFile, error) {
	f := &configFile{name: name}
	what := "a configuration is a mapping of sections (" + strings.Join(sectionNames(), ", ") + ")"
	root, err := yaml.ParseMapping(name, data, what)
	if err != nil {
		return nil, err
	}
	if len(root.Content) == 0 {
		return nil, f.errorAt(root, "%s", what)
	}
	return f, f.readSections(root)
}

// readSections parses the sections into f.parts, sorted as configSections. Unknown ones are errors.
func (f *configFile) readSections(root *goyaml.Node) error {
	found := map[string]*goyaml.Node{}
	for key, value := range yaml.Pairs(root) {
		found[key.Value] = value
		if known := sectionNames(); !slices.Contains(known, key.Value) {
			return f.errorAt(key, "unknown section %q%s (have %s)", key.Value, plaintext.DidYouMean(key.Value, known), strings.Join(known, ", "))
		}
	}
	for _, s := range configSections {
		if n := found[s.name]; n != nil {
			part, err := s.read(f, n)
			if err != nil {
				return err
			}
			f.parts = append(f.parts, part)
		}
	}
	return nil
}

func sectionNames() []string {
	var names []string
	for _, s := range configSections {
		names = append(names, s.name)
	}
	return names
}

// seenKeys maps each setting to the key that named it first. A setting may have several spellings.
type seenKeys map[string]*goyaml.Node

// addOnce records that key names a setting. It returns an error if an earlier key did.
func (s seenKeys) addOnce(f *configFile, setting string, key *goyaml.Node) error {
	if first := s[setting]; first != nil {
		return f.errorAt(key, "%s is the same as %s in line %d; leave one of them out", key.Value, first.Value, first.Line)
	}
	s[setting] = key
	return nil
}

// readEntry reads a mapping and refuses unknown keys.
func (f *configFile) readEntry(section string, n *goyaml.Node, keys ...string) (*yaml.Entry, error) {
	return yaml.NewEntry(f.name, section, keys, &goyaml.Node{Kind: goyaml.ScalarNode, Value: section, Line: n.Line, Column: n.Column}, n)
}

// wantFile is a file that the board must have.
type wantFile struct {
	data  []byte
	mode  os.FileMode // as in octal: setuid, setgid and sticky are 07000
	owner string      // "": root
}

// configPlan is what must be changed on one board.
type configPlan struct {
	conn      *boardssh.Conn
	files     map[string]wantFile // by their absolute paths
	settings  []undo.Setting      // those that differ on the board
	hints     map[string]string   // by setting: why the board may refuse it
	followUps []followUp
}

// followUp is an action after all files and settings are written: it makes a program read them and
// checks that the program runs. It runs only if one of files changed, or always.
type followUp struct {
	files  []string
	always bool   // run it also if none of its files changed
	unit   string // restarted if everything is put back; "" if it did not run before
	do     func(ctx context.Context, changed func(file string) bool) (note string, err error)
}

// addSetting reads a setting as undo.ReadSetting does, and plans a change if its value differs.
func (p *configPlan) addSetting(ctx context.Context, kind, name, value string) error {
	is, err := undo.ReadSetting(ctx, p.conn, kind, name)
	if err == nil && is != value {
		p.settings = append(p.settings, undo.Setting{Kind: kind, Name: name, Before: is, After: value})
	}
	return err
}

// addDropIn plans a drop-in file of these lines, below a remark that Slipway replaces the file.
func (p *configPlan) addDropIn(file string, lines ...string) {
	text := "# Written by slipway deploy config, which replaces it.\n" + strings.Join(lines, "\n") + "\n"
	p.files[file] = wantFile{data: []byte(text), mode: 0o644}
}

// planConfig compares the board with the configuration and returns what must be changed.
func planConfig(ctx context.Context, conn *boardssh.Conn, f *configFile) (*configPlan, error) {
	p := &configPlan{conn: conn, files: map[string]wantFile{}, hints: map[string]string{}}
	for _, part := range f.parts {
		if err := part.plan(ctx, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// writeTree writes the planned files to the folder dir on this machine, each at its path on the
// board, and returns them with owners and settings for undo.Configure.
func (p *configPlan) writeTree(dir string) (undo.Configuration, error) {
	c := undo.Configuration{Folder: dir, Owners: map[string]string{}, Settings: p.settings}
	for name, want := range p.files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = errors.Join(os.WriteFile(file, want.data, 0o600), syscall.Chmod(file, uint32(want.mode)))
		}
		if err != nil {
			return c, err
		}
		if want.owner != "" {
			c.Owners[strings.TrimPrefix(name, "/")] = want.owner
		}
	}
	return c, chmodFolders(dir)
}

// chmodFolders sets the folders below dir to 0755, despite the umask: the board's new ones get it.
func chmodFolders(dir string) error {
	return filepath.WalkDir(dir, func(name string, found fs.DirEntry, err error) error {
		if err == nil && found.IsDir() && name != dir {
			err = os.Chmod(name, 0o755)
		}
		return err
	})
}

// ConfigOptions says how Config runs.
type ConfigOptions struct {
	DryRun bool
	Keep   bool // keep the changes if something does not work with them
	JSON   bool
	Now    <-chan struct{} // closed when putting back must end too
}

// configDone is the result of Config.
type configDone struct {
	filesDone
	Settings []undo.Setting `json:"settings"`
	Notes    []string       `json:"notes,omitempty"`
	Diff     string         `json:"diff,omitempty"` // of a dry run
}

// Config applies a configuration file to a board, runs the checks of its sections (such as that
// units run), and writes what changed. If a step fails, Config restores the old state, unless
// o.Keep is set. With o.DryRun it only writes what differs.
func Config(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, file string, o ConfigOptions) error {
	data, err := localfile.Read(file, maxConfigBytes)
	if err != nil {
		return report.Because(ctx, report.ErrWrong, localfile.ExplainUnreadable(file, err))
	}
	f, err := parseConfigFile(file, data)
	if err != nil {
		return report.Because(ctx, report.ErrWrong, err)
	}
	return reach.WithConnection(ctx, opt, spec, host, func(conn *boardssh.Conn) error {
		defer reach.CloseOnInterrupt(conn, o.Now)()
		done, err := planAndApply(ctx, conn, f, o)
		if err != nil {
			done.Error = err.Error()
		}
		return errors.Join(done.addUndoStep(conn, spec, host, err), showConfig(w, done, o))
	})
}

// planAndApply applies the changes that the board needs. A dry run only returns them and a diff.
func planAndApply(ctx context.Context, conn *boardssh.Conn, f *configFile, o ConfigOptions) (configDone, error) {
	done := configDone{Settings: []undo.Setting{}}
	p, err := planConfig(ctx, conn, f)
	if err != nil {
		return done, err
	}
	dir, err := os.MkdirTemp("", "slipway-config")
	if err != nil {
		return done, err
	}
	defer os.RemoveAll(dir)
	want, err := p.writeTree(dir)
	if err != nil {
		return done, err
	}
	want.Name = f.name
	planned, _, err := undo.Configure(ctx, conn, want, true)
	if err != nil || len(planned)+len(p.settings) == 0 {
		return done, err
	}
	if !o.DryRun {
		if err := requireRoot(ctx, conn); err != nil {
			return done, err
		}
		return done, p.applyChanges(ctx, want, planned, &done, o)
	}
	done.Changes, done.Settings = planned, append(done.Settings, p.settings...)
	done.Diff, err = p.diffFiles(ctx, planned)
	return done, err
}

// requireRoot returns an error unless the board runs programs as root, or has no command id.
func requireRoot(ctx context.Context, conn *boardssh.Conn) error {
	id, err := conn.AskOutput(ctx, "sh", "-c", "id -u || echo 0")
	if err != nil || id == "0" {
		return err
	}
	err = fmt.Errorf("deploy config writes files and settings of root, and %s is not root on the board; nothing was written", conn.Address().User)
	return boardssh.NextStep{Err: err, Step: "repeat the line with --become"}
}

// applyChanges writes the files and settings to the board and runs the follow-ups of changed files,
// and those that always run. It puts the changes, if it began them, the undo ID and the notes into
// done. After a failure or Ctrl-C it restores the old state, unless o.Keep is set.
func (p *configPlan) applyChanges(ctx context.Context, want undo.Configuration, planned []files.Change, done *configDone, o ConfigOptions) error {
	changed := func(file string) bool {
		return slices.ContainsFunc(planned, func(c files.Change) bool { return "/"+c.Path == file })
	}
	todo := slices.DeleteFunc(slices.Clone(p.followUps), func(a followUp) bool { return !a.always && !slices.ContainsFunc(a.files, changed) })
	for _, a := range todo {
		if a.unit != "" && !slices.Contains(want.Units, a.unit) {
			want.Units = append(want.Units, a.unit)
		}
	}
	var err error
	if _, done.Undo, err = undo.Configure(ctx, p.conn, want, false); done.Undo != "" {
		done.Changes, done.Settings = planned, append(done.Settings, p.settings...)
	}
	for i := 0; err == nil && i < len(todo); i++ {
		var note string
		if note, err = todo[i].do(ctx, changed); note != "" && err == nil && !slices.Contains(done.Notes, note) {
			done.Notes = append(done.Notes, note)
		}
	}
	err = p.addHint(err)
	if err == nil || done.Undo == "" || o.Keep {
		return err
	}
	return putBack(ctx, p.conn, &done.filesDone, true, err)
}

// addHint appends to the error of a refused setting, and to no other, why a board may refuse it.
func (p *configPlan) addHint(err error) error {
	if !errors.Is(err, undo.ErrSetting) {
		return err
	}
	for name, hint := range p.hints {
		if strings.Contains(err.Error(), name) {
			return fmt.Errorf("%w\n  %s", err, hint)
		}
	}
	return err
}

// maxShownBytes is the largest file that a dry run compares.
const maxShownBytes = 1 << 20

// diffFiles returns a diff of the board's new and replaced files. It skips any over maxShownBytes.
func (p *configPlan) diffFiles(ctx context.Context, changes []files.Change) (string, error) {
	var all strings.Builder
	for _, c := range changes {
		name := "/" + c.Path
		want, ok := p.files[name]
		if !ok || c.Kind == files.Mode || len(want.data) > maxShownBytes {
			continue
		}
		var old []byte
		if c.Kind == files.Replaced {
			r, err := p.conn.Ask(ctx, "cat", name)
			if err != nil {
				return "", err
			}
			if r.Truncated {
				continue
			}
			old = r.Stdout
		}
		all.WriteString(plaintext.Printable(string(diff.Diff(name, old, name+" (new)", want.data))))
	}
	return all.String(), nil
}

// showConfig writes the changes of a run of Config as JSON, or as text if they were not undone.
func showConfig(w io.Writer, done configDone, o ConfigOptions) error {
	if o.JSON {
		return plaintext.WriteJSON(w, done)
	}
	if done.Undone {
		return nil // the error says it
	}
	for _, c := range done.Changes {
		fmt.Fprintf(w, "%-13s  %q\n", c.Kind, "/"+c.Path)
	}
	for _, s := range done.Settings {
		fmt.Fprintf(w, "%-13s  %s: %s -> %s\n", s.Kind, s.Name, plaintext.Printable(s.Before), s.After)
	}
	for _, note := range done.Notes {
		fmt.Fprintln(w, plaintext.Printable(note))
	}
	io.WriteString(w, done.Diff)
	done.showEnd(w, len(done.Changes)+len(done.Settings), "", "the board", o.DryRun)
	return nil
}

// boardText returns a board file's text, and whether cat could read it. Truncation is an error.
func (p *configPlan) boardText(ctx context.Context, name string) (string, bool, error) {
	r, err := p.conn.Ask(ctx, "cat", name)
	if err == nil && r.Truncated {
		err = fmt.Errorf("%s on the board is larger than a configuration is", name)
	}
	return string(r.Stdout), r.Status == 0, err
}

// boardPath reports whether a path can name a board's file: absolute, clean, not /, no NUL or \n.
func boardPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" && !strings.ContainsAny(name, "\x00\n")
}

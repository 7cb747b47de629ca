// Package deploy changes a running board: its configuration, files, containers. Every
// change of files can be undone.
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
	"time"

	"github.com/rogpeppe/go-internal/diff"
	"go.yaml.in/yaml/v4"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/flash/target"
	"slipway/flash/target/files"
	"slipway/flash/target/undo"
	"slipway/images"
	"slipway/images/strict"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// configSections are what a file of deploy:config may say, in the order in which it is
// done.
var configSections = []struct {
	name string
	read func(*configFile, *yaml.Node) (configPart, error)
}{
	{"modules", readModules},
	{"sysctl", readSysctls},
	{"hugepages", readHugepages},
	{"files", readConfigFiles},
	{"nvpmodel", readNvpmodel},
	{"frr", readFRR},
}

// configPart is a section. It asks the board, which it does not change, and enters in
// the plan what has to be done there.
type configPart interface {
	plan(ctx context.Context, p *configPlan) error
}

// configFile is a file of deploy:config. What it names lies beside it, or below.
type configFile struct {
	name  string
	parts []configPart
}

func (f *configFile) errorAt(n *yaml.Node, format string, args ...any) error {
	return strict.At(f.name, n, format, args...)
}

// maxConfigBytes is far above what a person writes.
const maxConfigBytes = 1 << 20

// loadConfig reads and judges a file of deploy:config, without a board.
func loadConfig(name string) (*configFile, error) {
	data, err := localfile.Read(name, maxConfigBytes)
	if err != nil {
		return nil, localfile.NotHere(name, err)
	}
	return parseConfigFile(name, data)
}

func parseConfigFile(name string, data []byte) (*configFile, error) {
	f := &configFile{name: name}
	what := "a configuration is a mapping of sections (" + f.sectionNames() + ")"
	root, err := strict.ParseMapping(name, data, what)
	if err != nil {
		return nil, err
	}
	if len(root.Content) == 0 {
		return nil, f.errorAt(root, "%s", what)
	}
	return f, f.readSections(root)
}

func (f *configFile) readSections(root *yaml.Node) error {
	found := map[string]*yaml.Node{}
	for key, value := range strict.Pairs(root) {
		found[key.Value] = value
		if !slices.Contains(strings.Split(f.sectionNames(), ", "), key.Value) {
			return f.errorAt(key, "unknown section %q (have %s)", key.Value, f.sectionNames())
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

func (*configFile) sectionNames() string {
	var names []string
	for _, s := range configSections {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// seenKeys are the keys of a section by what they stand for, which several names may have.
type seenKeys map[string]*yaml.Node

// addOnce refuses a key for what an earlier one stands for already.
func (s seenKeys) addOnce(f *configFile, what string, key *yaml.Node) error {
	if first := s[what]; first != nil {
		return f.errorAt(key, "%s is the same as %s in line %d; leave one of them out", key.Value, first.Value, first.Line)
	}
	s[what] = key
	return nil
}

// readEntry reads a mapping whose keys are known.
func (f *configFile) readEntry(section string, n *yaml.Node, keys ...string) (*strict.Entry, error) {
	return strict.NewEntry(f.name, section, keys, &yaml.Node{Kind: yaml.ScalarNode, Value: section, Line: n.Line, Column: n.Column}, n)
}

// wantFile is a file that the board shall have.
type wantFile struct {
	data  []byte
	mode  os.FileMode
	owner string // "": root
}

// configPlan is what has to be done on one board.
type configPlan struct {
	conn      *target.Conn
	files     map[string]wantFile // by their absolute paths
	settings  []undo.Setting      // that differ
	hints     map[string]string   // what may be wrong where the board does not take one, by its name
	followUps []followUp
}

// followUp is what is done when all files and settings are there, where one of its
// files changed: it lets programs read them, and proves that they run.
type followUp struct {
	files  []string
	always bool   // also where none of them changed
	unit   string // restarted where all is put back; "" where it did not run before
	do     func(ctx context.Context, changed func(file string) bool) (note string, err error)
}

// addSetting enters a setting, where the board has another value.
func (p *configPlan) addSetting(ctx context.Context, kind, name, value string) error {
	is, err := undo.ReadSetting(ctx, p.conn, kind, name)
	if err == nil && is != value {
		p.settings = append(p.settings, undo.Setting{Kind: kind, Name: name, Before: is, After: value})
	}
	return err
}

// addDropIn enters a drop-in that is ours alone.
func (p *configPlan) addDropIn(file string, lines ...string) {
	text := "# Written by slipway deploy:config, which replaces it.\n" + strings.Join(lines, "\n") + "\n"
	p.files[file] = wantFile{data: []byte(text), mode: 0o644}
}

// planConfig asks the board what it lacks.
func planConfig(ctx context.Context, conn *target.Conn, f *configFile) (*configPlan, error) {
	p := &configPlan{conn: conn, files: map[string]wantFile{}, hints: map[string]string{}}
	for _, part := range f.parts {
		if err := part.plan(ctx, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// writeTree lays the files out as the board's root is.
func (p *configPlan) writeTree(dir string) (undo.Configuration, error) {
	c := undo.Configuration{Folder: dir, Owners: map[string]string{}, Settings: p.settings}
	for name, want := range p.files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if err == nil {
			err = errors.Join(os.WriteFile(file, want.data, 0o600), os.Chmod(file, want.mode))
		}
		if err != nil {
			return c, err
		}
		if want.owner != "" {
			c.Owners[strings.TrimPrefix(name, "/")] = want.owner
		}
	}
	return c, openFolders(dir)
}

// openFolders lets everybody look into what is below a folder, whatever the umask is:
// folders that the board lacks are made there as they are here.
func openFolders(dir string) error {
	return filepath.WalkDir(dir, func(name string, found fs.DirEntry, err error) error {
		if err == nil && found.IsDir() && name != dir {
			err = os.Chmod(name, 0o755)
		}
		return err
	})
}

// ConfigOptions says how a board is configured.
type ConfigOptions struct {
	DryRun bool
	Keep   bool // also where something does not work with it
	JSON   bool
	Now    <-chan struct{} // closed when even putting back shall end
}

// configDone is what came of it.
type configDone struct {
	filesDone
	Settings []undo.Setting `json:"settings"`
	Notes    []string       `json:"notes,omitempty"`
	Diff     string         `json:"diff,omitempty"` // of a dry run
}

// Config brings a configuration to a board, proves that it works, and puts back
// what was there where it does not.
func Config(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, file string, o ConfigOptions) error {
	f, err := loadConfig(file)
	if err != nil {
		return report.Because(ctx, report.ErrWrong, err)
	}
	return reach.WithConnection(ctx, opt, spec, host, func(conn *target.Conn) error {
		defer reach.CloseOnInterrupt(conn, o.Now)()
		done, err := planAndApply(ctx, conn, f, o)
		if err != nil {
			done.Error = err.Error()
		}
		return errors.Join(err, showConfig(w, done, o))
	})
}

func planAndApply(ctx context.Context, conn *target.Conn, f *configFile, o ConfigOptions) (configDone, error) {
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
	done.Settings = append(done.Settings, p.settings...)
	if done.Changes, _, err = undo.Configure(ctx, conn, want, true); err != nil || len(done.Changes)+len(p.settings) == 0 {
		return done, err
	}
	if o.DryRun {
		done.Diff, err = p.diffFiles(ctx, done.Changes)
		return done, err
	}
	return done, p.applyChanges(ctx, want, &done, o)
}

// applyChanges does what is planned, and puts all back where something fails, or Ctrl-C is
// pressed.
func (p *configPlan) applyChanges(ctx context.Context, want undo.Configuration, done *configDone, o ConfigOptions) error {
	changed := func(file string) bool {
		return slices.ContainsFunc(done.Changes, func(c files.Change) bool { return "/"+c.Path == file })
	}
	todo := slices.DeleteFunc(slices.Clone(p.followUps), func(a followUp) bool { return !a.always && !slices.ContainsFunc(a.files, changed) })
	for _, a := range todo {
		if a.unit != "" && !slices.Contains(want.Units, a.unit) {
			want.Units = append(want.Units, a.unit)
		}
	}
	var err error
	_, done.Undo, err = undo.Configure(ctx, p.conn, want, false)
	for i := 0; err == nil && i < len(todo); i++ {
		var note string
		if note, err = todo[i].do(ctx, changed); note != "" && !slices.Contains(done.Notes, note) {
			done.Notes = append(done.Notes, note)
		}
	}
	err = p.addHint(err)
	if err == nil || done.Undo == "" || o.Keep {
		return err
	}
	if failed := putBack(ctx, p.conn, done.Undo); failed != nil {
		return errors.Join(err, fmt.Errorf("put back what was there: %w", failed))
	}
	done.Undone = true
	return fmt.Errorf("%w\n  all was put back as it was", err)
}

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

// putBackLimit is how long a Ctrl-C waits for what it puts back.
const putBackLimit = 2 * time.Minute

func putBack(ctx context.Context, conn *target.Conn, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackLimit)
	defer cancel()
	_, err := undoAndRestart(ctx, conn, id, true)
	return err
}

// maxShownBytes is how much of a file a dry run compares.
const maxShownBytes = 1 << 20

// diffFiles shows what would change in each file.
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
			r, err := p.conn.Run(ctx, "cat", name)
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

func showConfig(w io.Writer, done configDone, o ConfigOptions) error {
	if o.JSON {
		return plaintext.WriteJSON(w, done)
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
	n := len(done.Changes) + len(done.Settings)
	switch {
	case o.DryRun && done.Error == "":
		fmt.Fprintf(w, "%d changes; nothing was done\n", n)
	case done.Undo != "" && !done.Undone:
		fmt.Fprintf(w, "%d changes; deploy:undo puts back what was there (-id=%s)\n", n, done.Undo)
	case n == 0 && done.Error == "":
		fmt.Fprintln(w, "the board is as it should be")
	}
	return nil
}

// boardText is a file of the board, and whether it is there.
func (p *configPlan) boardText(ctx context.Context, name string) (string, bool, error) {
	r, err := p.conn.Run(ctx, "cat", name)
	if err == nil && r.Truncated {
		err = fmt.Errorf("%s on the board is larger than a configuration is", name)
	}
	return string(r.Stdout), r.Status == 0, err
}

// boardPath says whether a path is one that files may be brought to.
func boardPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" && !strings.ContainsAny(name, "\x00\n")
}

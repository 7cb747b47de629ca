package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	goyaml "go.yaml.in/yaml/v4"

	"slipway/flash/boardssh/files"
	"slipway/flash/boardssh/undo"
	"slipway/layers/localfile"
	"slipway/layers/yaml"
)

// configFiles is the section files: local files with their paths on the board and units to restart.
type configFiles []placedFile

type placedFile struct {
	place string
	wantFile
	restart []string
}

const (
	maxConfigFileBytes = 1 << 20
	configWatch        = 3 * time.Second // how long restarted units must keep running
)

// readConfigFiles parses the section files and reads the local files that it names. It refuses a
// place on the board below another place of the section.
func readConfigFiles(f *configFile, n *goyaml.Node) (configPart, error) {
	if n.Kind != goyaml.MappingNode || len(n.Content) == 0 || len(n.Content) > 2*maxConfigLines {
		return nil, f.errorAt(n, "files must be a mapping of 1 to %d places on the board", maxConfigLines)
	}
	var all configFiles
	places := seenKeys{}
	for key := range yaml.Pairs(n) {
		places[key.Value] = key
	}
	for key, value := range yaml.Pairs(n) {
		if !boardPath(key.Value) {
			return nil, f.errorAt(key, "%q is no place on the board, such as /etc/app.conf", key.Value)
		}
		for dir := path.Dir(key.Value); dir != "/"; dir = path.Dir(dir) {
			if above := places[dir]; above != nil {
				return nil, f.errorAt(key, "%s lies in what line %d makes a file: %s", key.Value, above.Line, dir)
			}
		}
		e, err := yaml.NewEntry(f.name, "files", []string{"from", "mode", "owner", "restart"}, key, value)
		if err != nil {
			return nil, err
		}
		one := placedFile{place: key.Value, restart: e.List("restart")}
		one.data = f.readNamedFile(e, "from")
		one.owner = e.Text("owner", "")
		mode, err := strconv.ParseUint(e.Text("mode", "0644"), 8, 12)
		if err != nil {
			e.Fail(e.Fields["mode"], "mode must be one in octal, such as 0640")
		}
		if one.mode = os.FileMode(mode); one.mode.Perm() != one.mode {
			e.Fail(e.Fields["mode"], "mode must be at most 0777")
		}
		if err := (files.Rights{Owner: one.owner}).Check(); err != nil {
			e.Fail(e.Fields["owner"], "%v", err)
		}
		if err := undo.CheckUnits(one.restart); err != nil {
			e.Fail(e.Fields["restart"], "%v", err)
		}
		if e.Err != nil {
			return nil, e.Err
		}
		all = append(all, one)
	}
	return all, nil
}

// readNamedFile reads the file that attribute key names, relative to the configuration, with errors
// in e. It refuses links out of the folder: others' configurations must not send your files.
func (f *configFile) readNamedFile(e *yaml.Entry, key string) []byte {
	name, n := e.Text(key, ""), e.Fields[key]
	switch {
	case e.Err != nil:
		return nil
	case name == "":
		e.Fail(e.Key, "%s needs %q, a file beside this one", e.Name, key)
		return nil
	case !filepath.IsLocal(name):
		e.Fail(n, "%s must be a file beside this one or below, not %q", key, name)
		return nil
	}
	data, err := f.readBeside(name)
	if err != nil {
		e.Fail(n, "%v", err)
	}
	return data
}

// readBeside reads a regular file of at most maxConfigFileBytes in the configuration's folder or
// below. It refuses a pipe, because opening one may block.
func (f *configFile) readBeside(name string) ([]byte, error) {
	root, err := os.OpenRoot(filepath.Dir(f.name))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(name)
	if wrong := (*fs.PathError)(nil); errors.As(err, &wrong) {
		wrong.Op = "open" // not statat
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", name)
	}
	if err != nil {
		return nil, err
	}
	from, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	return localfile.ReadAll(from, name, maxConfigFileBytes)
}

// plan adds the files to the plan, and a follow-up that restarts each unit of a changed file once.
func (c configFiles) plan(_ context.Context, p *configPlan) error {
	var units []string
	files := map[string][]string{}
	for _, one := range c {
		p.files[one.place] = one.wantFile
		for _, unit := range one.restart {
			if files[unit] == nil {
				units = append(units, unit)
			}
			files[unit] = append(files[unit], one.place)
		}
	}
	for _, unit := range units { // each unit restarts once, however many of its files changed
		p.followUps = append(p.followUps, followUp{files: files[unit], unit: unit, do: func(ctx context.Context, _ func(string) bool) (string, error) {
			return unit + " was restarted", undo.RestartUnits(ctx, p.conn, []string{unit}, configWatch)
		}})
	}
	return nil
}

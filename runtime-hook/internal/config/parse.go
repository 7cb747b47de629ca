package config

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"slipway/runtime-hook/internal/cdi"
	"slipway/runtime-hook/internal/plan"
)

// keys are all that the file may set. Its tables are the part before the dot.
var keys = map[string]func(*Config, *unstable.Node) error{
	"csv-dir":         func(c *Config, v *unstable.Node) error { return absolute(&c.CSVDir, v) },
	"base-files-only": func(c *Config, v *unstable.Node) error { return boolean(&c.BaseFilesOnly, v) },
	"ignore":          func(c *Config, v *unstable.Node) error { return patterns(&c.Ignore, v) },
	"compat-dir":      func(c *Config, v *unstable.Node) error { return compatDir(&c.CompatDir, v) },
	"accept-nvidia-visible-devices-as-volume-mounts":         func(c *Config, v *unstable.Node) error { return boolean(&c.VolumeMounts, v) },
	"accept-nvidia-visible-devices-envvar-when-unprivileged": func(c *Config, v *unstable.Node) error { return boolean(&c.Variable, v) },
	"devices":          func(c *Config, v *unstable.Node) error { return boolean(&c.Devices, v) },
	"whole-folders":    func(c *Config, v *unstable.Node) error { return boolean(&c.WholeFolders, v) },
	"log.file":         func(c *Config, v *unstable.Node) error { return logFile(&c.LogFile, v) },
	"log.level":        func(c *Config, v *unstable.Node) error { return level(&c.LogLevel, v) },
	"runtime.runtimes": func(c *Config, v *unstable.Node) error { return programs(&c.Runtimes, v) },
	"board.cuda":       func(c *Config, v *unstable.Node) error { return version(&c.CUDA, v) },
	"board.jetpack":    func(c *Config, v *unstable.Node) error { return version(&c.JetPack, v) },
	"board.arch":       func(c *Config, v *unstable.Node) error { return version(&c.Arch, v) },
	"cdi.version":      func(c *Config, v *unstable.Node) error { return cdiVersion(&c.CDIVersion, v) },
}

// file is one that is read. TOML's own decoder is not used: it takes keys in any
// case and lists for text, and does not say the line of all that it refuses.
type file struct {
	unstable.Parser
	table  []string
	seen   map[string]bool
	config Config
	faults Faults
}

func parse(data []byte) (Config, Faults) {
	f := file{seen: map[string]bool{}, config: Defaults()}
	f.Reset(bytes.TrimPrefix(data, []byte("\uFEFF")))
	for f.NextExpression() {
		f.expression(f.Expression())
	}
	var wrong *unstable.ParserError
	if errors.As(f.Error(), &wrong) {
		line := strings.Count(string(data), "\n") + 1
		if len(wrong.Highlight) > 0 {
			line = f.line(f.Range(wrong.Highlight))
		}
		f.faults = append(f.faults, Fault{Line: line, Why: "not TOML: " + wrong.Message})
	}
	if len(f.faults) > 0 {
		return Config{}, f.faults
	}
	return f.config, nil
}

func (f *file) line(at unstable.Range) int { return f.Shape(at).Start.Line }

func (f *file) expression(e *unstable.Node) {
	name, line := f.key(e)
	switch e.Kind {
	case unstable.Table:
		f.table = name
		f.knowTable(name, line)
	case unstable.KeyValue:
		f.set(strings.Join(append(slices.Clone(f.table), name...), "."), line, e.Value())
	default:
		f.table = name
		f.fault(line, "[[%.80s]] is a list of tables, and no setting is one", strings.Join(name, "."))
	}
}

// key is the name that e begins with, in its parts, and its line.
func (f *file) key(e *unstable.Node) (name []string, line int) {
	for it := e.Key(); it.Next(); {
		if line == 0 {
			line = f.line(it.Node().Raw)
		}
		name = append(name, string(it.Node().Data))
	}
	return name, line
}

func (f *file) fault(line int, format string, args ...any) {
	f.faults = append(f.faults, Fault{Line: line, Why: fmt.Sprintf(format, args...)})
}

func (f *file) knowTable(name []string, line int) {
	table := strings.Join(name, ".") + "."
	for key := range keys {
		if strings.HasPrefix(key, table) {
			return
		}
	}
	f.fault(line, "unknown table [%.80s] (have [board], [cdi], [log], [runtime])", strings.Join(name, "."))
}

func (f *file) set(key string, line int, value *unstable.Node) {
	set, ok := keys[key]
	switch {
	case !ok:
		f.fault(line, "unknown key %.80q (have %s)", key, strings.Join(known(), ", "))
	case f.seen[key]:
		f.fault(line, "%s is set above already", key)
	default:
		f.seen[key] = true
		if err := set(&f.config, value); err != nil {
			f.fault(line, "%s: %v", key, err)
		}
	}
}

func known() []string {
	var out []string
	for key := range keys {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func boolean(field *bool, v *unstable.Node) error {
	if v.Kind != unstable.Bool {
		return errors.New("takes true or false, without quotes")
	}
	*field = string(v.Data) == "true"
	return nil
}

func text(v *unstable.Node) (string, error) {
	if v.Kind != unstable.String {
		return "", errors.New("takes text in quotes")
	}
	return string(v.Data), nil
}

func absolute(field *string, v *unstable.Node) error {
	s, err := text(v)
	if err == nil && (!filepath.IsAbs(s) || filepath.Clean(s) != s || strings.ContainsRune(s, 0)) {
		err = fmt.Errorf("%.80q is not an absolute path without \"..\" and the like", s)
	}
	*field = s
	return err
}

// compatDir may be empty, or the word for the board's own.
func compatDir(field *string, v *unstable.Node) error {
	if s, err := text(v); err == nil && s == Auto {
		*field = s
		return nil
	}
	return logFile(field, v)
}

// logFile may be empty.
func logFile(field *string, v *unstable.Node) error {
	if s, err := text(v); err == nil && s == "" {
		*field = ""
		return nil
	}
	return absolute(field, v)
}

func level(field *Level, v *unstable.Node) error {
	s, err := text(v)
	*field = Level(s)
	if err == nil && *field != Line && *field != Debug {
		err = fmt.Errorf("unknown level %.80q (have line, debug)", s)
	}
	return err
}

func cdiVersion(field *string, v *unstable.Node) error {
	s, err := text(v)
	if err == nil && s != cdi.Oldest && s != cdi.Groups {
		err = fmt.Errorf("unknown version %.80q (have %s, %s)", s, cdi.Oldest, cdi.Groups)
	}
	*field = s
	return err
}

// maxPatterns bounds what each path of the lists is compared with.
const maxPatterns = 256

func patterns(field *[]string, v *unstable.Node) error {
	list, err := texts(v, `["**/libnvinfer*"]`)
	for _, p := range list {
		if err == nil && !plan.GoodPattern(p) {
			err = fmt.Errorf("%.80q is neither a pattern of an absolute path nor **/ and one of a name", p)
		}
	}
	if len(list) > maxPatterns {
		err = fmt.Errorf("has more than %d patterns", maxPatterns)
	}
	*field = list
	return err
}

// texts is a list of texts, such as example.
func texts(v *unstable.Node, example string) (list []string, err error) {
	if v.Kind != unstable.Array {
		return nil, errors.New("takes a list, such as " + example)
	}
	for it := v.Children(); it.Next(); {
		s, err := text(it.Node())
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// programs are names or absolute paths: a relative one would depend on where an
// engine stands when it calls.
func programs(field *[]string, v *unstable.Node) error {
	list, err := texts(v, `["runc", "crun"]`)
	if err != nil {
		return err
	}
	for _, s := range list {
		if s == "" || strings.ContainsRune(s, 0) || strings.Contains(s, "/") && !filepath.IsAbs(s) {
			return fmt.Errorf("%.80q is neither a program's name nor an absolute path", s)
		}
	}
	if *field = list; len(list) == 0 {
		return errors.New("is empty; leave it out for runc and crun")
	}
	return nil
}

// version may be written as text or as the number that it looks like.
func version(field *string, v *unstable.Node) error {
	*field = string(v.Data)
	if v.Kind == unstable.String || v.Kind == unstable.Float || v.Kind == unstable.Integer {
		for _, part := range strings.Split(*field, ".") {
			if _, err := strconv.ParseUint(part, 10, 31); err != nil {
				return fmt.Errorf("%.80q is no version such as \"11.4\"", *field)
			}
		}
		return nil
	}
	return errors.New("takes a version, such as \"11.4\"")
}

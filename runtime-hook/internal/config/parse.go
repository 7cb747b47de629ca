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

// keys are all keys of the file. The part before a dot is the table.
var keys = map[string]func(*Config, *unstable.Node) error{
	"csv-dir":    func(c *Config, v *unstable.Node) error { return setPath(&c.CSVDir, v) },
	"ignore":     func(c *Config, v *unstable.Node) error { return setPatterns(&c.Ignore, v) },
	"compat-dir": func(c *Config, v *unstable.Node) error { return setCompatDir(&c.CompatDir, v) },
	"accept-nvidia-visible-devices-as-volume-mounts":         func(c *Config, v *unstable.Node) error { return setBool(&c.VolumeMounts, v) },
	"accept-nvidia-visible-devices-envvar-when-unprivileged": func(c *Config, v *unstable.Node) error { return setBool(&c.Variable, v) },
	"devices":          func(c *Config, v *unstable.Node) error { return setBool(&c.Devices, v) },
	"log.file":         func(c *Config, v *unstable.Node) error { return setLogFile(&c.LogFile, v) },
	"log.level":        func(c *Config, v *unstable.Node) error { return setLevel(&c.LogLevel, v) },
	"runtime.runtimes": func(c *Config, v *unstable.Node) error { return setPrograms(&c.Runtimes, v) },
	"board.cuda":       func(c *Config, v *unstable.Node) error { return setVersion(&c.CUDA, v) },
	"board.jetpack":    func(c *Config, v *unstable.Node) error { return setVersion(&c.JetPack, v) },
	"board.arch":       func(c *Config, v *unstable.Node) error { return setVersion(&c.Arch, v) },
	"cdi.version":      func(c *Config, v *unstable.Node) error { return setCDIVersion(&c.CDIVersion, v) },
}

// tomlFile is a file that is being read. It does not use TOML's own decoder, which
// accepts keys in any case and lists for text. That decoder also gives no line for some
// of its errors.
type tomlFile struct {
	unstable.Parser
	table  []string
	seen   map[string]bool
	config Config
	faults Faults
}

func parseTOML(data []byte) (Config, Faults) {
	f := tomlFile{seen: map[string]bool{}, config: Defaults()}
	f.Reset(bytes.TrimPrefix(data, []byte("\uFEFF")))
	for f.NextExpression() {
		f.readExpression(f.Expression())
	}
	var wrong *unstable.ParserError
	if errors.As(f.Error(), &wrong) {
		line := strings.Count(string(data), "\n") + 1
		if len(wrong.Highlight) > 0 {
			line = f.lineOf(f.Range(wrong.Highlight))
		}
		f.faults = append(f.faults, Fault{Line: line, Why: "not TOML: " + wrong.Message})
	}
	if len(f.faults) > 0 {
		return Config{}, f.faults
	}
	return f.config, nil
}

func (f *tomlFile) lineOf(at unstable.Range) int { return f.Shape(at).Start.Line }

func (f *tomlFile) readExpression(e *unstable.Node) {
	name, line := f.readKey(e)
	switch e.Kind {
	case unstable.Table:
		f.table = name
		f.checkTable(name, line)
	case unstable.KeyValue:
		f.setKey(strings.Join(append(slices.Clone(f.table), name...), "."), line, e.Value())
	default:
		f.table = name
		f.addFault(line, "[[%.80s]] is a list of tables, and no setting is one", strings.Join(name, "."))
	}
}

// readKey returns the parts of the name that e begins with, and its line.
func (f *tomlFile) readKey(e *unstable.Node) (name []string, line int) {
	for it := e.Key(); it.Next(); {
		if line == 0 {
			line = f.lineOf(it.Node().Raw)
		}
		name = append(name, string(it.Node().Data))
	}
	return name, line
}

func (f *tomlFile) addFault(line int, format string, args ...any) {
	f.faults = append(f.faults, Fault{Line: line, Why: fmt.Sprintf(format, args...)})
}

func (f *tomlFile) checkTable(name []string, line int) {
	table := strings.Join(name, ".") + "."
	for key := range keys {
		if strings.HasPrefix(key, table) {
			return
		}
	}
	f.addFault(line, "unknown table [%.80s] (have [board], [cdi], [log], [runtime])", strings.Join(name, "."))
}

func (f *tomlFile) setKey(key string, line int, value *unstable.Node) {
	set, ok := keys[key]
	switch {
	case !ok:
		f.addFault(line, "unknown key %.80q (have %s)", key, strings.Join(knownKeys(), ", "))
	case f.seen[key]:
		f.addFault(line, "%s is set above already", key)
	default:
		f.seen[key] = true
		if err := set(&f.config, value); err != nil {
			f.addFault(line, "%s: %v", key, err)
		}
	}
}

func knownKeys() []string {
	var out []string
	for key := range keys {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

func setBool(field *bool, v *unstable.Node) error {
	if v.Kind != unstable.Bool {
		return errors.New("takes true or false, without quotes")
	}
	*field = string(v.Data) == "true"
	return nil
}

func textValue(v *unstable.Node) (string, error) {
	if v.Kind != unstable.String {
		return "", errors.New("takes text in quotes")
	}
	return string(v.Data), nil
}

func setPath(field *string, v *unstable.Node) error {
	s, err := textValue(v)
	if err == nil && (!filepath.IsAbs(s) || filepath.Clean(s) != s || strings.ContainsRune(s, 0)) {
		err = fmt.Errorf("%.80q is not an absolute path without \"..\" and the like", s)
	}
	*field = s
	return err
}

// setCompatDir accepts an empty path, or the word for the board's own.
func setCompatDir(field *string, v *unstable.Node) error {
	if s, err := textValue(v); err == nil && s == Auto {
		*field = s
		return nil
	}
	return setLogFile(field, v)
}

// setLogFile accepts an empty path.
func setLogFile(field *string, v *unstable.Node) error {
	if s, err := textValue(v); err == nil && s == "" {
		*field = ""
		return nil
	}
	return setPath(field, v)
}

func setLevel(field *Level, v *unstable.Node) error {
	s, err := textValue(v)
	*field = Level(s)
	if err == nil && *field != Line && *field != Debug {
		err = fmt.Errorf("unknown level %.80q (have line, debug)", s)
	}
	return err
}

func setCDIVersion(field *string, v *unstable.Node) error {
	s, err := textValue(v)
	if err == nil && s != cdi.Oldest && s != cdi.Groups {
		err = fmt.Errorf("unknown version %.80q (have %s, %s)", s, cdi.Oldest, cdi.Groups)
	}
	*field = s
	return err
}

// maxPatterns limits the patterns that each path of the lists is compared with.
const maxPatterns = 256

func setPatterns(field *[]string, v *unstable.Node) error {
	list, err := textList(v, `["**/libnvinfer*"]`)
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

// textList returns a list of texts. Its error shows the example.
func textList(v *unstable.Node, example string) (list []string, err error) {
	if v.Kind != unstable.Array {
		return nil, errors.New("takes a list, such as " + example)
	}
	for it := v.Children(); it.Next(); {
		s, err := textValue(it.Node())
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// setPrograms accepts names or absolute paths: a relative one would depend on an
// engine's working folder.
func setPrograms(field *[]string, v *unstable.Node) error {
	list, err := textList(v, `["runc", "crun"]`)
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

// setVersion accepts a text, or a number that looks like a version.
func setVersion(field *string, v *unstable.Node) error {
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

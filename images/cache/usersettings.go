package cache

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ownSetting is a line of the user's own configuration that sets one of cacheVariables.
type ownSetting struct {
	name  string
	value string
	whole bool   // the line gives all of the value, and always: no override, no append
	at    string // file:line
}

// cacheVariables are the variables of all parts of a cache.
var cacheVariables = []string{
	"SSTATE_MIRRORS", "BB_SIGNATURE_HANDLER", "BB_HASHSERVE", "BB_HASHSERVE_UPSTREAM", "PRSERV_HOST",
	"PREMIRRORS", "SOURCE_MIRROR_URL", "BB_GENERATE_MIRROR_TARBALLS", "SSTATE_DIR", "DL_DIR", noNetwork,
}

const noNetwork = "BB_NO_NETWORK"

// findOwnSettings returns the user's settings of cacheVariables, from bitbake's environment and
// from the files in a build's conf folder with those that they include. It reads only the left
// sides of lines as bitbake does.
func findOwnSettings(conf string, env map[string]string) ([]ownSetting, error) {
	var found []ownSetting
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if slices.Contains(cacheVariables, name) {
			found = append(found, ownSetting{name: name, value: env[name], whole: true, at: "environment"})
		}
	}
	r, err := newConfReader(conf)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"site.conf", "auto.conf", "local.conf"} {
		if err := r.readFile(filepath.Join(conf, name)); err != nil {
			return nil, err
		}
	}
	return append(found, r.found...), nil
}

// confReader reads bitbake's configuration files.
type confReader struct {
	top   string   // TOPDIR
	path  []string // the layers, where bitbake looks for included files too
	seen  map[string]bool
	found []ownSetting
}

const (
	maxConfFiles = 64
	maxConfBytes = 1 << 20
)

// newConfReader returns a reader that knows the layers in bblayers.conf.
func newConfReader(conf string) (*confReader, error) {
	r := &confReader{top: filepath.Dir(conf), seen: map[string]bool{}}
	path := filepath.Join(conf, "bblayers.conf")
	text, err := readConf(path)
	if err != nil {
		return nil, err
	}
	layers, _ := scanConf(path, text, []string{"BBLAYERS"})
	for _, l := range layers {
		r.path = append(r.path, strings.Fields(r.expandTopdir(l.value))...)
	}
	return r, nil
}

func (r *confReader) expandTopdir(text string) string {
	return strings.ReplaceAll(text, "${TOPDIR}", r.top)
}

// readConf returns the text of a file, "" if it is missing: bitbake looks in many places.
func readConf(path string) (string, error) {
	if !isFile(path) {
		return "", nil
	}
	data, err := localfile.Read(path, maxConfBytes)
	return string(data), err
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// readFile adds the settings in a file, and in the files that it includes, to r.found.
func (r *confReader) readFile(path string) error {
	if r.seen[path] || len(r.seen) == maxConfFiles {
		return nil
	}
	r.seen[path] = true
	text, err := readConf(path)
	if err != nil {
		return err
	}
	found, includes := scanConf(path, text, cacheVariables)
	r.found = append(r.found, found...)
	for _, name := range includes {
		if at := r.findIncluded(r.expandTopdir(name), filepath.Dir(path)); at != "" {
			if err := r.readFile(at); err != nil {
				return err
			}
		}
	}
	return nil
}

// findIncluded returns the path of an included file, "" if there is none.
func (r *confReader) findIncluded(name, beside string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	for _, dir := range slices.Concat([]string{r.top, beside}, r.path) {
		if path := filepath.Join(dir, name); isFile(path) {
			return path
		}
	}
	return ""
}

var (
	assignLine  = plaintext.Regexp(`^(?:export\s+)?([A-Z][A-Z0-9_]*)([:_][a-z0-9:_${}-]+)?\s*(\?\?=|\?=|:=|\+=|=\+|\.=|=\.|=)\s*["'](.*)["']\s*$`)
	includeLine = plaintext.Regexp(`^(?:include|require)\s+(\S+)\s*$`)
)

// scanConf returns the lines of a file that set one of the named variables, and the names of the
// files that it includes.
func scanConf(path, text string, names []string) (found []ownSetting, includes []string) {
	number, joined, begun := 0, "", 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if joined == "" {
			begun = number
		}
		if head, more := strings.CutSuffix(line, `\`); more {
			joined += head
			continue
		}
		joined += line
		if m := includeLine().FindStringSubmatch(joined); m != nil {
			includes = append(includes, m[1])
		}
		if m := assignLine().FindStringSubmatch(joined); m != nil && slices.Contains(names, m[1]) && !isOverruled(m[1], m[3]) {
			whole := m[2] == "" && slices.Contains([]string{"=", "?=", "??=", ":="}, m[3])
			found = append(found, ownSetting{name: m[1], value: m[4], whole: whole, at: fmt.Sprintf("%s:%d", path, begun)})
		}
		joined = ""
	}
	return found, includes
}

// isOverruled reports whether a line is a default value for a variable that bitbake's
// environment always sets.
func isOverruled(name, operator string) bool {
	return (name == "SSTATE_DIR" || name == "DL_DIR") && (operator == "?=" || operator == "??=")
}

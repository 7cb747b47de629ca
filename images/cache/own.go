package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ownSetting is one line of the user's own configuration that sets a variable of ours.
type ownSetting struct {
	name  string
	value string
	whole bool   // the line gives all of the value, and always: no override, no append
	at    string // file:line
}

// ours are the variables of all parts of a cache.
var ours = []string{
	"SSTATE_MIRRORS", "BB_SIGNATURE_HANDLER", "BB_HASHSERVE", "BB_HASHSERVE_UPSTREAM", "PRSERV_HOST",
	"PREMIRRORS", "SOURCE_MIRROR_URL", "BB_GENERATE_MIRROR_TARBALLS", "SSTATE_DIR", "DL_DIR", noNetwork,
}

const noNetwork = "BB_NO_NETWORK"

// ownSettings looks for our variables in a build's conf folder and among what bitbake
// takes from the environment. It reads lines as bitbake does, as far as their left side
// goes; files that they include it follows within the folder.
func ownSettings(conf string, env map[string]string) ([]ownSetting, error) {
	var found []ownSetting
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if slices.Contains(ours, name) {
			found = append(found, ownSetting{name: name, value: env[name], whole: true, at: "environment"})
		}
	}
	r := confReader{root: filepath.Dir(conf), seen: map[string]bool{}}
	for _, name := range []string{"site.conf", "auto.conf", "local.conf"} {
		if err := r.read(filepath.Join(conf, name)); err != nil {
			return nil, err
		}
	}
	return append(found, r.found...), nil
}

// confReader reads bitbake's configuration files below one folder.
type confReader struct {
	root  string
	seen  map[string]bool
	found []ownSetting
}

const maxConfFiles = 64

func (r *confReader) read(path string) error {
	if r.seen[path] || len(r.seen) == maxConfFiles {
		return nil
	}
	r.seen[path] = true
	data, err := readLimited(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // bitbake looks for each of them in many places
	}
	if err != nil {
		return err
	}
	found, includes := scanConf(path, string(data))
	r.found = append(r.found, found...)
	for _, name := range includes {
		for _, dir := range []string{r.root, filepath.Dir(path)} {
			if filepath.IsLocal(name) {
				if err := r.read(filepath.Join(dir, name)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var (
	assigning = regexp.MustCompile(`^(?:export\s+)?([A-Z][A-Z0-9_]*)([:_][a-z0-9:_${}-]+)?\s*(\?\?=|\?=|:=|\+=|=\+|\.=|=\.|=)\s*["'](.*)["']\s*$`)
	including = regexp.MustCompile(`^(?:include|require)\s+([A-Za-z0-9_./-]+)\s*$`)
)

// scanConf returns the lines that set one of our variables, and what is included.
func scanConf(path, text string) (found []ownSetting, includes []string) {
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
		if m := including.FindStringSubmatch(joined); m != nil {
			includes = append(includes, m[1])
		}
		if m := assigning.FindStringSubmatch(joined); m != nil && slices.Contains(ours, m[1]) {
			whole := m[2] == "" && slices.Contains([]string{"=", "?=", "??=", ":="}, m[3])
			found = append(found, ownSetting{name: m[1], value: m[4], whole: whole, at: fmt.Sprintf("%s:%d", path, begun)})
		}
		joined = ""
	}
	return found, includes
}

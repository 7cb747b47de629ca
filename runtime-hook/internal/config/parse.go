package config

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"slipway/runtime-hook/internal/cdi"
	"slipway/runtime-hook/internal/plan"
)

// parseTOML decodes and checks the settings. With any fault it returns no settings.
func parseTOML(data []byte) (Config, Faults) {
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	c := Defaults()
	faults, whole := decodeFaults(decode(data, &c))
	if whole {
		faults = append(faults, c.check(data)...)
	}
	if len(faults) > 0 {
		return Config{}, faults
	}
	return c, nil
}

// decode decodes the settings over the defaults in c. Unknown keys are errors. It turns a panic
// into an error, because the decoder panics if a date is where another type belongs.
func decode(data []byte, c *Config) (err error) {
	defer func() {
		if why := recover(); why != nil {
			err = fmt.Errorf("toml: a value of another type than its key takes: %v", why)
		}
	}()
	return toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(c)
}

// decodeFaults turns the decoder's error, if any, into faults. whole: it decoded all known keys.
func decodeFaults(err error) (faults Faults, whole bool) {
	if err == nil {
		return nil, true
	}
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		for _, e := range unknown.Errors {
			line, _ := e.Position()
			faults = append(faults, Fault{Line: line, Why: fmt.Sprintf("unknown key %.80q; remove it", strings.Join(e.Key(), "."))})
		}
		return faults, true
	}
	line := 0
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ = at.Position()
	}
	return Faults{{Line: line, Why: err.Error()}}, false
}

// check returns a Fault for each setting with an invalid value.
func (c Config) check(data []byte) (faults Faults) {
	for _, v := range []struct {
		table, key string
		err        error
	}{
		{"", "csv-dir", checkPath(c.CSVDir)},
		{"", "ignore", checkPatterns(c.Ignore)},
		{"", "compat-dir", checkPath(c.CompatDir, "", Auto)},
		{"log.", "file", checkPath(c.Log.File, "")},
		{"runtime.", "runtimes", checkPrograms(c.Runtime.Runtimes)},
		{"cdi.", "version", checkWord(c.CDI.Version, "", cdi.Oldest, cdi.Groups)},
	} {
		if v.err != nil {
			faults = append(faults, Fault{Line: lineOf(data, v.key), Why: fmt.Sprintf("%s%s: %v", v.table, v.key, v.err)})
		}
	}
	return faults
}

// lineOf returns the line that sets a key, or 0. No two tables have the same key.
func lineOf(data []byte, key string) int {
	at := regexp.MustCompile(`(?m)^[^#=\n]*\b` + key + `["']?[ \t]*=`).FindIndex(data)
	if at == nil {
		return 0
	}
	return bytes.Count(data[:at[0]], []byte("\n")) + 1
}

// checkPath accepts a clean absolute path, or one of the words.
func checkPath(s string, words ...string) error {
	if slices.Contains(words, s) {
		return nil
	}
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || strings.ContainsRune(s, 0) {
		return fmt.Errorf("%.80q is not an absolute path without \"..\" and the like", s)
	}
	return nil
}

// checkWord accepts only the words.
func checkWord(s string, words ...string) error {
	if slices.Contains(words, s) {
		return nil
	}
	return fmt.Errorf("unknown %.80q (have %s)", s, strings.TrimPrefix(strings.Join(words, ", "), ", "))
}

// maxPatterns limits the patterns that each path of the lists is compared with.
const maxPatterns = 256

// checkPatterns accepts up to maxPatterns valid patterns; see plan.GoodPattern.
func checkPatterns(list []string) error {
	if len(list) > maxPatterns {
		return fmt.Errorf("has more than %d patterns", maxPatterns)
	}
	for _, p := range list {
		if !plan.GoodPattern(p) {
			return fmt.Errorf("%.80q is neither a pattern of an absolute path nor **/ and one of a name", p)
		}
	}
	return nil
}

// checkPrograms accepts one or more names and absolute paths: a relative one depends on the engine.
func checkPrograms(list []string) error {
	for _, s := range list {
		if s == "" || strings.ContainsRune(s, 0) || strings.Contains(s, "/") && !filepath.IsAbs(s) {
			return fmt.Errorf("%.80q is neither a program's name nor an absolute path", s)
		}
	}
	if len(list) == 0 {
		return errors.New("is empty; leave it out for runc and crun")
	}
	return nil
}

package plan

import (
	"path"
	"strings"

	"slipway/runtime-hook/internal/csv"
)

// anywhere begins a pattern of names in whatever folder, as NVIDIA's tool has it.
const anywhere = "**/"

// GoodPattern reports whether p can be one of Options.Ignore.
func GoodPattern(p string) bool {
	name, isName := strings.CutPrefix(p, anywhere)
	_, err := path.Match(name, "")
	return err == nil && name != "" && isName != strings.Contains(name, "/") && (isName || path.IsAbs(name))
}

// ignored is the pattern by which the board's settings leave out p.
func (c *compiler) ignored(p string) (pattern string, ok bool) {
	for _, pattern := range c.options.Ignore {
		at := p
		name, isName := strings.CutPrefix(pattern, anywhere)
		if isName {
			at = path.Base(p)
		}
		if ok, _ := path.Match(name, at); ok {
			return pattern, true
		}
	}
	return "", false
}

// ignores is that of p, which e asks for, with a note.
func (c *compiler) ignores(e csv.Entry, p string) bool {
	pattern, ok := c.ignored(p)
	if ok {
		c.problem(e, csv.Odd, false, "%s is left out: ignore has %q", p, pattern)
	}
	return ok
}

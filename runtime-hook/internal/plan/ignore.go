package plan

import (
	"path"
	"strings"

	"slipway/runtime-hook/internal/csv"
)

// anyFolder is the beginning of patterns for file names in any folder, as in NVIDIA's tool.
const anyFolder = "**/"

// GoodPattern reports whether p can be a pattern of ignore: an absolute path, or "**/" and a name
// without a slash, each in the syntax of path.Match.
func GoodPattern(p string) bool {
	name, isName := strings.CutPrefix(p, anyFolder)
	_, err := path.Match(name, "")
	return err == nil && name != "" && isName != strings.Contains(name, "/") && (isName || path.IsAbs(name))
}

// skipIgnored reports whether the settings ignore e's path p. If so, it adds one problem.
func (c *compiler) skipIgnored(e csv.Entry, p string) bool {
	for _, pattern := range c.ignore {
		at := p
		name, isName := strings.CutPrefix(pattern, anyFolder)
		if isName {
			at = path.Base(p)
		}
		if ok, _ := path.Match(name, at); ok {
			c.addProblem(e, csv.Odd, false, "%s is left out: ignore has %q", p, pattern)
			return true
		}
	}
	return false
}

// Package lazy compiles a regular expression when it is first used: all of them
// together cost more than the rest of a program's start.
package lazy

import (
	"regexp"
	"sync"
)

// Regexp is regexp.MustCompile, put off.
func Regexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

package plaintext

import (
	"regexp"
	"sync"
)

// Regexp compiles a regular expression when it is first used: all of them together cost more
// than the rest of a program's start.
func Regexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

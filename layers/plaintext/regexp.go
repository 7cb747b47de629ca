package plaintext

import (
	"regexp"
	"sync"
)

// Regexp returns a function that compiles the pattern at its first call. Compiling all patterns at
// the start would take longer than the rest of the start.
func Regexp(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

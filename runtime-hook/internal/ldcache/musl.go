package ldcache

import (
	"slices"
	"strings"
)

// muslDefault is the search path of musl without a path file.
const muslDefault = "/lib:/usr/local/lib:/usr/lib"

// muslPath adds folders to the content of a path file. ok is false if there is nothing
// to add. The image's own come first, as a library of the board is rarely one for musl.
func muslPath(old string, folders []string) (path string, ok bool) {
	if old == "" {
		old = muslDefault
	}
	have := strings.FieldsFunc(old, func(r rune) bool { return r == ':' || r == '\n' })
	path = strings.TrimRight(old, "\n:") + "\n"
	for _, f := range folders {
		if !slices.Contains(have, f) && !strings.Contains(f, ":") {
			path, ok = path+f+"\n", true
		}
	}
	return path, ok
}

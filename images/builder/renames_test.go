package builder

import (
	"strings"
	"testing"

	"slipway/layers"
)

// A repository that gets its first pin is not a new one.
func TestWriteMove(t *testing.T) {
	for want, m := range map[string]layers.Move{
		"a  new, at 1234\n":                           {ID: "a", To: "1234"},
		"a  pinned at 1234, was main of its server\n": {ID: "a", To: "1234", Was: "main"},
	} {
		var b strings.Builder
		if writeMove(&b, m); b.String() != want {
			t.Errorf("writeMove(%+v) = %q; want %q", m, b.String(), want)
		}
	}
}

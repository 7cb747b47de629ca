// Package statetest keeps tests out of the user's state folder.
package statetest

import (
	"os"
	"testing"
)

// Main runs the tests of a package with a temporary state folder (XDG_STATE_HOME), then exits.
func Main(m *testing.M) {
	dir, err := os.MkdirTemp("", "slipway-state-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

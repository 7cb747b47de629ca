package reach

import (
	"os"
	"testing"
)

// Flashes record keys and receipts in the user's state folder. These have one of their own.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "slipway-state-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

package flash

import (
	"os"
	"testing"

	"slipway/images"
)

func receiptOf(t testing.TB, a images.Artifact) string {
	t.Helper()
	return images.ReceiptPath(stateOf(t, a))
}

func stateOf(t testing.TB, a images.Artifact) string {
	t.Helper()
	dir, err := a.StateDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

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

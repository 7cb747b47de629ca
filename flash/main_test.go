package flash

import (
	"testing"

	"slipway/images"
	"slipway/images/statetest"
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
func TestMain(m *testing.M) { statetest.Main(m) }

package flash

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"

	"slipway/images"
	"slipway/images/statetest"
)

func receiptOf(t testing.TB, a images.Artifact) string {
	t.Helper()
	return images.ReceiptPath(stateOf(t, a))
}

// keptReceipts returns the receipts in the state folder.
func keptReceipts(t testing.TB, a images.Artifact) (all []Receipt) {
	t.Helper()
	data, err := os.ReadFile(receiptOf(t, a))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err = errors.Join(err, json.Unmarshal(data, &all)); err != nil {
		t.Fatal(err)
	}
	return all
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

package ci

import (
	"testing"

	"slipway/images/statetest"
)

// Flashes record keys and receipts in the user's state folder. These have one of their own.
func TestMain(m *testing.M) { statetest.Main(m) }

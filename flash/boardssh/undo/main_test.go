package undo

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	os.Unsetenv("SSH_AUTH_SOCK") // tests do not use the user's keys
	os.Exit(m.Run())
}

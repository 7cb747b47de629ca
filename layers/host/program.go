package host

import (
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/plaintext"
)

// ProgramName returns what the user types to start a command of Slipway.
func ProgramName() string {
	if UnderMage() {
		return "go tool mage"
	}
	return plaintext.Quote(os.Args[0]) // as it was typed, so that it can be typed again
}

// IsCommand reports whether a word is a command of this program, which sets it.
var IsCommand = func(string) bool { return false }

// TypedStep returns a next step as the user types it. Packages say "build virt", and do not
// know by what name the user started this program.
func TypedStep(step string) string {
	word, _, _ := strings.Cut(strings.ReplaceAll(step, ",", " "), " ")
	if !IsCommand(word) {
		return step
	}
	return ProgramName() + " " + step
}

// ProgramElsewhere returns what the user types in another folder. Mage runs in a clone alone.
func ProgramElsewhere() string {
	if UnderMage() {
		return "slipway"
	}
	if program, err := filepath.Abs(os.Args[0]); err == nil && filepath.Base(os.Args[0]) != os.Args[0] {
		return plaintext.Quote(program)
	}
	return ProgramName()
}

// UnderMage reports whether "go tool mage" runs this binary from its cache.
func UnderMage() bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	cache := os.Getenv("MAGEFILE_CACHE")
	if cache == "" {
		home, _ := os.UserHomeDir()
		cache = filepath.Join(home, ".magefile")
	}
	return filepath.Dir(self) == cache
}

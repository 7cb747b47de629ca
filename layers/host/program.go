package host

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"slipway/layers/plaintext"
)

// ProgramName returns the words by which the user started Slipway, for commands in messages.
func ProgramName() string {
	if UnderMage() {
		return "go tool mage"
	}
	return plaintext.Quote(os.Args[0]) // as it was typed, so that it can be typed again
}

// IsCommand reports whether a word is a command of this program. Package commands sets it.
var IsCommand = func(string) bool { return false }

// TypedStep returns a step as it is typed: "build virt" gets the program's name, and "repeat the
// line" becomes the user's line, also after a variable or command. Other programs' commands stay.
func TypedStep(step string) string {
	if i := strings.Index(step, "repeat the line"); i > 0 && !strings.Contains(step[:i], "  # ") {
		return step[:i] + repeatLine(step[i:])
	}
	word, _, _ := strings.Cut(step, " ")
	if !IsCommand(word) {
		return repeatLine(step)
	}
	return ProgramName() + " " + step
}

// TypedSteps returns an error's text with the next steps at its end as the user has to type them.
func TypedSteps(text string) string {
	i := strings.LastIndex(text, "\nnext: ")
	if i < 0 {
		return text
	}
	before, step := text[:i], text[i+len("\nnext: "):]
	if strings.HasPrefix(before[strings.LastIndexByte(before, '\n')+1:], "next: ") {
		before = TypedSteps(before)
	}
	return before + "\nnext: " + TypedStep(step)
}

// typedLine is the line that the user typed, without the program's name.
var typedLine atomic.Pointer[[]string]

// SetTyped stores the command line that the user typed, for TypedStep.
func SetTyped(line []string) { typedLine.Store(&line) }

// repeatLine changes the user's command line as a step says that begins with "repeat the line", and
// returns it without secrets. The step may continue "with --FLAG=VALUE", "with NEW for OLD",
// "without --FLAG" or "as root". Another step stays as it is.
func repeatLine(step string) string {
	line, typed := []string(nil), typedLine.Load()
	change, found := strings.CutPrefix(step, "repeat the line")
	if !found || typed == nil || len(*typed) == 0 {
		return step
	}
	change, why, explained := strings.Cut(change, "  # ")
	verb, what, _ := strings.Cut(strings.TrimSpace(change), " ")
	now, old, swaps := strings.Cut(what, " for ")
	flag, _, _ := strings.Cut(what, "=")
	for _, arg := range *typed {
		if name, _, _ := strings.Cut(arg, "="); swaps || verb == "" || verb == "as" || name != flag {
			line = append(line, swapWord(arg, now, old))
		}
	}
	if verb == "with" && !swaps {
		end := slices.Index(line, "--")
		if end < 0 {
			end = len(line)
		}
		line = slices.Insert(line, end, what)
	}
	step = ProgramName() + " " + strings.Join(line, " ")
	if verb == "as" {
		step = rootWords() + step
	}
	step = plaintext.HideSecrets(step)
	if explained {
		step += "  # " + why
	}
	return step
}

// rootSettings are the variables that flash reads. None holds a secret: Slipway shows their values.
var rootSettings = []string{"SLIPWAY_BOARDS", InstallVariable, "SLIPWAY_LOCAL", "SLIPWAY_POLICY", "SLIPWAY_PROGRESS", "SLIPWAY_SIGNERS", "SLIPWAY_SILENCE"}

// rootWords returns "sudo NAME=VALUE ... ", which keeps the user's state folder and settings.
func rootWords() string {
	words := "sudo XDG_STATE_HOME=$HOME/.local/state "
	if home := os.Getenv("XDG_STATE_HOME"); home != "" {
		words = "sudo XDG_STATE_HOME=" + plaintext.Quote(home) + " "
	}
	for _, name := range rootSettings {
		if value := os.Getenv(name); value != "" {
			words += name + "=" + plaintext.Quote(value) + " "
		}
	}
	return words
}

// swapWord returns an argument quoted for a shell. If it is old, or has old as a flag's value or in
// a list with commas, it has now in that place. old and now are quoted already.
func swapWord(arg, now, old string) string {
	before := ""
	if plaintext.Quote(arg) == old {
		return now
	}
	if name, value, valued := strings.Cut(arg, "="); valued && strings.HasPrefix(arg, "-") {
		before, arg = name+"=", value
	}
	names := strings.Split(arg, ",")
	for i, name := range names {
		if names[i] = plaintext.Quote(name); names[i] == old {
			names[i] = now
		}
	}
	return before + strings.Join(names, ",")
}

// ProgramElsewhere returns the words that start Slipway in any folder: absolute, or found in PATH.
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

//go:build mage

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"slipway/layers/progress"
)

func init() {
	if testing.Testing() {
		return
	}
	line, err := []string(nil), checkEnvironment()
	if err == nil {
		line, err = parseArgs(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(2)
	}
	os.Args = append(os.Args[:1], line...)
	describeSource()
}

// parseArgs checks the command line against these files' commands and returns the line
// for Mage.
func parseArgs(args []string) ([]string, error) {
	known, err := readCommands()
	if err != nil {
		return nil, err
	}
	return parseLine(args, known)
}

// checkEnvironment refuses or clears variables that Mage obeys silently.
func checkEnvironment() error {
	if os.Getenv("MAGEFILE_TIMEOUT") != "" {
		return usageError{"MAGEFILE_TIMEOUT (-t of mage): it ends a command half-way and does not wait for it", []string{"-l"}}
	}
	if err := progress.Check(); err != nil {
		return err
	}
	return errors.Join(os.Unsetenv("MAGEFILE_LIST"), os.Unsetenv("MAGEFILE_HELP"))
}

// encodeArgs and decodeArgs pass the words after "--" through Mage, which would read them as
// more commands.
func encodeArgs(args []string) string {
	text, _ := json.Marshal(args) // strings never fail
	return string(text)
}

func decodeArgs(text string) (args []string) {
	if json.Unmarshal([]byte(text), &args) != nil && text != "" {
		return []string{text} // the user gave a single word as -argv
	}
	return args
}

// splitWords splits a list at commas and blanks.
func splitWords(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// splitList splits a list at commas only, because paths may contain blanks.
func splitList(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

// parseMode reads a file mode in octal, as chmod does.
func parseMode(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return 0, fmt.Errorf("mode %q: want one in octal, from 0 to 0777", text)
	}
	return os.FileMode(bits), nil
}

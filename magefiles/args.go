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

func parseArgs(args []string) ([]string, error) {
	known, err := readCommands()
	if err != nil {
		return nil, err
	}
	return parseLine(args, known)
}

// checkEnvironment refuses what Mage does silently for variables of its own.
func checkEnvironment() error {
	if os.Getenv("MAGEFILE_TIMEOUT") != "" {
		return usageError{"MAGEFILE_TIMEOUT (-t of mage): it ends a command half-way and does not wait for it", []string{"-l"}}
	}
	if err := progress.Check(); err != nil {
		return err
	}
	return errors.Join(os.Unsetenv("MAGEFILE_LIST"), os.Unsetenv("MAGEFILE_HELP"))
}

// encodeArgs and rest carry what follows "--" through Mage, which would take it for
// more commands.
func encodeArgs(args []string) string {
	text, _ := json.Marshal(args) // strings always can be
	return string(text)
}

func decodeArgs(text string) (args []string) {
	if json.Unmarshal([]byte(text), &args) != nil && text != "" {
		return []string{text} // a person gave a single word as -argv
	}
	return args
}

// splitWords are what stands between the commas of a list.
func splitWords(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// splitList is what stands between the commas; paths may have blanks.
func splitList(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

// parseMode is a file's mode as chmod takes it.
func parseMode(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return 0, fmt.Errorf("mode %q: want one in octal, from 0 to 0777", text)
	}
	return os.FileMode(bits), nil
}

package commands

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/layers/plaintext"
)

// typedKey holds in a context the line that the user typed.
type typedKey struct{}

func typedLine(cmd *cobra.Command) []string {
	if cmd.Context() == nil { // a command that was not run
		return nil
	}
	line, _ := cmd.Context().Value(typedKey{}).([]string)
	return line
}

// lookStep looks at what an error is about: the last thing that the line names and the error too.
func lookStep(cmd *cobra.Command, err error) string {
	text := err.Error()
	if errors.Is(err, unix.ENOSPC) {
		return "df -h ."
	}
	if step := placeStep(text); step != "" {
		return step
	}
	for _, arg := range slices.Backward(typedLine(cmd)) {
		if _, value, valued := strings.Cut(arg, "="); valued {
			arg = value
		}
		for name := range strings.SplitSeq(arg, ",") {
			if step := lookAt(name, text); name != "" && strings.Contains(text, name) && step != "" {
				return step
			}
		}
	}
	return strings.Join(helpLine(pathOf(cmd)), " ")
}

// filePlace is a line of a file in an error.
var filePlace = plaintext.Regexp(`(?:^|\s)([^\s:]+):(\d+):`)

// placeStep prints the line of a file that an error names; "" if it names none.
func placeStep(text string) string {
	if at := filePlace().FindStringSubmatch(text); at != nil && isFile(at[1]) {
		return "sed -n " + at[2] + "p " + plaintext.Quote(at[1])
	}
	return ""
}

// lookAt returns the line that looks at what an error says of something; "" for unknown things.
func lookAt(name, text string) string {
	quoted := plaintext.Quote(name)
	switch _, err := images.LoadBuilt(name); {
	case strings.HasPrefix(name, "https://"), strings.HasPrefix(name, "http://"):
		return "curl -I " + quoted
	case isFile(name):
		return "ls -ld " + quoted
	case strings.Contains(name, "@") && !strings.Contains(name, "/"):
		return "ssh -v " + plaintext.Quote("ssh://"+name) + " true"
	case err == nil:
		return "doctor " + quoted
	}
	return ""
}

func isFile(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

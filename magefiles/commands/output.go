package commands

import (
	"os"

	"slipway/layers/terminal"
)

// Commands print by these alone: text from outside reaches a terminal, and a log of CI,
// without control characters and secrets. What another program or a console writes goes
// through as it is: deploy run, virt console, completions.
var (
	stdout = &terminal.Printer{To: os.Stdout}
	stderr = &terminal.Printer{To: os.Stderr}
)

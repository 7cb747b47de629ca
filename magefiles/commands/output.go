package commands

import (
	"os"

	"slipway/layers/terminal"
)

// Commands print only by these: text from outside reaches a terminal, and a log of CI,
// without control characters and secrets. The output of another program or a console goes
// through as it is: deploy run, virt console, completions.
var (
	stdout = &terminal.Printer{To: os.Stdout}
	stderr = &terminal.Printer{To: os.Stderr}
)

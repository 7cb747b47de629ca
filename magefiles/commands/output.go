package commands

import (
	"os"

	"slipway/layers/plaintext"
)

// Commands print only by these: text from outside reaches a terminal, and a log of CI,
// without control characters and secrets. The output of another program or a console goes
// through as it is: deploy run, virt console, completions.
var (
	stdout = &plaintext.Printer{To: os.Stdout}
	stderr = &plaintext.Printer{To: os.Stderr}
)

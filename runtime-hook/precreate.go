package main

import (
	"flag"
	"fmt"
	"io"

	"slipway/runtime-hook/internal/oci"
)

const precreateUsage = `slipway-hook precreate

Runs as a precreate hook of podman: reads a container's spec from standard input
and prints it, with the board's devices and this hook where it asks for them.

  {"version": "1.0.0", "when": {"always": true}, "stages": ["precreate"],
   "hook": {"path": "/usr/bin/slipway-hook", "args": ["slipway-hook", "precreate"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}}
`

func precreateCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if done, err := parse(flag.NewFlagSet("precreate", flag.ContinueOnError), precreateUsage, args, stdout, stderr); done {
		return err
	}
	const name = "spec on standard input"
	data, err := oci.ReadSpec(stdin)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	data, _, err = edit(name, data, "/")
	if err != nil {
		return err
	}
	_, err = stdout.Write(data)
	return err
}

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
	data, err := oci.ReadSpec(stdin)
	if err == nil {
		data, err = filter(data)
	}
	if err != nil {
		return fmt.Errorf("spec on standard input: %w", err)
	}
	_, err = stdout.Write(data)
	return err
}

// filter adds to a container's spec what it asks for. Where that cannot be given, it
// adds the hook, which will say why: what a filter says podman does not show.
func filter(data []byte) ([]byte, error) {
	config, err := oci.ParseConfig(data, "/")
	if err != nil {
		return nil, err
	}
	add, asks, err := additions(config)
	if err == nil && !asks {
		return data, nil
	}
	if err != nil {
		hook, err := missingHook(config)
		if err != nil {
			return nil, err
		}
		add = oci.Additions{Hook: hook}
	}
	return oci.Edit(data, add)
}

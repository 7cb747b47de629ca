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
	if done, err := parseFlags(flag.NewFlagSet("precreate", flag.ContinueOnError), precreateUsage, args, stdout, stderr); done {
		return err
	}
	data, err := oci.ReadSpec(stdin)
	if err == nil {
		data, err = filterSpec(data)
	}
	if err != nil {
		return fmt.Errorf("spec on standard input: %w", err)
	}
	_, err = stdout.Write(data)
	return err
}

// filterSpec adds to a container's spec what it requests. If that is not possible, it
// adds the hook, which will say why: podman does not show a filter's messages.
func filterSpec(data []byte) ([]byte, error) {
	config, err := oci.ParseConfig(data, "/")
	if err != nil {
		return nil, err
	}
	add, asks, err := findAdditions(config)
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

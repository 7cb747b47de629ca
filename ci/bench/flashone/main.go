// Flashone flashes one artifact to devices, as the command flash does, and nothing else:
// a process of its own has the memory and the processor time of one flash.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"slipway/flash"
	"slipway/images"
)

func main() {
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: flashone FOLDER DEVICE...")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "flashone:", err)
		os.Exit(1)
	}
}

func run(folder string, devices []string) error {
	artifact, err := images.OpenArtifact(folder)
	if err != nil {
		return err
	}
	spec := images.Spec{Board: artifact.Board, Flash: images.Flash{Kinds: []string{flash.File, flash.Block}}}
	_, err = flash.WriteAll(context.Background(), spec, artifact, devices, flash.Options{Yes: devices})
	return err
}

package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"slipway/runtime-hook/internal/cdi"
	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/oci"
)

const cdiUsage = `slipway-hook cdi [--output FILE] [--root DIR]

Writes what the board gives as a CDI spec, for docker 25, podman 4.1, containerd 2
and cri-o, and all later ones. Containers then ask for nvidia.com/gpu=all, for a
GPU by number or by UUID:

  podman run --device nvidia.com/gpu=all …

It must be written again where the lists or the devices change; a systemd unit of
the recipe's does that.

  --output FILE  where to; - prints it (default /var/run/cdi/slipway.json, and with
                 --root DIR, DIR/etc/cdi/slipway.json)
  --root DIR     of the board whose image is built at DIR
`

// installedPath is the path of this program on boards.
const installedPath = "/usr/bin/" + oci.Program

// cdiCommand runs "slipway-hook cdi": it writes the board's CDI spec to a file or stdout, and warns
// about GPUs that the spec leaves out.
func cdiCommand(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("cdi", flag.ContinueOnError)
	output := flags.String("output", "", "")
	root := flags.String("root", "/", "")
	if done, err := parseFlags(flags, cdiUsage, args, stdout, stderr); done {
		return err
	}
	b, err := cdiBoard(*root)
	if err != nil {
		return err
	}
	for _, g := range b.GPUs {
		if g.Lacks != "" {
			fmt.Fprintf(stderr, "slipway-hook: no CDI device is made for %v\n", printable(g.NotListed().Error()))
		}
	}
	text, err := cdi.New(b).JSON()
	if err != nil {
		return err
	}
	switch {
	case *output == "-":
		_, err = stdout.Write(text)
		return err
	case *output == "" && *root == "/":
		*output = "/var/run/cdi/slipway.json"
	case *output == "":
		*output = filepath.Join(*root, "/etc/cdi/slipway.json")
	}
	return cdi.Write(*output, text)
}

// cdiBoard reads the board at root for a CDI spec. Bad settings, no lists or no plan are an error.
func cdiBoard(root string) (cdi.Board, error) {
	if _, err := config.Read(root); err != nil {
		return cdi.Board{}, err
	}
	r, err := checkBoard(root)
	if err != nil {
		return cdi.Board{}, err
	}
	if len(r.Plan.Mounts)+len(r.Plan.Links)+len(r.Plan.Devices) == 0 {
		return cdi.Board{}, fmt.Errorf("%s: the lists there give nothing; \"slipway-hook check\" says why", filepath.Join(r.Root, r.Settings.CSVDir))
	}
	h, err := ownHook()
	if err != nil {
		return cdi.Board{}, err
	}
	if r.Root != "/" {
		h.Path = installedPath
	}
	return cdi.Board{Root: r.Root, Devices: r.Plan.Devices, GPUs: r.GPUs, Hook: *h, Version: r.Settings.CDI.Version}, nil
}

package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"slipway/runtime-hook/internal/cdi"
	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/oci"
	"slipway/runtime-hook/internal/plan"
)

const cdiUsage = `slipway-hook cdi [--output FILE] [--mounts] [--root DIR]

Writes what the board gives as a CDI spec, for docker 25, podman 4.1, containerd 2
and cri-o, and all later ones. Containers then ask for nvidia.com/gpu=all, for a
GPU by number or by UUID:

  podman run --device nvidia.com/gpu=all …

It must be written again where the lists or the devices change; a systemd unit of
the recipe's does that.

  --output FILE  where to; - prints it (default /var/run/cdi/slipway.json, and with
                 --root DIR, DIR/etc/cdi/slipway.json)
  --mounts       list all files as mounts, for engines that run no hooks; links to
                 folders are left out, and no ld.so is told of the libraries
  --root DIR     of the board whose image is built at DIR
`

// installedPath is the path of this program on boards.
const installedPath = "/usr/bin/" + oci.Program

// cdiCommand runs "slipway-hook cdi": it writes or prints the CDI spec of a board. It warns about
// GPUs and files that it leaves out, and about other specs with the same devices.
func cdiCommand(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("cdi", flag.ContinueOnError)
	output := flags.String("output", "", "")
	mounts := flags.Bool("mounts", false, "")
	root := flags.String("root", "/", "")
	if done, err := parseFlags(flags, cdiUsage, args, stdout, stderr); done {
		return err
	}
	b, err := cdiBoard(*root, *mounts)
	if err != nil {
		return err
	}
	for _, g := range b.GPUs {
		if g.Lacks != "" {
			fmt.Fprintf(stderr, "slipway-hook: no CDI device is made for %v\n", printable(g.NotListed().Error()))
		}
	}
	for _, p := range b.DropNonUTF8() {
		fmt.Fprintf(stderr, "slipway-hook: %q is left out: its name is not UTF-8, and a CDI spec is\n", p)
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
	for _, rival := range cdi.Rivals(*output) {
		fmt.Fprintf(stderr, "slipway-hook: beside %s, which has devices of the same names, engines know neither's: remove that file, and disable what writes it (nvidia-cdi-refresh.path and .service)\n", printable(rival))
	}
	return cdi.Write(*output, text)
}

// cdiBoard reads the board at root for a CDI spec. Without mounts, the spec calls the hook.
func cdiBoard(root string, mounts bool) (cdi.Board, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return cdi.Board{}, err
	}
	set, err := config.Read(root)
	if err != nil {
		return cdi.Board{}, err
	}
	p, err := boardPlan(root, set)
	if err != nil {
		return cdi.Board{}, err
	}
	b := cdi.Board{Root: root, Plan: p, GPUs: choose.GPUs(root, p), Version: set.CDI.Version}
	if !mounts {
		h, err := ownHook()
		if err != nil {
			return cdi.Board{}, err
		}
		if root != "/" {
			h.Path = installedPath
		}
		b.Hook, b.Env = append([]string{h.Path}, h.Args[1:]...), h.Env
	}
	return b, nil
}

// boardPlan compiles the plan of everything that the board at root provides under its settings.
// Without CSV lists, or with an empty plan, it returns an error.
func boardPlan(root string, set config.Config) (plan.Plan, error) {
	dir := filepath.Join(root, set.CSVDir)
	files, entries, _, err := csv.ReadDir(dir)
	if err != nil {
		return plan.Plan{}, err
	}
	if len(files) == 0 {
		return plan.Plan{}, explainNoLists(root, set.CSVDir)
	}
	p, _ := plan.Compile(root, entries, planOptions(set))
	if !set.Devices {
		p.Devices = nil
	}
	if len(p.Mounts)+len(p.Links)+len(p.Devices) == 0 {
		return plan.Plan{}, fmt.Errorf("%s: the lists there give nothing; \"slipway-hook check\" says why", dir)
	}
	return p, nil
}

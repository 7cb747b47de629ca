package main

import (
	"errors"
	"flag"
	"io"
	"path/filepath"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/plan"
)

const checkUsage = `slipway-hook check [--root DIR] [--json]

Reads the board's CSV files and /etc/slipway/hook.toml as the hook does and prints
each line that is wrong (file:line, what, why) and the plan: what a container would
get, for which NVIDIA_DRIVER_CAPABILITIES and with which GPU; and what the board is,
for images that require something of it. Exits with 1 where an entry or a setting
could not be used.

A device that is not there is named and is no failure: the same lists serve
boards that have only some of them.

  --root DIR  check the file tree at DIR (an image being built) as if it were /
  --json      print one JSON object

  slipway-hook check
  slipway-hook check --root build/rootfs --json
`

// report is the result of "slipway-hook check".
type report struct {
	Root     string // absolute
	Settings config.Config
	Files    []string
	Problems []csv.Problem
	Unused   int // problems that kept an entry or a setting from being used
	Plan     plan.Plan
	Board    choose.Board
	GPUs     []choose.GPU
}

// checkCommand runs "slipway-hook check": it prints the report, and fails if an entry or a setting
// is unusable.
func checkCommand(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	root := flags.String("root", "/", "")
	asJSON := flags.Bool("json", false, "")
	if done, err := parseFlags(flags, checkUsage, args, stdout, stderr); done {
		return err
	}
	r, err := checkBoard(*root)
	if err != nil {
		return err
	}
	write := r.writeTable
	if *asJSON {
		write = r.writeJSON
	}
	if err := write(stdout); err != nil {
		return err
	}
	if r.Unused > 0 {
		return errFound
	}
	return nil
}

// checkBoard reports the plan and problems of the board at root. A board without lists is an error.
func checkBoard(root string) (report, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return report{}, err
	}
	set, problems := readSettings(root)
	files, entries, wrong, err := csv.ReadDir(filepath.Join(root, set.CSVDir))
	if err != nil {
		return report{}, err
	}
	if len(files) == 0 {
		return report{}, explainNoLists(root, set.CSVDir)
	}
	c := plan.Compile(root, entries, set.Ignore)
	if !set.Devices {
		c.Plan.Devices = nil
	}
	problems = append(append(problems, wrong...), c.Problems...)
	gpus := choose.GPUs(root, c.Plan)
	for _, g := range gpus {
		if g.Lacks != "" {
			problems = append(problems, csv.Problem{File: g.Address, Cause: csv.Missing, Unused: true, Why: g.NotListed().Error()})
		}
	}
	return report{
		Root: root, Settings: set, Files: files, Problems: problems, Unused: len(unusedProblems(problems)),
		Plan: c.Plan, Board: choose.ReadBoard(root), GPUs: gpus,
	}, nil
}

// readSettings reads the settings of the board at root; for faulty ones, the defaults and problems.
func readSettings(root string) (config.Config, []csv.Problem) {
	set, err := config.Read(root)
	var faults config.Faults
	errors.As(err, &faults)
	var problems []csv.Problem
	for _, f := range faults {
		problems = append(problems, csv.Problem{
			File: filepath.Base(f.File), Line: f.Line, Cause: csv.Bad, Unused: true,
			Why: f.Why + "; until then no container starts that asks for the board's files",
		})
	}
	return set, problems
}

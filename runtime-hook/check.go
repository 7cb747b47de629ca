package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/plan"
)

const checkUsage = `slipway-hook check [--root DIR] [--json]

Reads the board's CSV files as the hook does and prints each line that is wrong
(file:line, what, why) and the plan: what a container would get. Exits with 1
where an entry could not be used.

A device that is not there is named and is no failure: the same lists serve
boards that have only some of them.

  --root DIR  check the file tree at DIR (an image being built) as if it were /
  --json      print one JSON object

  slipway-hook check
  slipway-hook check --root build/rootfs --json
`

// report is what check prints as JSON.
type report struct {
	Files    []string      `json:"files"`
	Problems []csv.Problem `json:"problems"`
	Unused   int           `json:"unused"` // problems that kept an entry from being used
	Plan     plan.Plan     `json:"plan"`
}

func checkCommand(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	root := flags.String("root", "/", "")
	asJSON := flags.Bool("json", false, "")
	if done, err := parse(flags, checkUsage, args, stdout, stderr); done {
		return err
	}
	r, err := check(*root)
	if err != nil {
		return err
	}
	write := r.text
	if *asJSON {
		write = r.json
	}
	if err := write(stdout); err != nil {
		return err
	}
	if r.Unused > 0 {
		return errFound
	}
	return nil
}

func check(root string) (report, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return report{}, err
	}
	files, entries, problems, err := csv.ReadDir(filepath.Join(root, csv.Dir), csv.All)
	if err != nil {
		return report{}, err
	}
	if len(files) == 0 {
		return report{}, fmt.Errorf("%s: no *.csv there; install the board's, or name another --root", filepath.Join(root, csv.Dir))
	}
	p, more := plan.Compile(root, entries)
	problems = append(problems, more...)
	return report{files, problems, len(unused(problems)), p}, nil
}

func (r report) json(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

func (r report) text(w io.Writer) error {
	for _, p := range r.Problems {
		fmt.Fprintln(w, printable(p.String()))
	}
	if len(r.Problems) > 0 {
		fmt.Fprintln(w)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(table, printableRow(cells)) }
	row("KIND", "IN THE CONTAINER", "FROM THE BOARD", "LISTED AT")
	for _, m := range r.Plan.Mounts {
		row(mountKind(m), m.Path, m.Source, m.From)
	}
	for _, l := range r.Plan.Links {
		row("link", l.Path, "-> "+l.Target, l.From)
	}
	for _, d := range r.Plan.Devices {
		row("device", d.Path, fmt.Sprintf("%d:%d %04o", d.Major, d.Minor, d.Mode), d.From)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s read; %s, of which %d kept an entry from being used\n",
		count(len(r.Files), "CSV file"), count(len(r.Problems), "problem"), r.Unused)
	return err
}

func printableRow(cells []string) string {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	return strings.Join(cells, "\t")
}

func mountKind(m plan.Mount) string {
	if m.Folder {
		return "folder"
	}
	return "file"
}

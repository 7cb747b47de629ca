package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/plan"
)

// entryUse says which containers get an entry of the plan: by capability and GPU.
type entryUse struct {
	Capabilities string `json:"capabilities"`
	GPU          *int   `json:"gpu,omitempty"` // nil: the entry is not for one GPU only
}

// gpuText returns the number of the only GPU that the entry is for, or "-".
func (u entryUse) gpuText() string {
	if u.GPU == nil {
		return "-"
	}
	return fmt.Sprint(*u.GPU)
}

// usesByPath returns the use of each entry of the plan, by its path in the container.
func (r report) usesByPath() map[string]entryUse {
	uses := map[string]entryUse{}
	for p, class := range choose.Classes(r.Plan) {
		uses[p] = entryUse{Capabilities: class.String()}
	}
	for _, g := range r.GPUs {
		for _, node := range g.Nodes {
			if u, ok := uses[node]; ok {
				u.GPU = &g.Index
				uses[node] = u
			}
		}
	}
	return uses
}

// The JSON output of check: the plan's entries, each with its use.
type (
	usedMount struct {
		plan.Mount
		entryUse
	}
	usedLink struct {
		plan.Link
		entryUse
	}
	usedDevice struct {
		plan.Device
		entryUse
	}
	usedPlan struct {
		Mounts    []usedMount    `json:"mounts"`
		Links     []usedLink     `json:"links"`
		Devices   []usedDevice   `json:"devices"`
		Libraries []plan.Library `json:"libraries"`
	}
)

// writeJSON writes the report as one JSON object.
func (r report) writeJSON(w io.Writer) error {
	uses := r.usesByPath()
	p := usedPlan{[]usedMount{}, []usedLink{}, []usedDevice{}, append([]plan.Library{}, r.Plan.Libraries...)}
	for _, m := range r.Plan.Mounts {
		p.Mounts = append(p.Mounts, usedMount{m, uses[m.Path]})
	}
	for _, l := range r.Plan.Links {
		p.Links = append(p.Links, usedLink{l, uses[l.Path]})
	}
	for _, d := range r.Plan.Devices {
		p.Devices = append(p.Devices, usedDevice{d, uses[d.Path]})
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(struct {
		Files    []string      `json:"files"`
		Problems []csv.Problem `json:"problems"`
		Unused   int           `json:"unused"` // problems that kept an entry or a setting from being used
		Board    choose.Board  `json:"board"`
		Plan     usedPlan      `json:"plan"`
	}{r.Files, append([]csv.Problem{}, r.Problems...), r.Unused, r.Board, p})
}

// writeTable writes the problems, a table of the plan, the board's properties and the totals.
func (r report) writeTable(w io.Writer) error {
	for _, p := range r.Problems {
		fmt.Fprintln(w, printable(p.String()))
	}
	if len(r.Problems) > 0 {
		fmt.Fprintln(w)
	}
	uses := r.usesByPath()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(table, printableRow(cells)) }
	row("KIND", "IN THE CONTAINER", "FROM THE BOARD", "FOR", "GPU", "LISTED AT")
	for _, m := range r.Plan.Mounts {
		row(mountKind(m), m.Path, m.Source, uses[m.Path].Capabilities, "-", m.From)
		if m.Listed != "" {
			row(mountKind(m), m.Listed, m.Source, uses[m.Path].Capabilities, "-", m.From)
		}
	}
	for _, l := range r.Plan.Links {
		row("link", l.Path, "-> "+l.Target, uses[l.Path].Capabilities, "-", l.From)
	}
	for _, d := range r.Plan.Devices {
		row("device", d.Path, fmt.Sprintf("%d:%d %04o", d.Major, d.Minor, d.Mode), uses[d.Path].Capabilities, uses[d.Path].gpuText(), d.From)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\nCSV files: %d; problems: %d, of which %d kept an entry or a setting from being used\n", printable(boardLine(r.Board, r.GPUs)),
		len(r.Files), len(r.Problems), r.Unused)
	return err
}

// boardLine returns a line with the board's properties that images may require, and its GPUs.
func boardLine(b choose.Board, gpus []choose.GPU) string {
	var told []string
	for _, f := range []struct{ name, value string }{
		{"L4T", b.L4T},
		{"JetPack", b.JetPack},
		{"CUDA", b.CUDA},
		{"arch", b.Arch},
		{"driver", b.Driver},
		{"SoC", b.SoC},
	} {
		told = append(told, f.name+" "+cmp.Or(f.value, "unknown"))
	}
	for _, g := range gpus {
		told = append(told, g.String())
	}
	return "the board: " + strings.Join(told, ", ")
}

// printableRow returns the cells, made printable, with tabs between, no newline. It changes cells.
func printableRow(cells []string) string {
	for i, c := range cells {
		cells[i] = printable(c)
	}
	return strings.Join(cells, "\t")
}

// mountKind returns "folder" or "file".
func mountKind(m plan.Mount) string {
	if m.Folder {
		return "folder"
	}
	return "file"
}

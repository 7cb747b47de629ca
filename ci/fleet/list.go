package fleet

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"slipway/layers/plaintext"
)

// hostRow is one host as fleet list shows it.
type hostRow struct {
	Host     string   `json:"host"`
	Address  string   `json:"address,omitempty"`
	Port     int      `json:"port,omitempty"` // 0: what ~/.ssh/config says
	User     string   `json:"user,omitempty"`
	Identity string   `json:"identity,omitempty"`
	Jump     []string `json:"jump,omitempty"`
	Board    string   `json:"board,omitempty"`
	Serial   string   `json:"serial,omitempty"`
	Groups   []string `json:"groups"`
	Problem  string   `json:"problem,omitempty"` // why it cannot be reached this way
}

// List writes the hosts that match a pattern, with their addresses, users and groups, as a table or
// JSON. It writes warnings about the inventory to notes.
func List(w, notes io.Writer, file, pattern string, asJSON bool) error {
	inv, err := Load(file)
	if err != nil {
		return err
	}
	hosts, err := inv.Select(pattern)
	if err != nil {
		return err
	}
	all := make([]hostRow, len(hosts))
	for i, h := range hosts {
		all[i] = inv.newHostRow(h)
	}
	writeNotes(notes, inv.WarningsFor(hosts))
	if asJSON {
		return plaintext.WriteJSON(w, all)
	}
	return writeList(w, all)
}

// newHostRow returns the row of a host. If ResolveAccess fails, it has the problem and no address.
func (inv *Inventory) newHostRow(h *Host) hostRow {
	l := hostRow{Host: h.Name, Groups: h.Groups}
	a, err := inv.ResolveAccess(h)
	if err != nil {
		l.Problem = err.Error()
		return l
	}
	l.Address, l.Port, l.User, l.Identity, l.Jump, l.Board, l.Serial = a.Host, a.Port, a.User, a.Identity, a.Jump, a.Board, a.Serial
	return l
}

// writeList writes the rows as a table. A host with a problem has one line with it.
func writeList(w io.Writer, all []hostRow) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "HOST\tADDRESS\tPORT\tUSER\tTHROUGH\tBOARD\tGROUPS")
	for _, l := range all {
		if l.Problem != "" {
			fmt.Fprintf(tw, "%s\tnot reachable this way: %s\n", oneLine(l.Host), oneLine(l.Problem))
			continue
		}
		port := "-"
		if l.Port > 0 {
			port = strconv.Itoa(l.Port)
		}
		row := []string{l.Host, l.Address, port, l.User, strings.Join(l.Jump, ","), l.Board, strings.Join(l.Groups, ",")}
		for i := range row {
			row[i] = cmp.Or(oneLine(row[i]), "-")
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

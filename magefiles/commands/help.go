package commands

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"slipway/layers/host"
	"slipway/layers/lazy"
)

const (
	widestHelp = 100 // characters; longer lines are hard to read
	pipedHelp  = 80
)

// helpWidth returns how wide help may be.
func helpWidth() int {
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && width > 20 {
		return min(width, widestHelp)
	}
	return pipedHelp
}

// helpPage writes the help of one command.
type helpPage struct {
	w     io.Writer
	width int
}

func printHelp(cmd *cobra.Command, c *Command) {
	p := helpPage{cmd.OutOrStdout(), helpWidth()}
	p.wrap("", "", cmd.Short+".")
	fmt.Fprintf(p.w, "\nUsage:\n")
	p.wrap("  ", "    ", usageLine(cmd))
	for _, w := range c.words {
		if len(w.choices) > 0 {
			fmt.Fprintln(p.w)
			p.wrap("", "", w.name+" is one of "+strings.Join(w.choices, ", ")+".")
		}
	}
	if cmd.Long != "" {
		for paragraph := range strings.SplitSeq(cmd.Long, "\n\n") {
			fmt.Fprintln(p.w)
			for _, item := range listItems(paragraph) {
				p.wrap("", strings.Repeat(" ", len(listMark().FindString(item))), item)
			}
		}
	}
	p.commands(cmd)
	p.flags("Flags", cmd.LocalNonPersistentFlags())
	p.flags("Flags of every command", cmd.Root().PersistentFlags())
	if cmd.Example != "" {
		fmt.Fprintf(p.w, "\nExamples:\n  %s\n", strings.ReplaceAll(cmd.Example, "\n", "\n  "))
	}
	if len(c.exits) > 0 {
		var rows [][2]string
		for _, e := range append(slices.Clone(exitsOfAll), c.exits...) {
			rows = append(rows, [2]string{strconv.Itoa(e.status), e.means})
		}
		p.table("Exit statuses", rows)
	}
	if cmd.HasAvailableSubCommands() {
		path := append([]string{host.ProgramName()}, pathOf(cmd)...)
		fmt.Fprintf(p.w, "\n%s COMMAND --help explains one of them.\n", strings.Join(path, " "))
	}
}

// listMark is what the item of a list begins with.
var listMark = lazy.Regexp(`^(- |[0-9]+\. )`)

// listItems splits a paragraph before each item of a list.
func listItems(paragraph string) (items []string) {
	for line := range strings.SplitSeq(paragraph, "\n") {
		if len(items) == 0 || listMark().MatchString(line) {
			items = append(items, line)
		} else {
			items[len(items)-1] += " " + line
		}
	}
	return items
}

// usageLine returns what a user types for a command.
func usageLine(cmd *cobra.Command) string {
	parts := append([]string{host.ProgramName()}, pathOf(cmd)...)
	_, words, _ := strings.Cut(cmd.Use, " ")
	words, after, hasAfter := strings.Cut(words, "[--")
	if words = strings.TrimSpace(words); words != "" {
		parts = append(parts, words)
	} else if cmd.HasAvailableSubCommands() {
		parts = append(parts, "COMMAND")
	}
	if hasFlags(cmd) {
		parts = append(parts, "[--flag=value...]")
	}
	if hasAfter {
		parts = append(parts, "[--"+after)
	}
	return strings.Join(parts, " ")
}

func hasFlags(cmd *cobra.Command) (found bool) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { found = found || !f.Hidden && f.Name != "help" })
	return found
}

// commands lists the commands below one, by section.
func (p helpPage) commands(cmd *cobra.Command) {
	sections := []*cobra.Group{{Title: "Commands"}}
	if len(cmd.Groups()) > 0 {
		sections = append(cmd.Groups(), &cobra.Group{Title: "More"})
	}
	for _, section := range sections {
		var rows [][2]string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() && (c.GroupID == section.ID || len(sections) == 1) {
				rows = append(rows, [2]string{c.Name(), c.Short})
			}
		}
		p.table(section.Title, rows)
	}
}

func (p helpPage) flags(title string, all *pflag.FlagSet) {
	var rows [][2]string
	all.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if kind := f.Value.Type(); kind != "bool" {
			name += "=" + kind
		}
		rows = append(rows, [2]string{name, f.Usage})
	})
	p.table(title, rows)
}

// table writes rows of a name and a text. Long names stand on a line of their own.
func (p helpPage) table(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	const most = 22
	column := 0
	for _, row := range rows {
		if n := len(row[0]); n <= most {
			column = max(column, n)
		}
	}
	fmt.Fprintf(p.w, "\n%s:\n", title)
	rest := strings.Repeat(" ", column+4)
	for _, row := range rows {
		if len(row[0]) > column {
			fmt.Fprintf(p.w, "  %s\n", row[0])
			p.wrap(rest, rest, row[1])
			continue
		}
		p.wrap(fmt.Sprintf("  %-*s  ", column, row[0]), rest, row[1])
	}
}

// wrap writes words in lines of the page's width: the first after first, the others after rest.
func (p helpPage) wrap(first, rest, text string) {
	line, empty := first, true
	for word := range strings.FieldsSeq(text) {
		if !empty && len(line)+1+len(word) > p.width {
			fmt.Fprintln(p.w, line)
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	fmt.Fprintln(p.w, line)
}

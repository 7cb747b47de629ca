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

	"slipway/layers/host"
	"slipway/layers/plaintext"
)

const (
	widestHelp = 100 // characters; longer lines are hard to read
	pipedHelp  = 80
)

// page is an output for the help of one command: a terminal, or commands.md. Texts are plain.
type page interface {
	begin(name, short string)
	usage(line string)
	paragraph(text string)
	item(mark, text string)
	table(title string, rows [][2]string) // of a name and a text
	examples(lines string)
}

// explain writes a command's help to a page. Only root's has the flags that all commands have.
func (c *Command) explain(p page, program string) {
	p.begin(strings.Join(append([]string{program}, pathOf(c.Command)...), " "), c.Short)
	p.usage(usageLine(c.Command, program))
	for _, w := range c.words {
		if len(w.choices) > 0 {
			p.paragraph(w.name + " is one of " + strings.Join(w.choices, ", ") + ".")
		}
	}
	for paragraph := range strings.SplitSeq(c.Long, "\n\n") {
		explainParagraph(p, paragraph)
	}
	for _, section := range sectionsOf(c.Command) {
		p.table(section.Title, commandRows(c.Command, section.ID))
	}
	p.table("Flags", flagRows(c.LocalNonPersistentFlags()))
	if !c.HasParent() {
		p.table("Flags of every command", flagRows(c.PersistentFlags()))
	}
	if c.Example != "" {
		p.examples(c.Example)
	}
	if exits := c.ownExits(); len(exits) > 0 {
		var rows [][2]string
		for _, e := range append(slices.Clone(exitsOfAll), exits...) {
			rows = append(rows, [2]string{strconv.Itoa(e.status), e.means})
		}
		p.table("Exit statuses", rows)
	}
}

// listMark matches the beginning of a list's item in a help text.
var listMark = plaintext.Regexp(`^(- |[0-9]+\. )`)

// explainParagraph writes a paragraph of a help text, which may contain a list.
func explainParagraph(p page, paragraph string) {
	var items []string
	for line := range strings.Lines(paragraph) {
		if len(items) == 0 || listMark().MatchString(line) {
			items = append(items, line)
		} else {
			items[len(items)-1] += line
		}
	}
	for _, item := range items {
		if mark := listMark().FindString(item); mark != "" {
			p.item(mark, strings.TrimPrefix(item, mark))
		} else {
			p.paragraph(item)
		}
	}
}

// sectionsOf returns the sections of a command's list of commands; if it has none, one for all.
func sectionsOf(cmd *cobra.Command) []*cobra.Group {
	if groups := cmd.Groups(); len(groups) > 0 {
		return groups
	}
	return []*cobra.Group{{Title: "Commands"}}
}

// commandRows returns the name and text of each command in a section, or of all for "".
func commandRows(cmd *cobra.Command, section string) (rows [][2]string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && (c.GroupID == section || section == "") {
			rows = append(rows, [2]string{c.Name(), c.Short})
		}
	}
	return rows
}

// flagRows returns the name and text of each flag that is not hidden or --help.
func flagRows(flags *pflag.FlagSet) (rows [][2]string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if kind := f.Value.Type(); kind != "bool" {
			name += "=" + kind
		}
		rows = append(rows, [2]string{name, f.Usage})
	})
	return rows
}

// usageLine returns the usage line of a command, with the program's name and all words.
func usageLine(cmd *cobra.Command, program string) string {
	parts := append([]string{program}, pathOf(cmd)...)
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

// helpPage writes the help of one command to a terminal.
type helpPage struct {
	w     io.Writer
	width int
}

// printHelp writes the command's help to its output, as wide as the terminal.
func (c *Command) printHelp() {
	p := &helpPage{w: c.OutOrStdout(), width: min(plaintext.Width(os.Stdout, pipedHelp), widestHelp)}
	c.explain(p, host.ProgramName())
	if c.HasParent() {
		p.table("Flags of every command", flagRows(c.Root().PersistentFlags()))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(p.w, "\n%s COMMAND --help explains one of them.\n", strings.Join(append([]string{host.ProgramName()}, pathOf(c.Command)...), " "))
	}
}

func (p *helpPage) begin(_, short string) { p.wrap("", "", short+".") }

func (p *helpPage) usage(line string) {
	p.heading("Usage")
	p.wrap("  ", "    ", line)
}

func (p *helpPage) heading(title string) {
	fmt.Fprintf(p.w, "\n%s\n", plaintext.Heading.On(p.w, title+":"))
}

func (p *helpPage) paragraph(text string) {
	fmt.Fprintln(p.w)
	p.wrap("", "", text)
}

func (p *helpPage) item(mark, text string) {
	p.wrap(mark, strings.Repeat(" ", len(mark)), text)
}

func (p *helpPage) examples(lines string) {
	p.heading("Examples")
	fmt.Fprintf(p.w, "  %s\n", strings.ReplaceAll(lines, "\n", "\n  "))
}

// table writes rows of a name and a text; no title without rows. A long name gets its own line.
func (p *helpPage) table(title string, rows [][2]string) {
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
	p.heading(title)
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

// wrap writes text in lines of the page's width, which begin with first and then with rest.
func (p *helpPage) wrap(first, rest, text string) {
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

// exit is an exit status of a command, and what it means.
type exit struct {
	status int
	means  string
}

// The statuses that several commands have.
var (
	exitsOfAll    = []exit{{0, "all went well"}, {1, "any other failure"}, {2, "the line is wrong; nothing was started"}}
	exitBoardFile = exit{5, "board.yml or a project file is wrong or missing, or nobody knows the board"}
	exitNotBuilt  = exit{7, "the board has no artifact yet"}
	exitRefused   = exit{7, "the artifact is damaged, or a policy refuses it; no board was asked"}
	exitsOfBoard  = []exit{{3, "the board was not reached, lets nobody in, or was lost in the middle"}, exitBoardFile}
	exitsOfSmoke  = []exit{{3, "a board was not reached, lets nobody in, or was lost in the middle"}, {4, "a check failed"}, {5, "a suite or board.yml is wrong"}}
)

// exitsOfWords are the exit statuses that a command has because of a word in its usage line.
var exitsOfWords = map[string][]exit{
	"BOARD": {exitBoardFile}, "TARGET": {exitBoardFile, exitNotBuilt}, "ARTIFACT": {exitBoardFile, exitNotBuilt},
}

// ownExits returns the exit statuses of a command that not all commands have. deploy run has none
// by its words, because it exits with the container's status.
func (c *Command) ownExits() []exit {
	all := slices.Clone(c.exits)
	if c.Name() == "run" && c.Parent().Name() == "deploy" {
		return all
	}
	for _, w := range c.words {
		for _, e := range exitsOfWords[w.name] {
			if !slices.ContainsFunc(all, func(have exit) bool { return have.status == e.status }) {
				all = append(all, e)
			}
		}
	}
	return all
}

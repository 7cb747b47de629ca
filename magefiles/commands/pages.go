package commands

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// This file writes the manual pages, with the same texts as the help.

const programOnPages = "slipway"

// all returns the command and all commands below it.
func (c *Command) all() []*Command {
	list := []*Command{c}
	for _, b := range c.below {
		list = append(list, b.all()...)
	}
	return list
}

// WriteManPages writes a manual page for each command into a folder, such as slipway.1 or
// slipway-deploy-files.1.
func WriteManPages(folder, version string, date time.Time) error {
	for _, c := range newRoot().all() {
		p := manPage{version: version, date: date}
		c.explain(&p, programOnPages)
		p.seeAlso(c)
		if err := os.WriteFile(filepath.Join(folder, manName(c)+".1"), p.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manName returns the name of a command's manual page.
func manName(c *Command) string {
	return strings.Join(append([]string{programOnPages}, pathOf(c.Command)...), "-")
}

// manPage collects a manual page in the macros of man(7).
type manPage struct {
	bytes.Buffer
	version string
	date    time.Time
	section string // that was begun last
}

var (
	roffText   = strings.NewReplacer(`\`, `\e`, "-", `\-`)
	noControls = strings.NewReplacer("\n.", "\n\\&.", "\n'", "\n\\&'")
)

// text writes text, escaped so that no line is a roff request.
func (m *manPage) text(text string) {
	text = noControls.Replace("\n" + roffText.Replace(strings.TrimSpace(text)))
	m.WriteString(text[1:] + "\n")
}

// in begins a section, unless it is the current one, and reports whether it did.
func (m *manPage) in(section string) (began bool) {
	if m.section == section {
		return false
	}
	m.section = section
	fmt.Fprintf(m, ".SH %s\n", strings.ToUpper(section))
	return true
}

func (m *manPage) begin(name, short string) {
	name = strings.ReplaceAll(name, " ", "-")
	fmt.Fprintf(m, ".TH %s 1 %s %q Slipway\n", strings.ToUpper(name), m.date.UTC().Format(time.DateOnly), programOnPages+" "+m.version)
	m.in("Name")
	m.WriteString(name + ` \- ` + roffText.Replace(short) + "\n")
}

func (m *manPage) usage(line string) {
	m.in("Synopsis")
	program, words, _ := strings.Cut(line, " ")
	m.WriteString(".B ")
	m.text(program)
	m.text(words)
}

func (m *manPage) paragraph(text string) {
	if !m.in("Description") {
		m.WriteString(".PP\n")
	}
	m.text(text)
}

func (m *manPage) item(mark, text string) {
	mark = strings.TrimSpace(mark)
	if mark == "-" {
		mark = `\(bu`
	}
	fmt.Fprintf(m, ".IP %s 4\n", mark)
	m.text(text)
}

func (m *manPage) table(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	m.in(title)
	for _, row := range rows {
		m.WriteString(".TP\n.B ")
		m.text(row[0])
		m.text(row[1])
	}
}

func (m *manPage) examples(lines string) {
	m.in("Examples")
	m.WriteString(".EX\n")
	m.text(lines)
	m.WriteString(".EE\n")
}

// seeAlso writes the section that names the pages of the commands above and below.
func (m *manPage) seeAlso(c *Command) {
	var names []string
	for p := c.Parent(); p != nil; p = p.Parent() {
		names = append(names, strings.Join(append([]string{programOnPages}, pathOf(p)...), "-"))
	}
	for _, b := range c.below {
		names = append(names, manName(b))
	}
	if len(names) == 0 {
		return
	}
	m.in("See also")
	for i, name := range names {
		end := ","
		if i == len(names)-1 {
			end = ""
		}
		fmt.Fprintf(m, ".BR %s (1)%s\n", roffText.Replace(name), end)
	}
}

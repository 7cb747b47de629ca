package commands

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

// This file writes the page of all commands. It says what help says.

var update = flag.Bool("update", false, "write the page of all commands")

// The page of all commands is the one that the program would write.
func TestReference(t *testing.T) {
	const path = "../commands.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("magefiles/commands.md is not what the commands say (%v)\nnext: go test ./magefiles/commands -run Reference -update", err)
	}
}

// all returns the command and all commands below it.
func (c *Command) all() []*Command {
	list := []*Command{c}
	for _, b := range c.below {
		list = append(list, b.all()...)
	}
	return list
}

// reference returns the page of all commands, in Markdown.
func reference() string {
	var p markdownPage
	p.WriteString("# Commands\n\nThis page is made of the program's own help. `slipway help COMMAND` says the same.\n")
	for _, c := range newRoot().all() {
		c.explain(&p, "slipway")
	}
	return p.String()
}

// markdownPage is the page of all commands.
type markdownPage struct {
	strings.Builder
	name string // of the command
	list bool   // the last line is the item of a list
}

// markdownText lets words with a meaning in Markdown stand for themselves.
var markdownText = strings.NewReplacer("<", "&lt;", "|", `\|`, "*", `\*`, "_", `\_`, "[", `\[`)

func (p *markdownPage) begin(name, short string) {
	p.name = name
	fmt.Fprintf(p, "\n## %s\n\n%s.\n", name, short)
}

func (p *markdownPage) usage(line string) { fmt.Fprintf(p, "\n`%s`\n", line) }

func (p *markdownPage) paragraph(text string) {
	fmt.Fprintf(p, "\n%s\n", markdownText.Replace(strings.TrimSpace(text)))
	p.list = false
}

func (p *markdownPage) item(mark, text string) {
	if !p.list {
		p.WriteString("\n")
	}
	p.list = true
	fmt.Fprintf(p, "%s%s\n", mark, markdownText.Replace(strings.Join(strings.Fields(text), " ")))
}

func (p *markdownPage) table(title string, rows [][2]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(p, "\n%s | what it is\n---|---\n", title)
	for _, row := range rows {
		name := "`" + row[0] + "`"
		if c := row[0][0]; c >= 'a' && c <= 'z' { // a command
			name = fmt.Sprintf("[%s](#%s-%s)", name, strings.ReplaceAll(p.name, " ", "-"), row[0])
		}
		fmt.Fprintf(p, "%s | %s\n", name, markdownText.Replace(row[1]))
	}
	p.list = false
}

func (p *markdownPage) examples(lines string) { fmt.Fprintf(p, "\n```\n%s\n```\n", lines) }

//go:build mage

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/lazy"
	"slipway/magefiles/commands"
)

const (
	maxPageWords   = 2500
	maxReadmeLines = 150
)

var (
	pageCommand = lazy.Regexp(`^(?:sudo )?(?:slipway|build/slipway|go tool mage) (.*)$`)
	shellWord   = lazy.Regexp(`(?:'[^']*'|"[^"]*"|[^\s'"]+)+`)
	pageLink    = lazy.Regexp(`\]\(([^)\s]+)\)`)
	notInAnchor = lazy.Regexp(`[^\pL\pN _-]`)
)

// readPages returns the text of the repository's Markdown files, by path.
func readPages(t *testing.T) map[string]string {
	t.Helper()
	list, err := exec.Command("git", "ls-files", "--", "../*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for path := range strings.FieldsSeq(string(list)) {
		if strings.Contains(path, "/testdata/") { // a program's output
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
	if len(all) < 10 {
		t.Fatalf("%d pages; want all of the repository's", len(all))
	}
	return all
}

// wrongCommands names the commands in a page's fenced blocks that Slipway does not understand.
func wrongCommands(text string) (found int, wrong []string) {
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		command, _, _ := strings.Cut(line, " # ")
		match := pageCommand().FindStringSubmatch(command)
		if !fenced || match == nil || strings.HasPrefix(match[1], "-") { // Mage's own option
			continue
		}
		found++
		var args []string
		for _, word := range shellWord().FindAllString(match[1], -1) {
			if word == ">" || word == "|" || word == "&&" {
				break
			}
			args = append(args, strings.NewReplacer("'", "", `"`, "").Replace(word))
		}
		if err := commands.Parse(context.Background(), root(), args); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", command, err))
		}
	}
	return found, wrong
}

func TestCommandsOnPages(t *testing.T) {
	total := 0
	for path, text := range readPages(t) {
		found, wrong := wrongCommands(text)
		total += found
		for _, w := range wrong {
			t.Errorf("%s: %s", path, w)
		}
	}
	if total < 100 {
		t.Errorf("%d commands on all pages; the test reads too few", total)
	}
}

func TestWrongCommandsAreSeen(t *testing.T) {
	page := "slipway nothing\n```\nslipway flash virt a.img -dryrun  # fine\nslipway flash virt a.img -dryrn  # wrong\ngo tool mage bulid virt\n```\n"
	if found, wrong := wrongCommands(page); found != 3 || len(wrong) != 2 {
		t.Errorf("wrongCommands = %d, %q; want three commands, two of them wrong", found, wrong)
	}
}

// findAnchors returns the anchors of a page's headings.
func findAnchors(text string) map[string]bool {
	all := map[string]bool{"": true}
	for line := range strings.Lines(text) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			name := notInAnchor().ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all[strings.ReplaceAll(name, " ", "-")] = true
		}
	}
	return all
}

func TestLinksOnPages(t *testing.T) {
	all := readPages(t)
	for path, text := range all {
		for _, match := range pageLink().FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link to %s: %v", path, match[1], err)
			} else if target, ok := all[to]; ok && !findAnchors(target)[anchor] {
				t.Errorf("%s: link to %s: no such heading", path, match[1])
			}
		}
	}
}

func TestPagesAreShort(t *testing.T) {
	for path, text := range readPages(t) {
		if n := len(strings.Fields(text)); n > maxPageWords && path != "commands.md" { // which is to search in
			t.Errorf("%s has %d words; want at most %d", path, n, maxPageWords)
		}
		if n := strings.Count(text, "\n"); path == "../README.md" && n > maxReadmeLines {
			t.Errorf("%s has %d lines; want at most %d", path, n, maxReadmeLines)
		}
	}
}

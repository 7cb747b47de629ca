//go:build mage

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/layers/plaintext"
	"slipway/magefiles/commands"
)

const maxPageWords = 2500

var maxPageLines = map[string]int{"../README.md": 150, "../CONTRIBUTING.md": 90}

var (
	pageCommand = plaintext.Regexp(`^(?:sudo )?(?:slipway|build/slipway|go tool mage) (.*)$`)
	shellWord   = plaintext.Regexp(`(?:'[^']*'|"[^"]*"|[^\s'"]+)+`)
	pageLink    = plaintext.Regexp(`\]\(([^)\s]+)\)`)
	notInAnchor = plaintext.Regexp(`[^\pL\pN _-]`)
	pageCode    = plaintext.Regexp("`([^`\n]+)`")

	pagePlaceholder = plaintext.Regexp(`<[^>]*>`)
	declaration     = plaintext.Regexp(`(?m)^(?:func (?:\([^)]*\) )?|var |const |type |\t)(\w+)(?: +[\w\[*=.(]|\(|\[)`)
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
		if strings.Contains(string(text), "\n<<<<<<< ") {
			t.Errorf("%s: a conflict of a merge was committed", path)
		}
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
	page := "slipway nothing\n```\nslipway flash virt a.img --dry-run  # fine\nslipway flash virt a.img --dry-rn  # wrong\ngo tool mage bulid virt\n```\n"
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
		if n, most := strings.Count(text, "\n"), maxPageLines[path]; most > 0 && n > most {
			t.Errorf("%s has %d lines; want at most %d", path, n, most)
		}
	}
}

// readNames returns the names that the Go source declares, and those of all files and folders.
func readNames(t *testing.T) map[string]bool {
	t.Helper()
	list, err := exec.Command("git", "ls-files", "--", "..").Output()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for path := range strings.FieldsSeq(string(list)) {
		for part := range strings.SplitSeq(path, "/") {
			names[part] = true
		}
		if filepath.Ext(path) != ".go" {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range declaration().FindAllSubmatch(source, -1) {
			names[string(match[1])] = true
		}
	}
	return names
}

// findMissing returns the quoted words of a text that are neither a path nor one of the names.
func findMissing(text string, names map[string]bool) (found int, missing []string) {
	all := root()
	for _, match := range pageCode().FindAllStringSubmatch(text, -1) {
		word := match[1]
		if cmd, _, err := all.Find([]string{word}); strings.HasPrefix(word, "-") || err == nil && cmd != all { // a flag, a command
			continue
		}
		found++
		files, err := filepath.Glob(filepath.Join("..", pagePlaceholder().ReplaceAllString(word, "*")))
		isName := names[word] || !strings.Contains(word, "/") && names[word[strings.LastIndex(word, ".")+1:]]
		if err != nil || len(files) == 0 && !isName {
			missing = append(missing, word)
		}
	}
	return found, missing
}

// The rows of "To add" name files and identifiers that exist.
func TestNamesInContributing(t *testing.T) {
	_, rows, _ := strings.Cut(readPages(t)["../CONTRIBUTING.md"], "\n## To add\n")
	rows, _, _ = strings.Cut(rows, "\n## ")
	names := readNames(t)
	if found, missing := findMissing(rows, names); found < 30 || len(missing) > 0 {
		t.Errorf("of %d names in the rows of \"To add\" these do not exist: %q", found, missing)
	}
	wrong := "`flash.Wriet`, `flash/flahs.go`, `flash/flash.go`, `flash.Write`, `--dry-run`, `doctor`"
	if _, missing := findMissing(wrong, names); !slices.Equal(missing, []string{"flash.Wriet", "flash/flahs.go"}) {
		t.Errorf("findMissing = %q; want the two words with a mistake", missing)
	}
}

// readMap returns the folders in the README's map, which indents a folder below its parent.
func readMap(text string) []string {
	_, text, _ = strings.Cut(text, "\n## Where things are\n")
	_, text, _ = strings.Cut(text, "```\n")
	text, _, _ = strings.Cut(text, "```")
	var folders, parents []string
	for line := range strings.Lines(text) {
		depth := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		parents = parents[:min(depth, len(parents))]
		for name := range strings.FieldsSeq(line) {
			if !strings.HasSuffix(name, "/") {
				break
			}
			folders = append(folders, strings.Join(append(slices.Clone(parents), strings.TrimSuffix(name, "/")), "/"))
		}
		if len(folders) > 0 {
			parents = strings.Split(folders[len(folders)-1], "/")
		}
	}
	return folders
}

// The README's map has each folder of the first two levels, and no folder that does not exist.
// Folders of tests and of recipes are left out.
func TestMapInReadme(t *testing.T) {
	folders := readMap(readPages(t)["../README.md"])
	list, err := exec.Command("git", "ls-files", "--full-name", "--", "..").Output()
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{"build": true} // which is made
	for path := range strings.FieldsSeq(string(list)) {
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			exist[dir] = true
		}
	}
	for _, folder := range folders {
		if !exist[folder] {
			t.Errorf("the README's map has %s/, which does not exist", folder)
		}
	}
	for folder := range exist {
		base := filepath.Base(folder)
		if strings.Count(folder, "/") > 1 || strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "recipes/") || strings.HasSuffix(base, "test") || base == "testdata" {
			continue
		}
		if !slices.Contains(folders, folder) {
			t.Errorf("the README's map lacks %s/", folder)
		}
	}
}

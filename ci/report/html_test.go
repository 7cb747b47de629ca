package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers/htmlstyle/pagetest"
)

func readPage(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	pagetest.Check(t, page)
	return page
}

// The page says what is wrong and what to do before all else, and who says so.
func TestPageBeginsWithWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if err := failing().Write(dir); err != nil {
		t.Fatal(err)
	}
	text := pagetest.Text(readPage(t, filepath.Join(dir, ReportHTML)))
	want := "virt failed 2 of 12 checks failed 4 March 2026, 05:06:07 UTC, took 52.2 s, run from builder " +
		"(Debian GNU/Linux 12 (bookworm), amd64), by Slipway v0.9.0, commit 0123456789ab. The image is of commit 89abcdef0123 " +
		"sshd is running Saw failed (failed), result: exit-code Want running Next on the board: systemctl status ssh.service; journalctl -b -u ssh.service base · service "
	if !strings.HasPrefix(text, want) {
		t.Errorf("the page begins with\n%.*s; want\n%s", len(want)+40, text, want)
	}
}

// The page links files that are beside it, and no others.
func TestLinksOfPage(t *testing.T) {
	dir := t.TempDir()
	elsewhere := filepath.Join(filepath.Dir(dir), "elsewhere.txt")
	for _, file := range []string{elsewhere, filepath.Join(dir, "a b.txt")} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	long := NewLog("journal", strings.Repeat("line\n", MaxLogBytes))
	for _, tt := range []struct {
		name string
		log  Log
		want string // its link
	}{
		{"long log", long, "logs/smoke-journal.txt"},
		{"short log", NewLog("journal", "line"), ""},
		{"file with a blank", Log{File: "a b.txt"}, "a%20b.txt"},
		{"file of another machine", Log{File: "logs/smoke-gone.txt"}, ""},
		{"file elsewhere", Log{File: "../elsewhere.txt"}, ""},
		{"whole path", Log{File: elsewhere}, ""},
		{"script", Log{File: "javascript:alert(1)"}, ""},
		{"folder", Log{File: "folder"}, ""},
	} {
		r := failing()
		r.Source, r.Logs = nil, []Log{tt.log}
		if err := r.Write(dir); err != nil {
			t.Fatal(err)
		}
		page := readPage(t, filepath.Join(dir, ReportHTML))
		want := 2 // report.json and junit.xml
		if tt.want != "" {
			want++
		}
		if strings.Count(page, "href=") != want || !strings.Contains(page, fmt.Sprintf(`<a href="%s">`, ReportJUnit)) || tt.want != "" && !strings.Contains(page, fmt.Sprintf(`href="%s"`, tt.want)) {
			t.Errorf("%s: the page has %d links; want %d, and one to %q", tt.name, strings.Count(page, "href="), want, tt.want)
		}
	}
	r := failing()
	r.Source = nil
	data, err := HTML([]Report{r})
	if err != nil || strings.Contains(string(data), "href=") {
		t.Errorf("a printed page has links, %v; want none, as no file is beside it", err)
	}
}

// The page of one of several boards links the files of all, which WriteAll writes.
func TestLinksOfSeveralPages(t *testing.T) {
	dir := t.TempDir()
	if err := WriteAll(dir, fleet()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ReportHTML, "boards/b.html", "boards/rack1-c.html"} {
		page := readPage(t, filepath.Join(dir, name))
		links := strings.Split(page, `href="`)[1:]
		if len(links) < 2 {
			t.Errorf("%s has %d links; want those of other forms", name, len(links))
		}
		for _, rest := range links {
			link, _, _ := strings.Cut(rest, `"`)
			if link == failing().Source.Page() {
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, filepath.Dir(name), link)); err != nil {
				t.Errorf("%s links %s: %v", name, link, err)
			}
		}
	}
}

// The commit of the image is a link where its page is known.
func TestCommitOfPage(t *testing.T) {
	for address, want := range map[string]string{
		"https://github.com/o/r": `<a href="https://github.com/o/r/commit/89abcdef0123456789abcdef0123456789abcdef" rel="noreferrer">89abcdef0123</a>`,
		"git@git.lab:o/r":        "of commit 89abcdef0123</p>",
		`javascript://x/" y="`:   "of commit 89abcdef0123</p>",
	} {
		r := passing()
		r.Source.URL = address
		data, err := HTML([]Report{r})
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("the page for %s lacks %s, %v", address, want, err)
		}
		pagetest.Check(t, string(data))
	}
}

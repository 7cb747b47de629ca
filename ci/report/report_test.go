package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/images"
	"slipway/layers/git"
	"slipway/layers/htmlstyle/pagetest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func passing() Report {
	return Report{
		Board: "virt", Started: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), ElapsedMS: 41730,
		Slipway: images.Program{Version: "v0.9.0", Commit: "0123456789abcdef0123456789abcdef01234567"},
		Host:    Host{Name: "builder", OS: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", CPUs: 2},
		Source:  &git.FolderCommit{URL: "https://git.example.com/boards.git", Commit: "89abcdef0123456789abcdef0123456789abcdef", Branch: "main"},
		Boot:    Boot{ElapsedMS: 19800, Accel: "tcg"},
		Identity: Identity{
			Hostname: "virt", Model: "Standard PC (i440FX + PIIX, 1996)", MachineID: "5f0c7d2a9b3e4f1c8d6a7b8c9d0e1f2a",
			BootID: "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9", OS: "Debian GNU/Linux 13 (trixie)", Kernel: "6.12.48+deb13-cloud-amd64",
			Slot: "A", UptimeSec: 24, ImageKey: "7d8f3a1b2c4e",
		},
		Stages: []Stage{
			{Name: "packages", Status: Cached, ElapsedMS: 310, Saw: "all there"},
			{Name: "build", Status: Cached, ElapsedMS: 45, Saw: "image 7d8f3a1b2c4e"},
			{Name: "flash", Status: Passed, ElapsedMS: 6120, Saw: "host key SHA256:2zT0u3oGkq"},
			{Name: "boot", Status: Passed, ElapsedMS: 19840, Saw: "ssh after 19.8 s (tcg)"},
			{Name: "deploy", Status: Passed, ElapsedMS: 5310, Saw: "slipway/probe:latest"},
			{Name: "smoke", Status: Passed, ElapsedMS: 10105, Saw: "9 passed, 1 skipped"},
		},
		Suites: []SuiteResult{
			{Name: "base", ElapsedMS: 4350, Checks: []CheckResult{
				{Name: "the system is up and no unit has failed", Kind: "units", Status: Passed, ElapsedMS: 1210, Saw: `system is "running"; no failed units`},
				{Name: "the time is right", Kind: "clock", Status: Passed, StartMS: 1212, ElapsedMS: 240, Saw: "no difference; the board says 2026-03-04T05:06:31Z"},
				{Name: "the journal is kept", Kind: "command", Status: Passed, StartMS: 1212, ElapsedMS: 830, Saw: "exit status 0"},
				{Name: "sshd is running", Kind: "service", Status: Passed, StartMS: 1460, ElapsedMS: 920, Saw: "active (running)"},
				{Name: "the board's watchdog", Kind: "file", Status: Skipped, Saw: "the suite says skip"},
				{
					Name: "it is cool", Kind: "temperature", Status: Passed, StartMS: 2400, ElapsedMS: 35, Saw: "hottest: 48.5 °C",
					Metrics: []Metric{{Name: "cpu", Unit: "°C", Value: 48.5, Max: new(95.0), Last: new(47.0)}, {Name: "gpu", Unit: "°C", Value: 44, Max: new(95.0)}},
				},
			}},
			{Name: "slots", ElapsedMS: 2400, Checks: []CheckResult{
				{Name: "the disk has its partitions, and root is on one of the slots", Kind: "disk", Status: Passed, ElapsedMS: 610, Saw: "vda has loader, boot, rootA, rootB, data; root is on rootA (vda3); slot A is booted"},
				{Name: "/data is mounted", Kind: "mount", Status: Passed, StartMS: 2, ElapsedMS: 160, Saw: "a file system is mounted on /data; ext4; opts rw,noatime"},
				{Name: "RAUC counts the booted slot as good", Kind: "command", Status: Passed, StartMS: 4, ElapsedMS: 2390, Saw: "exit status 0"},
			}},
			{Name: "containers", ElapsedMS: 3200, Checks: []CheckResult{
				{Name: "containerd answers", Kind: "containerd", Status: Passed, ElapsedMS: 400, Saw: "containerd 1.7.24 answers"},
				{Name: "a container that asks gets the board's libraries", Kind: "container", Status: Passed, StartMS: 405, ElapsedMS: 2790, Saw: "exit status 0; output: slipway probe"},
			}},
			{Name: "dpu-flow", ElapsedMS: 900, Checks: []CheckResult{
				{Name: "a rule moves what it names", Kind: "flow", Status: Passed, ElapsedMS: 900, Proves: ProvesSoftware, Saw: "port 0 pf0vf0 is net_swflow"},
			}},
		},
	}
}

func failing() Report {
	r := passing()
	r.ElapsedMS = 52210
	r.Stages[5] = Stage{Name: "smoke", Status: Failed, ElapsedMS: 20512, Saw: "smoke virt: 2 of 10 checks failed: " + ErrFailed.Error(), Next: "each failed check says what to do"}
	r.Suites[0].Checks[3] = CheckResult{
		Name: "sshd is running", Kind: "service", Status: Failed, StartMS: 1460, ElapsedMS: 920,
		Saw: "failed (failed), result: exit-code", Want: "running", Next: "on the board: systemctl status ssh.service; journalctl -b -u ssh.service",
	}
	r.Suites[2].Checks[1] = CheckResult{
		Name: "a container that asks gets the board's libraries", Kind: "container", Status: Failed, StartMS: 405, ElapsedMS: 2790,
		Saw:  "exit status 127\noutput: /usr/bin/xz: error while loading shared libraries: liblzma.so.5: cannot open shared object file",
		Want: "exit status: 0\noutput: a line with \"slipway probe\"",
		Next: "on the board: slipway-hook check. The CSV files must list liblzma.so.5 and the file behind it",
	}
	r.Logs = []Log{
		{Name: "journal, errors of this boot", Text: "[    7.120341] virt sshd[301]: fatal: \x1b[31mno hostkeys available\x1b[0m -- exiting.\n[    9.000112] virt kernel: <script>alert(1)</script>"},
		{Name: "kernel messages, the last 150", Text: "[    0.000000] Linux version 6.12\n[    1.204311] virtio_blk virtio1: [vda] 4239360 512-byte logical blocks"},
	}
	return r
}

func stopped() Report {
	r := passing()
	r.Identity, r.Suites, r.ElapsedMS = Identity{}, nil, 187000
	r.Stages = append(r.Stages[:3],
		Stage{"boot", Failed, 180000, "nothing answers on its SSH port\nlast lines of its serial line (all: build/virt/machine/console.log):\nKernel panic - not syncing: VFS: Unable to mount root fs", "look around: slipway virt start virt, then slipway virt console virt"},
		Stage{Name: "deploy", Status: Skipped}, Stage{Name: "smoke", Status: Skipped})
	return r
}

var sampleReports = map[string]func() Report{"passing": passing, "failing": failing, "stopped": stopped}

func TestReportGolden(t *testing.T) {
	for name, report := range sampleReports {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := report().Write(dir); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{ReportJSON, ReportJUnit, ReportHTML} {
				got, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				if file == ReportHTML {
					pagetest.Check(t, string(got))
				}
				golden(t, filepath.Join("testdata", "report", name, file), got)
			}
			for _, form := range []string{"tap"} {
				var b bytes.Buffer
				if err := WriteAs(&b, formNamed(t, form), report()); err != nil {
					t.Fatal(err)
				}
				golden(t, filepath.Join("testdata", "report", name, form+".txt"), b.Bytes())
			}
			var b bytes.Buffer
			report().Summary(&b)
			golden(t, filepath.Join("testdata", "report", name, "summary.txt"), b.Bytes())
		})
	}
}

func formNamed(t *testing.T, name string) *Form {
	t.Helper()
	f, err := FormOf(name, false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got; -update rewrites it):\n%s", path, diff)
	}
}

func TestFailed(t *testing.T) {
	for _, tt := range []struct {
		name string
		give Report
		want bool
	}{
		{"passing", passing(), false},
		{"failing", failing(), true},
		{"stopped", stopped(), true},
		{"nothing was run", Report{Board: "virt"}, true},
		{"all skipped", Report{Suites: []SuiteResult{{Checks: []CheckResult{{Status: Skipped}}}}}, true},
		{"cached stages only", Report{Stages: []Stage{{Status: Cached}}}, false},
	} {
		if got := tt.give.Failed(); got != tt.want {
			t.Errorf("%s: Failed() = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// hostileText tries what output of a board can do to whoever shows it.
const hostileText = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x00\x08\u202edrow\u200b\xff]]>\"'<script>alert(1)</script>&\r\nnext\ttab"

func TestHostileTextIsHarmless(t *testing.T) {
	r := failing()
	r.Board, r.Identity.Hostname = hostileText, hostileText
	r.Slipway.Version, r.Slipway.Commit, r.Boot.Accel = hostileText, hostileText, hostileText
	r.Source = &git.FolderCommit{URL: hostileText, Commit: hostileText, Branch: hostileText}
	r.Stages[0].Saw, r.Stages[0].Next = hostileText, hostileText
	for i := range r.Suites {
		for j := range r.Suites[i].Checks {
			c := &r.Suites[i].Checks[j]
			c.Name, c.Saw, c.Want, c.Next = hostileText, hostileText, hostileText, hostileText
		}
	}
	r.Logs = []Log{{Name: hostileText, Text: strings.Repeat(hostileText, 10000), File: hostileText}}
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	var summary, printed bytes.Buffer
	r.Summary(&summary)
	if err := WriteAs(&printed, formNamed(t, "json"), r); err != nil {
		t.Fatal(err)
	}
	if written, err := os.ReadFile(filepath.Join(dir, ReportJSON)); err != nil || !bytes.Equal(printed.Bytes(), written) {
		t.Errorf("WriteAs wrote %d bytes; want the %d of %s (%v)", printed.Len(), len(written), ReportJSON, err)
	}
	for _, name := range []string{ReportJSON, ReportJUnit, ReportHTML, ""} {
		data := summary.Bytes()
		if name != "" {
			data, _ = os.ReadFile(filepath.Join(dir, name))
		}
		if i := bytes.IndexAny(data, "\x00\x07\x08\x1b\u202e\u200b"); i >= 0 {
			t.Errorf("%s: control character %q at %d", name, data[i], i)
		}
		if name == ReportHTML && bytes.Contains(data, []byte("<script")) {
			t.Errorf("%s: a script came through", name)
		}
		if len(data) > 4<<20 {
			t.Errorf("%s: %d bytes", name, len(data))
		}
	}
}

func TestJSONHasNoNullLists(t *testing.T) {
	var b bytes.Buffer
	if err := WriteAs(&b, formNamed(t, "json"), Report{Suites: []SuiteResult{{}}}); err != nil || strings.Contains(b.String(), "null") {
		t.Errorf("WriteAs = %v, and wrote %s; want empty lists", err, b.String())
	}
}

// FuzzReport holds that whatever a board says, the XML stays XML, the JSON stays
// JSON, and no control character reaches a terminal.
func FuzzReport(f *testing.F) {
	f.Add(hostileText)
	f.Add("]]>")
	f.Add("\ufffe\uffff\U0010ffff")
	f.Add(strings.Repeat("\x1b[", 5000))
	f.Fuzz(func(t *testing.T, text string) {
		r := Report{
			Board: text, Stages: []Stage{{Name: text, Status: Failed, Saw: text, Next: text}},
			Suites: []SuiteResult{{Name: text, Checks: []CheckResult{{Name: text, Status: Failed, Saw: text, Want: text}, {Name: text, Status: Skipped, Saw: text}}}},
			Logs:   []Log{{Name: text, Text: text, File: text}}, Slipway: images.Program{Version: text, Commit: text},
		}.Tidy()
		data, err := renderJUnit([]Report{r})
		if err != nil {
			t.Fatal(err)
		}
		for dec := xml.NewDecoder(bytes.NewReader(data)); ; {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("junit.xml: %v", err)
			}
		}
		if data, err := renderJSON([]Report{r}); err != nil || !json.Valid(data) {
			t.Fatalf("report.json: %v", err)
		}
		for _, f := range forms {
			for _, all := range [][]Report{{r}, {r, r}} {
				if data, err := f.render(all); err != nil || bytes.ContainsAny(data, "\x00\x07\x08\x1b\r\u202e\u2066") {
					t.Fatalf("%s: %v\n%q", f.name, err, data)
				}
			}
		}
		wantPoints(t, []Report{r, r})
		var b strings.Builder
		r.Summary(&b)
		if i := strings.IndexAny(b.String(), "\x00\x07\x08\x1b\r\u202e\u2066"); i >= 0 {
			t.Fatalf("control character at %d of %q", i, b.String())
		}
	})
}

// junitSchema is the shape that CI systems agree on.
func TestJUnitSchema(t *testing.T) {
	if _, err := exec.LookPath("xmllint"); err != nil {
		t.Skip("xmllint is missing (Debian package libxml2-utils)")
	}
	for name, report := range sampleReports {
		dir := t.TempDir()
		if err := report().Write(dir); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("xmllint", "--nonet", "--noout", "--schema", "testdata/junit.xsd", filepath.Join(dir, ReportJUnit)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

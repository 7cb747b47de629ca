package ci

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"slipway/ci/suite"
	"slipway/images"
	"slipway/layers/yaml"
)

var update = flag.Bool("update", false, "write the generated pages")

// The page is what the files of the workloads say.
func TestWorkloadsPage(t *testing.T) {
	var page bytes.Buffer
	writeWorkloadsPage(&page, loadWorkloads(t))
	if *update {
		if err := os.WriteFile("workloads.md", page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("workloads.md")
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(page.String(), string(got)); diff != "" {
		t.Errorf("workloads.md is not what the workloads say; go test ./ci -run TestWorkloadsPage -update writes it\n%s", diff)
	}
	for _, row := range strings.Split(page.String(), "\n") {
		if cells := strings.Split(row, " | "); strings.HasPrefix(row, "| **") && (len(cells) != 7 || slices.ContainsFunc(cells, func(c string) bool { return strings.Trim(c, " |") == "" || strings.HasSuffix(c, ": ") })) {
			t.Errorf("a row has an empty cell: %s", row)
		}
	}
}

// workload is a software system for boards, as its workload.yml describes it.
type workload struct {
	Name    string `yaml:"-"` // of its folder
	System  string
	Proves  string
	Needs   string
	Recipes map[string]string // by releases
	Proved  map[string]string // by proofs: what or which boards
	Metrics []string
	Checks  []string `yaml:"-"`
}

var (
	// releases are the base systems for which a workload can have recipes: L4T's releases, DPUs,
	// Isar and Debian's own packages.
	releases = []string{"r32", "r35", "r36", "r39", "dpu", "isar", "debian"}
	// proofs are the ways in which a workload can have been tested, the strongest first.
	proofs = []string{"hardware", "real programs", "virtual board", "rig", "simulated", "recorded"}
)

// loadWorkloads loads all workloads, sorted by name.
func loadWorkloads(t *testing.T) []workload {
	t.Helper()
	files, err := filepath.Glob("suite/workloads/*/workload.yml")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d workloads, %v", len(files), err)
	}
	all := make([]workload, len(files))
	for i, file := range files {
		w := &all[i]
		w.Name = filepath.Base(filepath.Dir(file))
		text, rerr := os.ReadFile(file)
		lerr := yaml.Load(file, text, w, map[string]string{})
		s, serr := suite.Load(w.Name)
		if err := errors.Join(rerr, lerr, serr); err != nil {
			t.Fatal(err)
		}
		for _, c := range s.Checks {
			w.Checks = append(w.Checks, c.Name)
		}
		for name := range w.Recipes {
			if !slices.Contains(releases, name) {
				t.Errorf("%s: recipes for %q; want %q", file, name, releases)
			}
		}
		for name := range w.Proved {
			if !slices.Contains(proofs, name) {
				t.Errorf("%s: proved by %q; want %q", file, name, proofs)
			}
		}
	}
	return all
}

// writeWorkloadsPage writes the catalogue's page, in Markdown.
func writeWorkloadsPage(w io.Writer, all []workload) {
	fmt.Fprint(w, `# Workloads

A workload is a system that people put on boards. Its suite proves it, and its metrics are kept over time.

`+"```"+`
go tool mage smoke root@192.0.2.7 --suite=cuda-warp  # run it on a board
`+"```"+`

This page is generated. To add a workload, add a folder to `+"`ci/suite/workloads`"+` with these files, and run `+"`go test ./ci -run TestWorkloadsPage -update`"+`:

- `+"`workload.yml`"+`: the subject, the requirements, the recipes, and the machines that proved it
- `+"`suite.yml`"+`: its [checks](suites.md)
- the programs that the suite sends to the board
- `+"`recorded.txtar`"+`: output of the real programs, if it was recorded. A test lets the checks judge it.
- `+"`simulated.txtar`"+`: output written by hand, likewise

`)
	fmt.Fprintln(w, "| workload | proves | needs | recipes | checks | metrics | proved |\n|---|---|---|---|---|---|---|")
	for _, one := range all {
		cells := []string{
			"**" + one.Name + "**: " + one.System, one.Proves, one.Needs, strings.Join(inOrder(one.Recipes, releases), "<br>"),
			strings.Join(one.Checks, "<br>"), cmp.Or(strings.Join(one.Metrics, ", "), "the time of each check"), strings.Join(inOrder(one.Proved, proofs), "<br>"),
		}
		fmt.Fprintln(w, "| "+strings.Join(cells, " | ")+" |")
	}
}

// inOrder returns lines like "a: text" in the order of keys. Neighbours with the same text share a
// line: "a, b: text".
func inOrder(texts map[string]string, keys []string) []string {
	var lines []string
	for i := 0; i < len(keys); {
		text, found := texts[keys[i]]
		same := i + 1
		for found && same < len(keys) && texts[keys[same]] == text {
			same++
		}
		if found {
			lines = append(lines, strings.Join(keys[i:same], ", ")+": "+text)
		}
		i = same
	}
	return lines
}

// Each board that a workload says it was proved on has its suite.
func TestWorkloadsName(t *testing.T) {
	for _, w := range loadWorkloads(t) {
		for _, how := range []string{"virtual board", "rig"} {
			for board := range strings.SplitSeq(w.Proved[how], ", ") {
				if board == "" {
					continue
				}
				spec, err := images.Load(board)
				if err != nil || !slices.Contains(spec.Suites, w.Name) {
					t.Errorf("%s: %s %s: its suites are %q, %v", w.Name, how, board, spec.Suites, err)
				}
			}
		}
	}
}

// Each recipe that a workload names and no other layer has is one of this repository.
func TestWorkloadsRecipes(t *testing.T) {
	ours := map[string]bool{}
	for _, root := range []string{"../recipes", "../layers"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if ext := filepath.Ext(path); ext == ".bb" || ext == ".bbappend" {
				name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ext), "_")
				ours[name] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !ours["slipway-hook"] {
		t.Fatalf("%d recipes", len(ours))
	}
	for _, w := range loadWorkloads(t) {
		for release, text := range w.Recipes {
			if strings.Contains(text, " of meta-") || strings.HasPrefix(text, "none ") || release == "debian" {
				continue
			}
			for recipe := range strings.SplitSeq(text, ", ") {
				if name, _, _ := strings.Cut(recipe, " "); !ours[name] {
					t.Errorf("%s: %s: there is no recipe %s", w.Name, release, name)
				}
			}
		}
	}
}

// powerBoard is a folder with an nvpmodel, a tegrastats and sensors of ours.
type powerBoard struct{ script, dir, state string }

func newPowerBoard(t *testing.T) powerBoard {
	t.Helper()
	script, err := filepath.Abs("suite/workloads/power/power-modes.sh")
	if err != nil {
		t.Fatal(err)
	}
	b := powerBoard{script: script, dir: t.TempDir()}
	b.write(t, "bin/nvpmodel", `#!/bin/sh
case $1 in
-q) echo "NV Power Mode: $(sed -n "s/^< POWER_MODEL ID=$(cat $STATE) NAME=\([^ ]*\) >/\1/p" $CONF)"; cat $STATE ;;
-m) [ "$2" != 3 ] || { read -r yes || exit 255; }; [ -z "${STUCK-}" ] || exit 0; echo "$2" >$STATE ;;
esac
`)
	b.write(t, "bin/tegrastats", `#!/bin/sh
while :; do
	echo "RAM 1234/7772MB (lfb 4x4MB) SWAP 0/3886MB CPU [10%@729,off] GR3D_FREQ 0% cpu@44C VDD_IN 5000mW/4900mW VDD_CPU_GPU_CV 500mW/500mW VDD_SOC 1400mW/1400mW"
	sleep 0.1
done
`)
	b.write(t, "nvpmodel.conf", "# modes\n< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=MODE_15W >\n< POWER_MODEL ID=3 NAME=RESTART >\n< PM_CONFIG DEFAULT=2 >\n")
	b.write(t, "hwmon/hwmon3/in1_label", "VDD_IN\n")
	b.write(t, "hwmon/hwmon3/in1_input", "5000\n")
	b.write(t, "hwmon/hwmon3/curr1_input", "1200\n")
	b.write(t, "thermal/thermal_zone0/temp", "41000\n")
	b.write(t, "thermal/thermal_zone1/temp", "47500\n")
	b.state = b.write(t, "state", "2\n")
	return b
}

func (b powerBoard) write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	return file
}

// command runs the script with a workload.
func (b powerBoard) command(workload string, env ...string) *exec.Cmd {
	cmd := exec.Command("sh", b.script)
	cmd.Dir = b.dir
	cmd.Env = slices.Concat(os.Environ(), []string{
		"PATH=" + b.dir + "/bin:" + os.Getenv("PATH"), "CONF=" + b.dir + "/nvpmodel.conf", "STATE=" + b.state, "SAVED=" + b.dir + "/saved",
		"HWMON=" + b.dir + "/hwmon", "THERMAL=" + b.dir + "/thermal", "WORKLOAD=" + workload,
	}, env)
	return cmd
}

// Each mode is set and read back, and the mode of before is there afterwards, also when the
// workload fails or the script is ended.
func TestPowerModes(t *testing.T) {
	b := newPowerBoard(t)
	pids := filepath.Join(b.dir, "pids")
	for _, tt := range []struct {
		name, workload, env string
		ok                  bool
		want                []string
	}{
		{"all modes", "sleep 0.5; echo Throughput: 60 qps; [ $BATCH -gt 0 ]", "BATCHES=1 8", true, []string{"OK mode=0 name=MAXN batch=1 rate=60 watts=6.00 rate_per_watt=10.00 celsius=47.5", "OK mode=0 name=MAXN batch=8 rate=60", "OK mode=2 name=MODE_15W batch=1", "SKIP mode=3", "OK restored mode 2", "Result = PASS"}},
		{"a workload that fails", "exit 7", "", false, []string{"FAIL mode=0 name=MAXN batch=1: the workload ended with 7", "OK restored mode 2", "Result = FAIL"}},
		{"a mode that does not stay", "true", "STUCK=1", false, []string{"FAIL mode=0 name=MAXN batch=-: read back 2 MODE_15W", "Result = FAIL"}},
		{"an end in the middle", "kill -TERM $PPID; sleep 600", "", false, []string{"OK restored mode 2"}},
		{"a workload that hangs", "sleep 600", "LIMIT=1", false, []string{"FAIL mode=0 name=MAXN batch=1: the workload did not end in 1 s", "OK restored mode 2", "Result = FAIL"}},
		{"a workload that hangs and ignores signals", "trap '' HUP INT TERM; sleep 600; sleep 600", "LIMIT=1", false, []string{"FAIL mode=2 name=MODE_15W batch=1: the workload did not end in 1 s", "OK restored mode 2"}},
		{"a workload that fills the disk", "head -c 30000000 /dev/zero && echo Throughput: 60 qps", "", false, []string{"FAIL mode=0 name=MAXN batch=1: the workload ended with ", "OK restored mode 2", "Result = FAIL"}},
		{"a workload that prints garbage", "head -c 1000000 /dev/urandom", "", false, []string{"FAIL mode=0 name=MAXN batch=1: the workload printed no Throughput", "OK restored mode 2"}},
		{"tegrastats of an Orin", "sleep 0.5; echo Throughput: 60 qps", "HWMON=/nowhere", true, []string{"batch=1 rate=60 watts=5.00 rate_per_watt=12.00"}},
	} {
		_ = os.Remove(pids)
		cmd := b.command("echo $$ >>"+pids+"; "+tt.workload, tt.env)
		out, err := cmd.CombinedOutput()
		ran, _ := os.ReadFile(pids)
		for pid := range strings.FieldsSeq(string(ran)) {
			if _, err := os.Stat("/proc/" + pid); err == nil {
				t.Errorf("%s: the workload still runs as %s", tt.name, pid)
			}
		}
		mode, _ := os.ReadFile(b.state)
		_, left := os.Stat(filepath.Join(b.dir, "saved"))
		if files, err := filepath.Glob(b.dir + "/out.*"); err != nil || len(files) > 0 {
			t.Errorf("%s: left behind: %v, %v", tt.name, files, err)
		}
		if (err == nil) != tt.ok || string(mode) != "2\n" || left == nil {
			t.Errorf("%s: %v, mode %s, file of the mode of before: %v\n%s", tt.name, err, mode, left, out)
		}
		for _, want := range tt.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: printed\n%s\nwant %q", tt.name, out, want)
			}
		}
	}
}

// The connection breaks, so nobody reads what the script prints: the mode is restored.
func TestPowerModesWithoutReader(t *testing.T) {
	b := newPowerBoard(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, "state", "0\n")
	cmd := b.command("echo Throughput: 60 qps")
	cmd.Stdout = writer
	if err := errors.Join(cmd.Start(), reader.Close(), writer.Close()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if mode, err := os.ReadFile(b.state); string(mode) != "0\n" || err != nil {
		t.Errorf("without a reader: mode %s, %v; want that of before", mode, err)
	}
}

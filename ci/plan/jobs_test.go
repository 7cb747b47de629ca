package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"slipway/images"
)

const noCommit = "0000000000000000000000000000000000000000"

// A change that begins with no commit builds all boards, and the lab gets those that it has.
func TestFromNoCommit(t *testing.T) {
	c, _, _ := newProject(t)
	dir := t.TempDir()
	for _, to := range []string{"", "HEAD"} {
		p, err := Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: noCommit, To: to, Lab: []string{"oe-a"}, Images: images.Options{Dir: filepath.Join(dir, "build"+to)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range p.Boards {
			if !b.Build || !slices.Contains(b.Why, "the board is new") {
				t.Errorf("to %q: %+v; want a new board", to, b)
			}
		}
		want := []Job{{"debian", "up", false}, {"isar", "up", true}, {"oe-a", "build", true}, {"oe-b", "build", true}, {"oe-b-pro", "build", true}}
		if !slices.Equal(p.Matrix.Include, want) || !slices.Equal(p.Lab.Include, []Job{{"oe-a", "flash", true}}) {
			t.Errorf("to %q: matrix %+v, lab %+v; want %+v, and oe-a in the lab", to, p.Matrix, p.Lab, want)
		}
	}
	_, err := Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: noCommit, Lab: []string{"oe-aa"}, Images: images.Options{Dir: filepath.Join(dir, "x")}})
	if err == nil || !strings.Contains(err.Error(), `--lab: "oe-aa" is no board of this project: did you mean oe-a`) {
		t.Errorf("a lab with an unknown board: %v", err)
	}
}

// Where suites alone changed, hardware is tested in the lab, and nowhere else.
func TestLabOfSuites(t *testing.T) {
	c, base, shared := newProject(t)
	c.write(c.editsOf(map[string]string{"suites/lab.yml": "+# x\n"}, shared))
	p, err := Make(t.Context(), filepath.Join(c.dir, "boards"), Options{From: base, Lab: []string{"oe-b"}, Images: images.Options{Dir: t.TempDir()}})
	if err != nil || len(p.Matrix.Include) > 0 || !slices.Equal(p.Lab.Include, []Job{{"oe-b", "smoke", true}}) {
		t.Errorf("Make = %+v, %+v, %v; want oe-b in the lab alone", p.Matrix, p.Lab, err)
	}
}

// A child pipeline has the jobs that ci/gitlab-jobs.yml describes, and always one.
func TestGitLab(t *testing.T) {
	file := filepath.Join(t.TempDir(), "child.yml")
	read := func(p Plan) map[string]any {
		t.Helper()
		if err := p.SaveGitLab(file); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var asYAML, asJSON map[string]any
		if err := yaml.Load(text, &asYAML); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &asJSON); err != nil || len(asYAML) != len(asJSON) {
			t.Fatalf("%s: %v", text, err)
		}
		return asJSON
	}
	got := read(Plan{Matrix: Matrix{[]Job{{"orin", "build", true}, {"virt-lab", "up", false}}}, Lab: Matrix{[]Job{{"orin", "flash", true}, {"rack", "smoke", true}}}})
	for name, want := range map[string]string{
		"include":          `[{"local":"/ci/gitlab-jobs.yml"}]`,
		"board orin":       `{"extends":".bitbake","variables":{"BOARD":"orin","COMMAND":"build"}}`,
		"board virt-lab":   `{"extends":".debian","variables":{"BOARD":"virt-lab","COMMAND":"up"}}`,
		"release orin":     `{"dependencies":["board orin"],"extends":".release","variables":{"BOARD":"orin","COMMAND":"build"}}`,
		"release virt-lab": `{"dependencies":["board virt-lab"],"extends":".release","variables":{"BOARD":"virt-lab","COMMAND":"up"}}`,
		"lab orin":         `{"dependencies":["board orin"],"extends":".lab","tags":["orin"],"variables":{"BOARD":"orin","COMMAND":"flash"}}`,
		"lab rack":         `{"dependencies":[],"extends":".lab","tags":["rack"],"variables":{"BOARD":"rack","COMMAND":"smoke"}}`,
	} {
		if text, err := json.Marshal(got[name]); err != nil || string(text) != want {
			t.Errorf("%s: %s, %v; want %s", name, text, err, want)
		}
	}
	if len(got) != 7 {
		t.Errorf("%d entries; want 7", len(got))
	}
	if got := read(Plan{}); len(got) != 2 || got["nothing"] == nil {
		t.Errorf("a plan without a job: %v; want one that says so", got)
	}
}

// A summary has each reason, and no board's words are markup in it.
func TestMarkdown(t *testing.T) {
	p := Plan{Boards: []Board{{Board: "a", Build: true, Why: []string{"x|y", "<b>"}, Notes: []string{"moves"}}}, Gone: []string{"d"}}
	want := "### Plan: build 1 of 1 boards, test 0\n\n| board | does | why |\n|---|---|---|\n| a | build | x\\|y. &lt;b&gt;. moves |\n| d | gone |  |\n"
	if got := p.Markdown(); got != want {
		t.Errorf("Markdown = %q; want %q", got, want)
	}
}

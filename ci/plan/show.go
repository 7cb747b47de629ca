package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"slipway/ci/report"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// Write prints a line for each board, removed board and note, and a last line with the totals.
func (p Plan) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range p.Boards {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", plaintext.OneLine(b.Board), b.neededWork(), shorten(b.Why))
	}
	for _, name := range p.Gone {
		fmt.Fprintf(tw, "%s\tgone\t\n", plaintext.OneLine(name))
	}
	for _, b := range p.Boards {
		for _, note := range b.Notes {
			fmt.Fprintf(tw, "%s\tnote\t%s\n", plaintext.OneLine(b.Board), note)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	builds, tests := p.count()
	_, err := fmt.Fprintf(w, "%d %s changed since %.12s: build %d of %d boards, test %d\n", p.changed, plaintext.Either(p.changed == 1, "file", "files"), p.From, builds, len(p.Boards), tests)
	return err
}

// Markdown returns the plan for a CI server's summary, with all reasons.
func (p Plan) Markdown() string {
	rows := [][]string{{"board", "does", "why"}}
	for _, b := range p.Boards {
		rows = append(rows, []string{b.Board, b.neededWork(), strings.Join(append(slices.Clone(b.Why), b.Notes...), ". ")})
	}
	for _, name := range p.Gone {
		rows = append(rows, []string{name, "gone", ""})
	}
	builds, tests := p.count()
	return fmt.Sprintf("### Plan: build %d of %d boards, test %d\n\n%s", builds, len(p.Boards), tests, report.MarkdownTable(rows...))
}

// neededWork returns what the board needs: "build", whether or not a test too, else "test", or "-".
func (b Board) neededWork() string {
	switch {
	case b.Build:
		return "build"
	case b.Test:
		return "test"
	}
	return "-"
}

// shorten returns the first reason, and how many there are besides.
func shorten(why []string) string {
	switch len(why) {
	case 0:
		return ""
	case 1:
		return why[0]
	}
	return fmt.Sprintf("%s, and %d more", why[0], len(why)-1)
}

// count returns how many boards need a build, and how many a test.
func (p Plan) count() (builds, tests int) {
	for _, b := range p.Boards {
		if b.Build {
			builds++
		}
		if b.Test {
			tests++
		}
	}
	return builds, tests
}

// SaveGitHub appends the plan's outputs to the file that GITHUB_OUTPUT names, and prints the plan
// to w. If output is "", it prints the outputs to w instead.
func (p Plan) SaveGitHub(w io.Writer, output string) error {
	if output == "" {
		return p.writeGitHub(w)
	}
	f, err := os.OpenFile(output, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	if err := errors.Join(p.writeGitHub(f), f.Close()); err != nil {
		return err
	}
	return p.Write(w)
}

// writeGitHub prints the matrices as lines for the file GITHUB_OUTPUT. GitHub refuses a matrix
// without jobs, so a workflow tests the outputs any or lab_any before it uses one.
func (p Plan) writeGitHub(w io.Writer) error {
	for _, m := range []struct {
		any, name string
		jobs      Matrix
	}{{"any", "matrix", p.Matrix}, {"lab_any", "lab", p.Lab}} {
		m.jobs.Include = append([]Job{}, m.jobs.Include...)
		text, err := json.Marshal(m.jobs)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s=%t\n%s=%s\n", m.any, len(m.jobs.Include) > 0, m.name, text); err != nil {
			return err
		}
	}
	return nil
}

// GitLabJobs is the path, in a user's project, of the file with the jobs that a child pipeline
// extends: .debian and .bitbake build a board, .lab tests on hardware, .release publishes files.
const GitLabJobs = "ci/gitlab-jobs.yml"

// gitLabJob is a job of a child pipeline.
type gitLabJob struct {
	Extends      string            `json:"extends,omitempty"`
	Variables    map[string]string `json:"variables,omitempty"`
	Dependencies *[]string         `json:"dependencies,omitempty"` // whose artifacts it gets
	Tags         []string          `json:"tags,omitempty"`
	Script       []string          `json:"script,omitempty"`
}

// SaveGitLab writes the plan's jobs to a file as a GitLab child pipeline, in JSON (which is YAML).
// Each board's build gets a release job. Without jobs, the pipeline has one that only prints.
func (p Plan) SaveGitLab(file string) error {
	pipeline := map[string]any{"include": []map[string]string{{"local": "/" + GitLabJobs}}}
	built := map[string][]string{}
	for _, job := range p.Matrix.Include {
		name := "board " + job.Board
		built[job.Board] = []string{name}
		pipeline[name] = job.gitLab(plaintext.Either(job.Bitbake, ".bitbake", ".debian"))
		release := job.gitLab(".release")
		release.Dependencies = new([]string{name})
		pipeline["release "+job.Board] = release
	}
	for _, job := range p.Lab.Include {
		lab := job.gitLab(".lab")
		lab.Tags, lab.Dependencies = []string{job.Board}, new(append([]string{}, built[job.Board]...))
		pipeline["lab "+job.Board] = lab
	}
	if len(pipeline) == 1 { // GitLab refuses a pipeline without a job
		pipeline["nothing"] = gitLabJob{Script: []string{"echo 'the change makes no board necessary to build or to test'"}}
	}
	return localfile.WriteJSON(file, pipeline, 0o644)
}

func (j Job) gitLab(extends string) gitLabJob {
	return gitLabJob{Extends: extends, Variables: map[string]string{"BOARD": j.Board, "COMMAND": j.Command}}
}

package pipelines

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// driver gives a Jenkinsfile, which is a program in Groovy, the steps that Jenkins has.
//
//go:embed jenkins.groovy
var driver []byte

// runJenkins runs the Jenkinsfile by Groovy itself. Jenkins' own plugins are simulated.
func runJenkins(ctx context.Context, s *site, ev event) (out outcome, err error) {
	ws, result := s.path("workspace"), s.path("result-"+s.end+".json")
	if err := s.fetch(ctx, ws, ev); err != nil {
		return out, err
	}
	file := s.path("driver.groovy")
	if err := os.WriteFile(file, driver, 0o644); err != nil {
		return out, err
	}
	before := ev.before
	if before == noCommit {
		before = ""
	}
	cmd := exec.CommandContext(ctx, "groovy", file, filepath.Join(s.path("origin"), "Jenkinsfile"), ws, ev.key, before, result)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, s.w, s.w
	run := cmd.Run()
	text, err := os.ReadFile(result)
	if err != nil {
		return out, errors.Join(run, err)
	}
	var r struct {
		Steps           []string
		Failed, Summary string
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return out, err
	}
	if (run == nil) != (r.Failed == "") {
		return out, errors.Join(run, errors.New("the Jenkinsfile did not end as its steps did"))
	}
	return outcome{steps: r.Steps, failed: r.Failed, summary: r.Summary}, nil
}

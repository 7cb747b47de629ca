package pipelines

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"slipway/ci/plan"
)

type gitLabJob struct {
	Extends   any               `yaml:"extends"`
	Stage     string            `yaml:"stage"`
	Rules     []map[string]any  `yaml:"rules"`
	Variables map[string]string `yaml:"variables"`
	Before    []string          `yaml:"before_script"`
	Script    []string          `yaml:"script"`
	After     []string          `yaml:"after_script"`
}

// runGitLab runs the job check, then those of the child pipeline that it wrote, in one
// workspace: a shell runner keeps build/ between jobs.
func runGitLab(ctx context.Context, s *site, ev event) (out outcome, err error) {
	var file struct {
		Variables map[string]string `yaml:"variables"`
		Check     gitLabJob         `yaml:"check"`
	}
	text, err := s.pipelineFile(0)
	if err == nil {
		err = yaml.Load(text, &file)
	}
	if err != nil {
		return out, err
	}
	ws := s.path("workspace")
	if err := s.fetch(ctx, ws, ev); err != nil {
		return out, err
	}
	env := environment(file.Variables, file.Check.Variables, map[string]string{"CI_COMMIT_BEFORE_SHA": ev.before, "CI_COMMIT_BRANCH": "main"})
	good, err := s.gitLabJob(ctx, &out, ws, "check", file.Check, env)
	if err != nil || !good {
		return out, err
	}
	return out, s.childPipeline(ctx, &out, ws, ev)
}

// fetch brings the workspace to the event's commit, as GIT_CLEAN_FLAGS=-ffd wants it.
func (s *site) fetch(ctx context.Context, ws string, ev event) error {
	if _, err := os.Stat(ws); err != nil {
		if err := s.run(ctx, s.dir, "git", "clone", "-q", "--no-local", s.path("origin"), ws); err != nil {
			return err
		}
	}
	for _, argv := range [][]string{{"git", "fetch", "-q", "origin"}, {"git", "checkout", "-q", "-f", "--detach", ev.commit}, {"git", "clean", "-qffd"}} {
		if err := s.run(ctx, ws, argv...); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(ws, "build/summary.md"))
}

func environment(all ...map[string]string) (env []string) {
	for _, variables := range all {
		for name, value := range variables {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func (s *site) childPipeline(ctx context.Context, out *outcome, ws string, ev event) error {
	var child, file map[string]yaml.Node
	for _, f := range []struct {
		path string
		into *map[string]yaml.Node
	}{{filepath.Join(ws, "build/boards.yml"), &child}, {filepath.Join(ws, plan.GitLabJobs), &file}} {
		text, err := os.ReadFile(f.path)
		if err == nil {
			err = yaml.Load(text, f.into)
		}
		if err != nil {
			return err
		}
	}
	var stages []string
	global := map[string]string{}
	node, variables := file["stages"], file["variables"]
	if err := node.Decode(&stages); err != nil {
		return err
	}
	if err := variables.Decode(&global); err != nil {
		return err
	}
	secret := map[string]string{"SLIPWAY_SIGNING_KEY": ev.key}
	for _, stage := range stages {
		for _, name := range slices.Sorted(maps.Keys(child)) {
			job, err := resolve(name, child, file)
			if err != nil {
				return err
			}
			if job.Stage != stage || len(job.Rules) > 0 && job.Rules[0]["if"] == "$CI_COMMIT_TAG" {
				continue
			}
			good, err := s.gitLabJob(ctx, out, ws, name, job, environment(global, secret, job.Variables))
			if err != nil || !good {
				return err
			}
		}
	}
	return nil
}

// resolve returns a job with what it extends.
func resolve(name string, all ...map[string]yaml.Node) (job gitLabJob, err error) {
	for _, jobs := range all {
		node, here := jobs[name]
		if !here {
			continue
		}
		if name == "include" {
			return job, nil
		}
		if err := node.Decode(&job); err != nil {
			return job, fmt.Errorf("%s: %w", name, err)
		}
		var parents []string
		switch e := job.Extends.(type) {
		case string:
			parents = []string{e}
		case []any:
			for _, parent := range e {
				parents = append(parents, fmt.Sprint(parent))
			}
		}
		var merged gitLabJob
		for _, parent := range parents { // a later parent goes first
			one, err := resolve(parent, all...)
			if err != nil {
				return job, err
			}
			merged = merged.with(one)
		}
		return merged.with(job), nil
	}
	return job, fmt.Errorf("no job %s", name)
}

// with returns a job in which another one's keys go first.
func (j gitLabJob) with(other gitLabJob) gitLabJob {
	j.Variables = maps.Clone(j.Variables)
	if j.Variables == nil {
		j.Variables = map[string]string{}
	}
	maps.Copy(j.Variables, other.Variables)
	if other.Stage != "" {
		j.Stage = other.Stage
	}
	for _, list := range []struct{ into, from *[]string }{{&j.Before, &other.Before}, {&j.Script, &other.Script}, {&j.After, &other.After}} {
		if *list.from != nil {
			*list.into = *list.from
		}
	}
	if other.Rules != nil {
		j.Rules = other.Rules
	}
	return j
}

// gitLabJob runs the lines of a job. A runner has one shell for all of them: here each has its
// own, so that it is seen which one is red.
func (s *site) gitLabJob(ctx context.Context, out *outcome, ws, name string, job gitLabJob, env []string) (good bool, err error) {
	good = true
	for _, line := range append(slices.Clone(job.Before), job.Script...) {
		if strings.HasPrefix(line, "apt-get ") { // for the image debian:12, whose user is root
			continue
		}
		step := name + "/" + stepOf(line)
		if _, err := s.step(ctx, ws, step, line, env); err != nil {
			out.failed, good = step, false
			break
		}
		out.steps = append(out.steps, step)
	}
	for _, line := range job.After {
		if _, err := s.step(ctx, ws, name+"/after", line, env); err != nil {
			return false, err
		}
	}
	summary, err := os.ReadFile(filepath.Join(ws, "build/summary.md"))
	if err == nil {
		out.summary = string(summary)
	}
	return good, context.Cause(ctx)
}

// stepOf names a line by the command of Slipway in it.
func stepOf(line string) string {
	for _, name := range []string{"evidence", "sign", "build", "up"} {
		if strings.Contains(line, "slipway "+name+" ") {
			return strings.NewReplacer("up", "prove").Replace(name)
		}
	}
	return line[:min(len(line), 40)]
}

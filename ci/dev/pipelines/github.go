package pipelines

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

type workflow struct {
	Env  map[string]string    `yaml:"env"`
	Jobs map[string]gitHubJob `yaml:"jobs"`
}

type gitHubJob struct {
	Needs    any               `yaml:"needs"`
	If       string            `yaml:"if"`
	Outputs  map[string]string `yaml:"outputs"`
	Env      map[string]string `yaml:"env"`
	Strategy struct {
		Matrix string `yaml:"matrix"`
	} `yaml:"strategy"`
	Steps []gitHubStep `yaml:"steps"`
}

type gitHubStep struct {
	ID   string            `yaml:"id"`
	Name string            `yaml:"name"`
	If   string            `yaml:"if"`
	Uses string            `yaml:"uses"`
	Run  string            `yaml:"run"`
	With map[string]string `yaml:"with"`
	Env  map[string]string `yaml:"env"`
}

// gitHub is one run of a workflow.
type gitHub struct {
	*site
	event    event
	flow     workflow
	contexts map[string]any // those of all jobs
	results  map[string]string
	outcome  outcome
	dir      string // of artifacts and workspaces; caches are the site's
}

func runGitHub(ctx context.Context, s *site, ev event) (outcome, error) {
	text, err := s.pipelineFile(0)
	if err != nil {
		return outcome{}, err
	}
	g := &gitHub{site: s, event: ev, results: map[string]string{}, dir: s.path("run-" + s.end)}
	if err := yaml.Load(text, &g.flow); err != nil {
		return outcome{}, err
	}
	secret := ""
	if ev.key != "" {
		key, err := os.ReadFile(ev.key)
		if err != nil {
			return outcome{}, err
		}
		secret = string(key)
	}
	g.contexts = map[string]any{
		"github": map[string]any{
			"event_name": "push", "ref_type": "branch", "ref": "refs/heads/main", "sha": ev.commit, "workflow": "slipway", "repository": "team/product",
			"event": map[string]any{"before": ev.before}, "token": "",
		},
		"vars": map[string]any{"SLIPWAY_URL": "file://" + s.path("release")}, "secrets": map[string]any{"SLIPWAY_SIGNING_KEY": secret},
		"runner": map[string]any{"environment": "github-hosted"}, "needs": map[string]any{}, "steps": map[string]any{}, "matrix": map[string]any{},
	}
	for len(g.results) < len(g.flow.Jobs) {
		for _, name := range slices.Sorted(maps.Keys(g.flow.Jobs)) {
			if job := g.flow.Jobs[name]; g.results[name] == "" && !slices.ContainsFunc(job.needs(), func(n string) bool { return g.results[n] == "" }) {
				if err := g.runJob(ctx, name, job); err != nil {
					return g.outcome, fmt.Errorf("job %s: %w", name, err)
				}
			}
		}
	}
	return g.outcome, nil
}

func (j gitHubJob) needs() (names []string) {
	switch n := j.Needs.(type) {
	case string:
		names = []string{n}
	case []any:
		for _, name := range n {
			names = append(names, fmt.Sprint(name))
		}
	}
	return names
}

// statusOfNeeds answers status functions of a job. Without one, all that it needs went well.
func (g *gitHub) statusOfNeeds(job gitHubJob) func(string) (bool, bool) {
	return func(function string) (bool, bool) {
		has := func(result string) bool {
			return slices.ContainsFunc(job.needs(), func(n string) bool { return g.results[n] == result })
		}
		value, known := map[string]bool{"always": true, "cancelled": false, "failure": has("failure"), "success": !has("failure") && !has("skipped")}[function]
		return value, known
	}
}

// asks evaluates a condition, to which success() belongs where it has no status function.
func asks(condition string, contexts map[string]any, status func(string) (bool, bool)) (bool, error) {
	condition = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(condition), "${{"), "}}")
	if condition == "" {
		condition = "success()"
	} else if !strings.Contains(condition, "cancelled()") && !strings.Contains(condition, "always()") && !strings.Contains(condition, "failure()") {
		condition = "success() && (" + condition + ")"
	}
	v, err := evaluate(condition, contexts, status)
	return truth(v), err
}

func (g *gitHub) runJob(ctx context.Context, name string, job gitHubJob) error {
	status := g.statusOfNeeds(job)
	for _, n := range job.needs() {
		g.contexts["needs"].(map[string]any)[n].(map[string]any)["result"] = g.results[n]
	}
	run, err := asks(job.If, g.contexts, status)
	g.contexts["needs"].(map[string]any)[name] = map[string]any{"outputs": map[string]any{}}
	if err != nil || !run {
		g.results[name] = "skipped"
		return err
	}
	g.results[name] = "success"
	combinations := []any{map[string]any{}}
	if job.Strategy.Matrix != "" {
		v, err := fill(job.Strategy.Matrix, g.contexts, status)
		if err != nil {
			return err
		}
		combinations = v.(map[string]any)["include"].([]any)
	}
	for i, one := range combinations {
		r := jobRun{gitHub: g, name: name, ws: filepath.Join(g.dir, fmt.Sprint(name, i)), contexts: maps.Clone(g.contexts)}
		r.contexts["matrix"], r.contexts["steps"] = one, map[string]any{}
		if board, ok := one.(map[string]any)["board"]; ok {
			r.name += " " + fmt.Sprint(board)
		}
		if err := r.runSteps(ctx, job); err != nil {
			return err
		}
		if r.failed {
			g.results[name] = "failure"
		}
		for output, value := range job.Outputs {
			v, err := fill(value, r.contexts, status)
			if err != nil {
				return err
			}
			g.contexts["needs"].(map[string]any)[name].(map[string]any)["outputs"].(map[string]any)[output] = text(v)
		}
	}
	return nil
}

// jobRun is one job with one combination of the matrix, in a workspace of its own.
type jobRun struct {
	*gitHub
	name, ws string
	contexts map[string]any
	failed   bool
	env      []string
	after    []func() error
}

func (r *jobRun) status(function string) (bool, bool) {
	value, known := map[string]bool{"always": true, "cancelled": false, "failure": r.failed, "success": !r.failed}[function]
	return value, known
}

func (r *jobRun) runSteps(ctx context.Context, job gitHubJob) error {
	temp := r.ws + ".temp"
	for _, dir := range []string{r.ws, temp} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	r.env = []string{"GITHUB_ACTIONS=true", "GITHUB_REF_NAME=main", "RUNNER_TEMP=" + temp}
	if err := r.addEnv(r.flow.Env, job.Env); err != nil {
		return err
	}
	for i, step := range job.Steps {
		run, err := asks(step.If, r.contexts, r.status)
		if err != nil {
			return err
		}
		if !run {
			continue
		}
		if step.Uses != "" {
			err = r.use(ctx, step)
		} else {
			err = r.runStep(ctx, i, step)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	for _, after := range r.after {
		if err := after(); err != nil {
			return err
		}
	}
	return nil
}

func (r *jobRun) addEnv(all ...map[string]string) error {
	for _, env := range all {
		for name, value := range env {
			v, err := fill(value, r.contexts, r.status)
			if err != nil {
				return err
			}
			r.env = append(r.env, name+"="+text(v))
		}
	}
	return nil
}

func (r *jobRun) runStep(ctx context.Context, number int, step gitHubStep) error {
	env := r.env
	defer func() { r.env = env }()
	output, summary := filepath.Join(r.ws+".temp", fmt.Sprint("output", number)), filepath.Join(r.ws+".temp", fmt.Sprint("summary", number))
	if err := r.addEnv(step.Env); err != nil {
		return err
	}
	name := r.name + "/" + step.Name
	if step.Name == "" {
		name += strings.SplitN(step.Run, "\n", 2)[0]
	}
	_, err := r.step(ctx, r.ws, name, step.Run, append(slices.Clip(r.env), "GITHUB_OUTPUT="+output, "GITHUB_STEP_SUMMARY="+summary))
	if text, readErr := os.ReadFile(summary); readErr == nil {
		r.outcome.summary += string(text)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		r.failed = true
		if r.outcome.failed == "" {
			r.outcome.failed = name
		}
		return nil
	}
	r.outcome.steps = append(r.outcome.steps, name)
	outputs := map[string]any{}
	if text, err := os.ReadFile(output); err == nil {
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			outputs[key] = value
		}
	}
	if step.ID != "" {
		r.contexts["steps"].(map[string]any)[step.ID] = map[string]any{"outputs": outputs}
	}
	return nil
}

// use does what an action does.
func (r *jobRun) use(ctx context.Context, step gitHubStep) error {
	with := map[string]string{}
	for key, value := range step.With {
		v, err := fill(value, r.contexts, r.status)
		if err != nil {
			return err
		}
		with[key] = text(v)
	}
	action, _, _ := strings.Cut(step.Uses, "@")
	switch action {
	case "actions/checkout":
		if err := r.run(ctx, r.ws, "git", "clone", "-q", "--no-local", r.path("origin"), "."); err != nil {
			return err
		}
		return r.run(ctx, r.ws, "git", "checkout", "-q", "--detach", r.event.commit)
	case "actions/cache", "actions/cache/restore":
		return r.cache(ctx, with, action == "actions/cache")
	case "actions/upload-artifact":
		return r.upload(ctx, with)
	case "actions/download-artifact":
		return r.download(ctx, with)
	}
	return fmt.Errorf("action %s is not known here", action)
}

// cache restores the newest cache of a key, and saves it at the end of a job that went well.
func (r *jobRun) cache(ctx context.Context, with map[string]string, save bool) error {
	all, err := filepath.Glob(r.path("cache/*"))
	if err != nil {
		return err
	}
	found := ""
	for _, name := range all { // they begin with the number of their step
		_, key, _ := strings.Cut(filepath.Base(name), "_")
		if key == with["key"] || with["restore-keys"] != "" && strings.HasPrefix(key, strings.TrimSpace(with["restore-keys"])) {
			found = name
		}
	}
	if found != "" {
		if err := r.run(ctx, found, "cp", "-a", ".", r.ws); err != nil {
			return err
		}
	}
	if !save || strings.HasSuffix(found, "_"+with["key"]) {
		return nil
	}
	r.after = append(r.after, func() error {
		if r.failed {
			return nil
		}
		r.runs++
		return r.copyMatching(ctx, with["path"], r.ws, r.path(fmt.Sprintf("cache/%06d_%s", r.runs, with["key"])), r.ws)
	})
	return nil
}

// copyMatching copies what patterns match below a folder. Paths in the copy begin at root.
func (r *jobRun) copyMatching(ctx context.Context, patterns, from, to, root string) error {
	var left []string
	for pattern := range strings.FieldsSeq(patterns) {
		if name, out := strings.CutPrefix(pattern, "!"); out {
			left = append(left, filepath.Join(from, name))
		}
	}
	for pattern := range strings.FieldsSeq(patterns) {
		found, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			return err
		}
		for _, path := range found {
			below, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			info, err := os.Stat(path)
			excluded := slices.ContainsFunc(left, func(p string) bool { is, _ := filepath.Match(p, path); return is })
			if err != nil || excluded || info.IsDir() && strings.Contains(pattern, "*") {
				continue
			}
			target := filepath.Join(to, below)
			if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
				return err
			}
			if err := r.run(ctx, from, "cp", "-aLT", "--sparse=always", path, target); err != nil {
				return err
			}
		}
	}
	return nil
}

// rootOf is where the paths of an artifact begin: the longest folder that all patterns share.
func rootOf(patterns string) string {
	root := ""
	for pattern := range strings.FieldsSeq(patterns) {
		if strings.HasPrefix(pattern, "!") {
			continue
		}
		dir := pattern
		if i := strings.IndexByte(pattern, '*'); i >= 0 {
			dir = filepath.Dir(pattern[:i] + "x")
		} else if filepath.Ext(pattern) != "" {
			dir = filepath.Dir(pattern)
		}
		for root != "" && root != dir && !strings.HasPrefix(dir, root+"/") {
			root = filepath.Dir(root)
		}
		if root == "" {
			root = dir
		}
	}
	return root
}

func (r *jobRun) upload(ctx context.Context, with map[string]string) error {
	return r.copyMatching(ctx, with["path"], r.ws, filepath.Join(r.dir, "artifacts", with["name"]), filepath.Join(r.ws, rootOf(with["path"])))
}

func (r *jobRun) download(ctx context.Context, with map[string]string) error {
	pattern := with["name"]
	if pattern == "" {
		pattern = with["pattern"]
	}
	found, err := filepath.Glob(filepath.Join(r.dir, "artifacts", pattern))
	if err != nil || len(found) == 0 && with["name"] != "" {
		return fmt.Errorf("no artifact %s: %w", pattern, fs.ErrNotExist)
	}
	into := filepath.Join(r.ws, with["path"])
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for _, artifact := range found {
		if err := r.run(ctx, artifact, "cp", "-a", ".", into); err != nil {
			return err
		}
	}
	return nil
}

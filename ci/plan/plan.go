// Package plan says which boards of the user's project a change makes necessary to build or
// to test, and why. It builds nothing. If it cannot know, the plan includes the board.
package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers/plaintext"
)

// Plan is what a change makes necessary.
type Plan struct {
	From    string   `json:"from"`         // the commit before the change
	To      string   `json:"to,omitempty"` // "" is the work tree
	Boards  []Board  `json:"boards"`
	Gone    []string `json:"gone,omitempty"` // boards that the change removes
	Matrix  Matrix   `json:"matrix"`         // what needs no board
	Lab     Matrix   `json:"lab"`            // what needs one, of the boards that a lab has
	changed int
}

// Board is what a change makes necessary for one board.
type Board struct {
	Board string   `json:"board"`
	Build bool     `json:"build"`
	Test  bool     `json:"test"`
	Why   []string `json:"why"`
	Notes []string `json:"notes,omitempty"` // what the plan cannot see
}

// Matrix is what GitHub's strategy.matrix takes.
type Matrix struct {
	Include []Job `json:"include"`
}

// Job is one job of a pipeline.
type Job struct {
	Board   string `json:"board"`
	Command string `json:"command"`
	Bitbake bool   `json:"bitbake"` // bitbake builds the board, which takes a machine that is ready for it
}

// Options says what to compare.
type Options struct {
	From, To string   // a From of zeros is git's name for no commit: all boards are new
	Lab      []string // boards that a lab has
	Images   images.Options
}

// Make compares the project around the boards' folder, at opt.To, with the commit that opt.From and
// opt.To share, and returns which boards to build and test. It exports to a temporary folder.
func Make(ctx context.Context, folder string, opt Options) (Plan, error) {
	repo, err := openRepository(ctx, folder)
	if err != nil {
		return Plan{}, err
	}
	p := planner{repo: repo, opt: opt}
	if err := p.findFolders(folder); err != nil {
		return Plan{}, err
	}
	if err := p.findCommits(ctx); err != nil {
		return Plan{}, err
	}
	dir, err := os.MkdirTemp("", "slipway-plan-")
	if err != nil {
		return Plan{}, err
	}
	defer os.RemoveAll(dir)
	if err := p.loadStates(ctx, dir); err != nil {
		return Plan{}, err
	}
	return p.plan(ctx)
}

// planner holds the state of the project before and after the change, and the changed files.
type planner struct {
	repo           repository
	opt            Options
	boards, suites string // folders, from the repository's root
	dir            string // of copies, only for this plan
	from, to       string // commits; to is "" for the work tree
	before, after  projectState
	changes        []change
}

// findFolders sets the paths of the boards' and suites' folders, from the repository's root.
func (p *planner) findFolders(folder string) error {
	whole, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	if whole, err = filepath.EvalSymlinks(whole); err != nil {
		return err
	}
	if p.boards, err = filepath.Rel(p.repo.root, whole); err == nil && !filepath.IsLocal(p.boards) {
		err = fmt.Errorf("%s is not below %s", whole, p.repo.root)
	}
	p.suites = filepath.Join(filepath.Dir(p.boards), "suites")
	return err
}

// findCommits sets p.from to the merge base of --from and --to, or to the empty tree if --from has
// only zeros. It also sets p.to ("" without --to), and lists the changes between p.from and p.to.
func (p *planner) findCommits(ctx context.Context) error {
	to, err := p.repo.resolve(ctx, cmp.Or(p.opt.To, "HEAD"))
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	if p.opt.To != "" {
		p.to = to
	}
	if strings.Trim(p.opt.From, "0") == "" && len(p.opt.From) >= sha1Digits {
		p.from, err = p.repo.emptyTree(ctx)
	} else {
		var from string
		if from, err = p.repo.resolve(ctx, p.opt.From); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		p.from, err = p.repo.mergeBase(ctx, from, to)
	}
	if err != nil {
		return err
	}
	p.changes, err = p.repo.changes(ctx, p.from, p.to)
	return err
}

// sha1Digits are those of a commit's name. sha256 has more.
const sha1Digits = 40

// loadStates loads all boards at p.from and p.to, or in the work tree. It exports commits below dir
// and uses build folders there too, so that it does not move the checkouts of the user's builds.
func (p *planner) loadStates(ctx context.Context, dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	p.dir = dir
	opt := p.opt.Images
	if opt.Dir, err = filepath.Abs(opt.Dir); err != nil {
		return err
	}
	if opt.Cache == "" {
		opt.Cache = filepath.Join(opt.Dir, "cache")
	}
	load := func(name, commit string) (projectState, error) {
		opt.Dir = filepath.Join(dir, name, "build")
		if commit == "" {
			return loadState(ctx, p.repo.root, p.boards, opt), nil
		}
		here := filepath.Join(dir, name)
		if err := os.Mkdir(here, 0o755); err != nil {
			return projectState{}, err
		}
		err := p.repo.export(ctx, commit, here, p.describes)
		return loadState(ctx, filepath.Join(here, "tree"), p.boards, opt), err
	}
	if p.before, err = load("before", p.from); err == nil {
		p.after, err = load("after", p.to)
	}
	return errors.Join(err, context.Cause(ctx))
}

// describes reports whether to export a file: of boards, suites, projects, or bitbake's metadata.
func (p *planner) describes(path string) bool {
	return isBelow(path, p.boards) || isBelow(path, p.suites) ||
		slices.Contains([]string{".yml", ".yaml", ".json"}, filepath.Ext(path)) || slices.Contains(metadata, filepath.Ext(path))
}

// plan checks opt.Lab, decides which boards to build and test, and lists jobs and removed boards.
func (p *planner) plan(ctx context.Context) (Plan, error) {
	if err := p.checkLab(); err != nil {
		return Plan{}, err
	}
	none := Matrix{Include: []Job{}}
	result := Plan{From: p.from, To: p.to, Boards: []Board{}, Matrix: none, Lab: none, changed: len(p.changes)}
	for _, name := range slices.Sorted(maps.Keys(p.after.boards)) {
		b := p.planBoard(ctx, name)
		if err := ctx.Err(); err != nil {
			return Plan{}, context.Cause(ctx)
		}
		result.Boards = append(result.Boards, b)
		spec := p.after.boards[name].spec
		if job, ok := jobOf(b, spec); ok {
			result.Matrix.Include = append(result.Matrix.Include, job)
		}
		if job, ok := labJobOf(b, spec); ok && slices.Contains(p.opt.Lab, name) {
			result.Lab.Include = append(result.Lab.Include, job)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.before.boards)) {
		if _, here := p.after.boards[name]; !here {
			result.Gone = append(result.Gone, name)
		}
	}
	return result, nil
}

// checkLab refuses a lab's board that the project does not have, nor had before the change.
func (p *planner) checkLab() error {
	for _, name := range p.opt.Lab {
		_, here := p.after.boards[name]
		_, was := p.before.boards[name]
		if !here && !was {
			known := slices.Sorted(maps.Keys(p.after.boards))
			return fmt.Errorf("--lab: %q is no board of this project%s\nnext: boards", name, plaintext.DidYouMean(name, known))
		}
	}
	return nil
}

// jobOf returns the job for a board on a machine without hardware, and whether one is needed. A
// virtual board is built, booted and tested by one command, up.
func jobOf(b Board, spec images.Spec) (Job, bool) {
	job := Job{b.Board, "build", spec.Debian == nil}
	if spec.Machine != nil {
		job.Command = "up"
	}
	return job, b.Build || b.Test && spec.Machine != nil
}

// labJobOf returns the job for a board in a lab, and whether one is needed. A virtual board needs
// none. The command is flash if the board must be built, else smoke.
func labJobOf(b Board, spec images.Spec) (Job, bool) {
	command := plaintext.Either(b.Build, "flash", "smoke")
	return Job{b.Board, command, spec.Debian == nil}, (b.Build || b.Test) && spec.Machine == nil
}

// planBoard decides whether to build and test a board, with reasons, and notes on missing pins. A
// board that is new or cannot be read is built. Each built board with suites is tested.
func (p *planner) planBoard(ctx context.Context, name string) Board {
	b := Board{Board: name, Why: []string{}}
	before, known := p.before.boards[name]
	after := p.after.boards[name]
	build := p.pipelineReasons()
	switch {
	case len(p.changes) == 0:
	case !known:
		build = []string{"the board is new"}
	case after.err != nil:
		build = append(build, "the board cannot be read: "+p.explain(after.err))
	case before.err != nil:
		build = append(build, fmt.Sprintf("the board cannot be read at %.12s: %s", p.from, p.explain(before.err)))
	default:
		build = append(build, p.compareBoards(before, after)...)
		build = append(build, p.layerReasons(ctx, name, before, after, build)...)
	}
	test := p.testReasons(before, after)
	b.Build = len(build) > 0
	b.Test = (b.Build || len(test) > 0) && (after.err != nil || len(after.spec.Suites) > 0)
	b.Why = append(b.Why, build...)
	if b.Test {
		b.Why = append(b.Why, test...)
	}
	for i, why := range b.Why {
		b.Why[i] = plaintext.OneLine(why)
	}
	for _, id := range after.parts.Floating {
		b.Notes = append(b.Notes, plaintext.OneLine(fmt.Sprintf("no pin says the commit of %s: it moves without a change here; layers lock %s pins it", id, name)))
	}
	return b
}

// explain returns the first line of an error, with paths from the repository's root.
func (p *planner) explain(err error) string {
	line := plaintext.FirstLine(err.Error())
	for _, dir := range []string{p.before.root, p.after.root, p.dir} {
		line = strings.ReplaceAll(line, dir+"/", "")
	}
	return line
}

// pipelines are files that say how everything is built.
var pipelines = []string{".github/workflows", ".github/actions", ".gitlab-ci.yml", ".gitlab", "Jenkinsfile", ".jenkins", "buildbot", "master.cfg", ".ci"}

// pipelineReasons returns a reason for each changed file of a CI pipeline, or of the folder ci
// beside the boards, which says which version of Slipway builds.
func (p *planner) pipelineReasons() (why []string) {
	top := filepath.Dir(p.boards)
	for _, c := range p.changes {
		if slices.ContainsFunc(pipelines, func(f string) bool { return isBelow(c.path, f) }) || isBelow(c.path, filepath.Join(top, "ci")) {
			why = append(why, c.path+" is of the pipeline")
		}
	}
	return why
}

// inputsOf returns the files that bitbake read in the last build of a board. It returns why not if
// none are recorded, if that build had uncommitted changes, or if files of the board or its layers
// changed between that build and p.from.
func (p *planner) inputsOf(ctx context.Context, name string, areas []area, parts []string) (bitbake.Inputs, string) {
	dir := filepath.Join(p.opt.Images.Dir, name)
	in, err := bitbake.OpenInputs(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return bitbake.Inputs{}, "no build on this machine has recorded its inputs"
	case err != nil:
		return bitbake.Inputs{}, "what the last build read is unknown"
	case in.Edited:
		return bitbake.Inputs{}, "the last build was of no commit"
	case in.Commit == p.from:
		return in, ""
	}
	since, err := p.repo.changes(ctx, in.Commit, p.from)
	if err != nil {
		return bitbake.Inputs{}, fmt.Sprintf("the last build's commit %.12s is not here", in.Commit)
	}
	for _, c := range since {
		own := slices.ContainsFunc(parts, func(part string) bool { return isBelow(c.path, part) })
		if own || reasonOf(c, areas, &in, p.isDescription) != "" {
			return bitbake.Inputs{}, fmt.Sprintf("%s changed since the last build", c.path)
		}
	}
	return in, ""
}

// isDescription reports whether a file describes boards or suites (board.yml, a kas or conf.json
// file). Other functions compare these files by their values.
func (p *planner) isDescription(path string) bool {
	base := filepath.Base(path)
	return isBelow(path, p.suites) || isBelow(path, p.boards) && (base == "board.yml" || strings.HasPrefix(base, "kas.") || strings.HasSuffix(base, ".conf.json"))
}

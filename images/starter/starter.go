// Package starter writes the files of a project of the user's own, or of one more board in it. The
// templates are in the folder files. The package starts no build and contacts no server.
package starter

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v4"

	"slipway/images"
	"slipway/layers/plaintext"
)

//go:embed all:files
var embedded embed.FS

// File is a file of a project.
type File struct {
	Path string // below the project's folder
	Text string
}

// Request describes the project or board to make.
type Request struct {
	Folder    string   // of the project, for its name
	Like      string   // the board that the new one extends
	Name      string   // of the new board; "" is made from Like
	Pipelines []string // names of Pipelines
}

// Step is one of the next commands of the user.
type Step struct {
	Line string `json:"command"` // without the program's name
	Why  string `json:"why"`
}

// Pipelines are the servers with a pipeline, and its files by templates, the server's own first.
var Pipelines = map[string][]PipelineFile{
	"buildbot": {{"ci/buildbot.cfg.py", "buildbot.py.tmpl"}},
	"github":   {{".github/workflows/slipway.yml", "github.yml.tmpl"}},
	"gitlab":   {{".gitlab-ci.yml", "gitlab.yml.tmpl"}, {"ci/gitlab-jobs.yml", "gitlab-jobs.yml.tmpl"}},
	"jenkins":  {{"Jenkinsfile", "jenkins.groovy.tmpl"}},
}

// PipelineFile is a file of a pipeline.
type PipelineFile struct{ Path, template string }

// shared are files that each pipeline needs.
var shared = []PipelineFile{
	{"ci/install.sh", "install.sh.tmpl"}, {"ci/allowed_signers", "allowed_signers.tmpl"}, {"ci/artifact_signers", "artifact_signers.tmpl"},
}

// Plan is the files to write, and the user's next steps.
type Plan struct {
	Board string
	Make  string // the command that makes it in a pipeline
	Files []File
	Next  []Step
}

// templates have other delimiters than the expressions of GitHub.
var templates = template.Must(template.New("").Delims("[[", "]]").Funcs(template.FuncMap{"yaml": writeScalar}).
	ParseFS(embedded, "files/*.tmpl", "files/*/*.tmpl"))

// writeScalar returns a text as a YAML scalar, quoted if YAML would read another type, as in 1e3.
func writeScalar(text string) (string, error) {
	out, err := yaml.Marshal(text)
	return strings.TrimSpace(string(out)), err
}

// choices are the values that the templates fill in.
type choices struct {
	Name, Like, Project, Version string

	Suites   string // a list in YAML; "" leaves those of Like
	NoHook   bool   // the hook of Like is left out, as a clone is needed for it
	Hardware bool   // a kas.yml is written
	Make     string // what makes the board, here and in the pipeline: build, or up for a virtual one
	Steps    []Step
}

var released = plaintext.Regexp(`^v([0-9]+(\.[0-9]+)+)$`)

// Release returns this program's release number, which a pipeline installs, "" for other builds.
func (c choices) Release() string {
	if m := released().FindStringSubmatch(c.Version); m != nil {
		return m[1]
	}
	return ""
}

// PlanProject returns the files of a new project: a board like one of Slipway's, named LIKE-lab by
// default, the files that all boards share, and pipelines.
func PlanProject(ctx context.Context, req Request) (Plan, error) {
	like, err := images.LoadSource(req.Like)
	if own, unknown := images.Load(req.Like); err != nil && unknown == nil && own.Extends != "" {
		err = fmt.Errorf("%s is a board of this folder's project: a new project extends one of Slipway's\nnext: repeat the line with --like=%s", req.Like, own.Extends)
	}
	if err != nil {
		return Plan{}, err
	}
	req.Name = cmp.Or(req.Name, req.Like+"-lab")
	line := fmt.Sprintf("init %s --like=%s --name=", plaintext.Quote(req.Folder), req.Like)
	if err := checkName(req.Name, line, "", images.Sources()); err != nil {
		return Plan{}, err
	}
	c := newChoices(req, like)
	c.Suites = suitesLike(like, true)
	p, err := c.planBoard(ctx, like)
	if err != nil {
		return Plan{}, err
	}
	for i := range p.Files {
		p.Files[i].Path = path.Join("boards", p.Files[i].Path)
	}
	c.Steps = p.Next
	shared, err := c.planShared(req.Pipelines)
	p.Files = append(p.Files, shared...)
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return p, err
}

// PlanPipelines returns the pipeline files to add to an existing project.
func PlanPipelines(req Request) (Plan, error) {
	c := choices{Project: projectName(req.Folder), Version: images.ThisProgram().String()}
	files, err := c.fillAll(pipelineFiles(req.Pipelines))
	return Plan{Files: files, Next: []Step{
		{"board check", "read all files again, and list what only you know"},
		{"ci plan --from=HEAD~1", "what the pipeline would build for the last commit"},
	}}, err
}

// pipelineFiles returns the template names of the servers' pipelines and shared files, by path.
func pipelineFiles(servers []string) map[string]string {
	names := map[string]string{}
	for _, server := range servers {
		for _, f := range append(slices.Clone(shared), Pipelines[server]...) {
			names[f.Path] = f.template
		}
	}
	return names
}

// planShared returns the files that all boards of a project share, pipelines included.
func (c choices) planShared(pipelines []string) (files []File, err error) {
	names := pipelineFiles(pipelines)
	maps.Copy(names, map[string]string{"suites/product.yml": "product.yml.tmpl", ".gitignore": "gitignore.tmpl", "README.md": "README.md.tmpl"})
	return c.fillAll(names)
}

// fillAll returns the files, sorted by path, of the templates in names, which holds them by path.
func (c choices) fillAll(names map[string]string) (files []File, err error) {
	for _, path := range slices.Sorted(maps.Keys(names)) {
		text, err := c.fill(names[path])
		if err != nil {
			return nil, err
		}
		files = append(files, File{path, text})
	}
	return files, nil
}

// PlanBoard returns the files of one more board of a project, modelled on one of Slipway's boards
// or of the project. folder holds the project's boards; the files' paths are below it.
func PlanBoard(ctx context.Context, folder string, req Request) (Plan, error) {
	like, err := images.Load(req.Like)
	if err != nil {
		return Plan{}, err
	}
	if err := checkName(req.Name, "board new ", " --like="+plaintext.Quote(req.Like), os.DirFS(folder), images.Sources()); err != nil {
		return Plan{}, err
	}
	suites, err := images.OwnSuites()
	if err != nil {
		return Plan{}, err
	}
	c := newChoices(req, like)
	if isBoard(os.DirFS(folder), req.Like) { // the project already says all that is not Slipway's
		c.Hardware, c.NoHook = false, false
	} else {
		c.Suites = suitesLike(like, suites["product"] != "")
	}
	return c.planBoard(ctx, like)
}

// newChoices returns the values of the templates for a board like another one. "slipway up" makes a
// virtual board, "slipway build" the others.
func newChoices(req Request, like images.Spec) choices {
	return choices{
		Name: req.Name, Like: req.Like, Project: projectName(req.Folder), Version: images.ThisProgram().String(),
		Make:   plaintext.Either(like.Machine != nil, "up", "build"),
		NoHook: like.Debian != nil, Hardware: like.Debian == nil,
	}
}

// planBoard returns board.yml, kas.yml for real hardware, and next steps. It refuses a rig.
func (c choices) planBoard(ctx context.Context, like images.Spec) (Plan, error) {
	if like.Rig != nil {
		return Plan{}, fmt.Errorf("board %s: a rig is made in a clone of Slipway, not in a project\nnext: boards", c.Like)
	}
	text, err := c.fill("board.yml.tmpl")
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Board: c.Name, Make: c.Make, Files: []File{{c.Name + "/board.yml", text}}}
	pinned := true
	if c.Hardware {
		if text, pinned, err = c.projectFile(ctx, like); err != nil {
			return Plan{}, err
		}
		p.Files = append(p.Files, File{c.Name + "/kas.yml", text})
	}
	p.Next = c.steps(pinned)
	return p, nil
}

// suitesLike returns, as a YAML list, the suites of a board like another one, and the suite product
// on request. It leaves out the suite containers for a Debian board, which has no hook then.
func suitesLike(like images.Spec, product bool) string {
	suites := slices.DeleteFunc(slices.Clone(like.Suites), func(name string) bool { return like.Debian != nil && name == "containers" })
	if product {
		suites = append(suites, "product")
	}
	return "[" + strings.Join(suites, ", ") + "]"
}

// registryName matches a part of a registry's repository name: pipelines push a release under the
// board's name. betweenWords matches what such a name cannot have.
var registryName, betweenWords = plaintext.Regexp(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$`), plaintext.Regexp(`[^a-z0-9]+`)

// checkName returns an error for a board name that another board has, or that boards or registries
// cannot have. before and after are the command line around a better name.
func checkName(name, before, after string, others ...fs.FS) error {
	err := images.CheckBoardName(name)
	for _, boards := range others {
		if err == nil && (isBoard(boards, name) || isBoard(boards, path.Join("boards", name))) {
			err = fmt.Errorf("board %s: another board has this name", name)
		}
	}
	if err != nil {
		return fmt.Errorf("%w\nnext: boards", err)
	}
	if registryName().MatchString(name) {
		return nil
	}
	better := strings.ToLower(name)
	if !registryName().MatchString(better) {
		better = strings.Trim(betweenWords().ReplaceAllString(better, "-"), "-")
	}
	return fmt.Errorf("board name %q: a release is pushed under this name, and registries want lower case, with one of . _ - between words\nnext: %s%s%s", name, before, better, after)
}

func isBoard(files fs.FS, folder string) bool {
	_, err := fs.Stat(files, path.Join(folder, "board.yml"))
	return err == nil
}

// projectName returns the last part of a folder's absolute path.
func projectName(folder string) string {
	if whole, err := filepath.Abs(folder); err == nil {
		folder = whole
	}
	return plaintext.OneLine(filepath.Base(folder))
}

// fill returns the text of the template with this name for the choices.
func (c choices) fill(name string) (string, error) {
	var text bytes.Buffer
	err := templates.ExecuteTemplate(&text, name, c)
	return text.String(), err
}

// steps returns the user's next commands, in order, with layers lock if not all layers are pinned.
func (c choices) steps(pinned bool) []Step {
	steps := []Step{{"board check", "read all files again, and list what only you know"}}
	if !pinned {
		steps = append(steps, Step{"layers lock " + c.Name, "pin the layers that have no commit"})
	}
	steps = append(steps, Step{"doctor " + c.Name, "is this machine ready?"})
	if c.Make == "up" {
		return append(steps, Step{"up " + c.Name, "from nothing to a report"})
	}
	return append(steps,
		Step{"build " + c.Name, "with SLIPWAY_AUTHORIZED_KEYS and SLIPWAY_ROOT_LOGIN=1, or nobody can log in"},
		Step{"flash " + c.Name + " DEVICE --dry-run", "what would be erased; slipway devices lists devices"},
		Step{"smoke " + c.Name + " root@HOST", "prove that the board works"},
	)
}

package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// rule is one rule for the whole source.
type rule struct {
	name string
	fix  string                                        // how to fix a finding
	find func(context.Context, tree) ([]string, error) // an error means that the rule could not be checked
}

// The rules, the slow ones first: they run side by side.
var rules = []rule{
	{"staticcheck", "each finding names its check; \"go tool staticcheck -explain SA4017\" tells more", runStaticcheck},
	{"deadcode", "delete what no program reaches, or write the command that needs it", findDeadCode},
	{"vet", "each finding says what is wrong", runVet},
	{"tidy", "go tool mage fmt", checkTidy},
	{"format", "go tool mage fmt", checkFormat},
	{"licences", "see the top of ci/dev/source/licences.go", checkLicences},
	{"imports", "move the code to the stage that owns it, or pass it in as a value", checkImports},
}

// A change of one line can bring a thousand findings; the first ones say enough.
const maxFindings = 40

// Check checks all rules and prints the findings, with how to fix them. A broken rule is an error.
func Check(ctx context.Context, w io.Writer) error {
	t, err := openTree(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	broken, err := t.checkRules(ctx, w, rules)
	if err != nil {
		return err
	}
	if len(broken) > 0 {
		return fmt.Errorf("%d of %d rules do not hold: %s", len(broken), len(rules), strings.Join(broken, ", "))
	}
	fmt.Fprintf(w, "%d rules hold, %.1f s\n", len(rules), time.Since(began).Seconds())
	return nil
}

// Format formats every Go file of the clone and tidies its modules.
func Format(ctx context.Context) error {
	t, err := openTree(ctx)
	if err != nil {
		return err
	}
	return t.formatFiles(ctx)
}

// tree is source to check, with the programs that check it.
type tree struct {
	root    string
	module  string            // path of the root's module
	modules []string          // folders, root first
	tools   map[string]string // name -> executable
}

// toolsFolder is the module of the tools that are too large for go.mod.
const toolsFolder = "ci/tools"

// openTree returns the clone around the current folder, and builds the tools that check it.
func openTree(ctx context.Context) (tree, error) {
	root, err := cloneRoot()
	if err != nil {
		return tree{}, err
	}
	tools, err := buildTools(ctx, root, "gofumpt", "staticcheck", "deadcode")
	if err != nil {
		return tree{}, err
	}
	return newTree(ctx, root, tools)
}

// newTree returns the source at root with its modules, to check with tools (paths by name).
func newTree(ctx context.Context, root string, tools map[string]string) (tree, error) {
	t := tree{root: root, tools: tools}
	var err error
	if t.modules, err = goModules(root); err != nil {
		return tree{}, err
	}
	path, err := run.Output(ctx, command(root, "go", "list", "-m"))
	t.module = strings.TrimSpace(string(path))
	return t, err
}

// buildTools builds tools of the clone at root if the build cache lacks them, and returns
// their paths. They can then check any source.
func buildTools(ctx context.Context, root string, names ...string) (map[string]string, error) {
	tools := map[string]string{}
	err := progress.Run(ctx, "tools", func(s *progress.Step) (string, error) {
		for _, name := range names {
			s.Detail(name)
			// -n prints the path of the executable in the build cache, after building it.
			argv := []string{"go", "tool", "-n", name}
			if !slices.Contains([]string{"gofumpt", "staticcheck"}, name) {
				argv = []string{"go", "tool", "-modfile=" + toolsFolder + "/go.mod", "-n", name}
			}
			out, err := run.Output(ctx, command(root, argv...))
			if err != nil {
				return "", err
			}
			tools[name] = strings.TrimSpace(string(out))
		}
		return "", nil
	})
	return tools, err
}

// checkRules checks rules side by side, prints the findings, and returns the broken rules' names.
func (t tree) checkRules(ctx context.Context, w io.Writer, rules []rule) ([]string, error) {
	findings := make([][]string, len(rules))
	var g errgroup.Group
	g.SetLimit(max(2, runtime.NumCPU()/2)) // the programs of each rule use all cores
	for i, r := range rules {
		g.Go(func() error {
			findings[i] = r.runRule(ctx, t)
			return nil
		})
	}
	_ = g.Wait() // a failed rule does not stop the others
	if ctx.Err() != nil {
		return nil, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	var broken []string
	for i, r := range rules {
		if len(findings[i]) > 0 {
			broken = append(broken, r.name)
			r.printFindings(w, findings[i])
		}
	}
	return broken, nil
}

// runRule returns the findings of the rule. If the rule cannot be checked, that is a finding too.
func (r rule) runRule(ctx context.Context, t tree) []string {
	step := progress.Start(ctx, r.name, 0, "")
	found, err := r.find(ctx, t)
	if err != nil {
		found = append(found, strings.Split("could not look: "+err.Error(), "\n")...)
	}
	switch {
	case ctx.Err() != nil:
		step.End("", context.Cause(ctx))
	case len(found) > 0:
		step.End("", errors.New("does not hold"))
	default:
		step.End("holds", nil)
	}
	return found
}

// printFindings prints the first maxFindings lines of a rule's findings, and how to fix them.
func (r rule) printFindings(w io.Writer, found []string) {
	fmt.Fprintf(w, "\n%s does not hold:\n", r.name)
	for _, line := range found[:min(len(found), maxFindings)] {
		fmt.Fprintf(w, "  %s\n", line)
	}
	if more := len(found) - maxFindings; more > 0 {
		fmt.Fprintf(w, "  and %d lines more\n", more)
	}
	fmt.Fprintf(w, "  fix: %s\n", r.fix)
}

// inModules runs argv in each module and collects its findings.
func (t tree) inModules(ctx context.Context, argv ...string) ([]string, error) {
	var all []string
	for _, dir := range t.modules {
		found, err := runChecker(ctx, dir, argv...)
		if err != nil {
			return all, err
		}
		all = append(all, t.prefixModule(dir, found)...)
	}
	return all, nil
}

// runChecker returns the output lines of a program that exits with 0 if it has no findings, and
// else prints them. A failure without output is an error.
func runChecker(ctx context.Context, dir string, argv ...string) ([]string, error) {
	var said []string
	c := command(dir, argv...)
	c.Line = func(line string) {
		if !strings.HasPrefix(line, "go: downloading ") {
			said = append(said, line)
		}
	}
	err := run.Run(ctx, c)
	var failure *run.Failure
	switch {
	case err == nil:
		return nil, nil
	case errors.As(err, &failure) && len(said) > 0:
		return said, nil
	}
	return nil, err
}

// listFindings runs a program that prints one finding per line. It returns the lines and any error.
func listFindings(ctx context.Context, dir string, argv ...string) ([]string, error) {
	out, err := run.Output(ctx, command(dir, argv...))
	text := strings.TrimSpace(string(out))
	if text == "" {
		return nil, err
	}
	return strings.Split(text, "\n"), err
}

// prefixModule adds the folder of a nested module to lines that begin with a path in it.
func (t tree) prefixModule(dir string, lines []string) []string {
	rel, err := filepath.Rel(t.root, dir)
	if err != nil || rel == "." {
		return lines
	}
	placed := slices.Clone(lines)
	for i, line := range placed {
		path, _, _ := strings.Cut(line, ":")
		if _, err := os.Stat(filepath.Join(dir, path)); err == nil && path != "" {
			placed[i] = filepath.Join(rel, path) + line[len(path):]
		}
	}
	return placed
}

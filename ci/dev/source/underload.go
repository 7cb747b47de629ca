package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/layers/progress"
	"slipway/layers/run"
)

// loadDir is the folder, below the clone, of the files that UnderLoad keeps: the passed
// rounds, and the output of failed tests.
const loadDir = "build/soak/tests"

// roundsAtOnce limits the rounds of one process. A stopped run loses no more than these.
const roundsAtOnce = 20

// UnderLoad runs each test that writes a program or waits for a time, beside one busy loop
// per processor. Each runs until it has passed the given rounds, or until the time limit
// each, where 0 is none. only selects tests by a pattern for "package name". A stopped run
// continues where it was, unless the compiled tests change.
func UnderLoad(ctx context.Context, w io.Writer, rounds int, each time.Duration, only string) error {
	root, err := cloneRoot()
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	return loadRun{rounds: rounds, each: cmp.Or(each, math.MaxInt64), wanted: wanted}.underLoad(ctx, w, root)
}

func (l loadRun) underLoad(ctx context.Context, w io.Writer, root string) error {
	modules, err := goModules(root)
	if err != nil {
		return err
	}
	l.out = filepath.Join(root, loadDir)
	if err := os.MkdirAll(l.out, 0o755); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for range runtime.NumCPU() {
		go func() {
			for ctx.Err() == nil {
			}
		}()
	}
	err = withTempDir(func(tmp string) error {
		l.tmp = tmp
		for _, dir := range modules {
			if err := l.runModule(ctx, dir); err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Fprintln(w, strings.Join(l.summary, "\n"))
	switch {
	case err != nil:
		return err
	case l.failed > 0:
		return fmt.Errorf("%d of the tests failed under load", l.failed)
	case len(l.summary) == 0:
		return fmt.Errorf("no test that writes a program or waits for a time matches %q", l.wanted)
	}
	return nil
}

// loadRun is one run of UnderLoad.
type loadRun struct {
	out, tmp string
	rounds   int
	each     time.Duration // time limit of a test
	wanted   *regexp.Regexp
	summary  []string
	failed   int
}

func (l *loadRun) runModule(ctx context.Context, dir string) error {
	packages, err := goList(ctx, dir, nil, "./...")
	if err != nil {
		return err
	}
	for _, p := range packages {
		tests, err := timedTests(p, packages)
		if err != nil {
			return err
		}
		tests = slices.DeleteFunc(tests, func(name string) bool { return !l.wanted.MatchString(p.ImportPath + " " + name) })
		if len(tests) == 0 {
			continue
		}
		if err := l.runPackage(ctx, dir, p, tests); err != nil {
			return err
		}
	}
	return nil
}

// runPackage runs the tests of one package.
func (l *loadRun) runPackage(ctx context.Context, module string, p goPackage, tests []string) error {
	step := progress.Start(ctx, "soak "+p.ImportPath, int64(len(tests)*l.rounds), progress.Tasks)
	binary := filepath.Join(l.out, strings.ReplaceAll(p.ImportPath, "/", "."))
	defer os.Remove(binary)
	_, err := run.Output(ctx, command(module, "go", "test", "-c", "-tags="+tags, "-race", "-vet=off", "-o", binary, p.ImportPath))
	var passed passedRounds
	if err == nil {
		passed, err = readPassed(binary)
	}
	skipped, failures, fewer := 0, []string(nil), []string(nil)
	for _, name := range tests {
		if err != nil {
			break
		}
		step.Detail(name)
		var state roundState
		switch state, err = l.runTest(ctx, step, binary, p.Dir, name, passed); state {
		case skipRound:
			skipped++
		case failRound:
			failures = append(failures, fmt.Sprintf("FAIL  %s %s after %d rounds: see %s", p.ImportPath, name, passed.Rounds[name], l.logName(binary, name)))
		default:
			if n := passed.Rounds[name]; n < l.rounds {
				fewer = append(fewer, fmt.Sprintf("      %s %s had time for %d of them", p.ImportPath, name, n))
			}
		}
	}
	if err != nil {
		step.End("", err)
		return err
	}
	what := fmt.Sprintf("%d tests, %d rounds each, %d skipped, %d failed", len(tests), l.rounds, skipped, len(failures))
	l.summary = slices.Concat(l.summary, []string{fmt.Sprintf("%-32s %s", p.ImportPath, what)}, fewer, failures)
	if l.failed += len(failures); len(failures) > 0 {
		err = errors.New(what)
	}
	step.End(what, err)
	return nil
}

// runTest runs one test for the rounds that it has not passed yet, or until its time limit.
func (l *loadRun) runTest(ctx context.Context, step *progress.Step, binary, dir, name string, passed passedRounds) (roundState, error) {
	began := time.Now()
	step.Add(int64(min(passed.Rounds[name], l.rounds)))
	for atOnce := 1; passed.Rounds[name] < l.rounds; atOnce = min(2*atOnce, roundsAtOnce) {
		n := min(atOnce, l.rounds-passed.Rounds[name])
		if state, err := l.runRounds(ctx, binary, dir, name, n); err != nil || state != passRound {
			return state, err
		}
		if err := passed.addRounds(binary, name, n); err != nil {
			return passRound, err
		}
		step.Add(int64(n))
		if time.Since(began) >= l.each {
			break
		}
	}
	return passRound, nil
}

func (l *loadRun) logName(binary, test string) string {
	return filepath.Join(loadDir, filepath.Base(binary)+"."+test+".log")
}

type roundState int

const (
	passRound roundState = iota
	skipRound
	failRound
)

// runRounds runs a test n times in one process. An error means that the run was stopped.
func (l *loadRun) runRounds(ctx context.Context, binary, dir, test string, n int) (roundState, error) {
	name := filepath.Join(l.out, filepath.Base(l.logName(binary, test)))
	log, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	c := command(dir, binary, "-test.run=^"+test+"$", "-test.count="+strconv.Itoa(n), "-test.failfast", "-test.v", "-test.timeout="+testTimeout)
	c.Env = []string{"TMPDIR=" + l.tmp, raceOptions()}
	cmd := run.Prepare(ctx, c)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if ctx.Err() != nil {
		return 0, errors.Join(context.Cause(ctx), os.Remove(name))
	}
	passes, skips, serr := countRounds(name, test)
	switch {
	case serr != nil:
		return 0, serr
	case err != nil || passes+skips != n:
		_, err := fmt.Fprintf(log, "%v; %d of %d rounds passed, %d were skipped\n", err, passes, n, skips)
		return failRound, err
	case skips > 0:
		return skipRound, os.Remove(name)
	}
	return passRound, os.Remove(name)
}

// countRounds counts the rounds in the output of a test binary.
func countRounds(name, test string) (passes, skips int, err error) {
	text, err := os.ReadFile(name)
	count := func(verdict string) int { return strings.Count("\n"+string(text), "\n--- "+verdict+": "+test+" (") }
	return count("PASS"), count("SKIP"), err
}

// passedRounds are the passed rounds of the tests of one compiled binary.
type passedRounds struct {
	Binary string // its digest
	Rounds map[string]int
}

func readPassed(binary string) (p passedRounds, err error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return p, err
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(program))
	data, err := os.ReadFile(binary + ".json")
	if err != nil || json.Unmarshal(data, &p) != nil || p.Binary != digest || p.Rounds == nil {
		p = passedRounds{digest, map[string]int{}}
	}
	return p, nil
}

func (p passedRounds) addRounds(binary, test string, n int) error {
	p.Rounds[test] += n
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return renameio.WriteFile(binary+".json", data, 0o644)
}

// timedTests returns the tests of a package that write a program or wait for a time. It
// searches their own code, and functions that they call in the package's tests or in a
// package that imports testing.
func timedTests(p goPackage, all []goPackage) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		return nil, err
	}
	for _, helper := range all {
		if slices.Contains(helper.Imports, "testing") && slices.Contains(slices.Concat(p.TestImports, p.XTestImports), helper.ImportPath) {
			for _, name := range helper.GoFiles {
				files = append(files, filepath.Join(helper.Dir, name))
			}
		}
	}
	timed, names := map[string]bool{}, map[string][]string{} // by function
	var tests []string
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for name, node := range listDeclarations(file) {
			if strings.HasPrefix(name, "Test") && name != "TestMain" && filepath.Dir(path) == p.Dir {
				tests = append(tests, name)
			}
			timed[name] = timed[name] || waitsItself(node)
			ast.Inspect(node, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.Name != name {
					names[name] = append(names[name], id.Name)
				}
				return true
			})
		}
	}
	for more := true; more; {
		more = false
		for f, named := range names {
			if !timed[f] && slices.ContainsFunc(named, func(name string) bool { return timed[name] }) {
				timed[f], more = true, true
			}
		}
	}
	slices.Sort(tests)
	return slices.DeleteFunc(tests, func(name string) bool { return !timed[name] }), nil
}

// listDeclarations returns a file's functions, methods and package variables. Variables
// include tables of tests.
func listDeclarations(file *ast.File) iter.Seq2[string, ast.Node] {
	return func(yield func(string, ast.Node) bool) {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if !yield(d.Name.Name, d) {
					return
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && !yield(v.Names[0].Name, v) {
						return
					}
				}
			}
		}
	}
}

// waitsItself reports whether a declaration uses package time or a context's time limit, or
// creates a file with the mode of a program.
func waitsItself(node ast.Node) (found bool) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			found = found || ok && (x.Name == "time" && slices.Contains(waits, n.Sel.Name) || x.Name == "context" && strings.HasPrefix(n.Sel.Name, "With") && n.Sel.Name != "WithValue" && !strings.HasPrefix(n.Sel.Name, "WithCancel"))
		case *ast.CallExpr:
			name := ""
			switch fun := n.Fun.(type) {
			case *ast.Ident:
				name = fun.Name
			case *ast.SelectorExpr:
				name = fun.Sel.Name
			}
			found = found || !strings.HasPrefix(name, "Mkdir") && slices.ContainsFunc(n.Args, isProgramMode)
		}
		return !found
	})
	return found
}

func isProgramMode(arg ast.Expr) bool {
	lit, ok := arg.(*ast.BasicLit)
	return ok && lit.Kind == token.INT && slices.Contains([]string{"0o755", "0o775", "0o777", "0o700", "0o711", "0o555", "0o500"}, lit.Value)
}

// waits are the names of package time that a waiting test uses.
var waits = []string{
	"Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick", "Since", "Until",
	"Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour",
}

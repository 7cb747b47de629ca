package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"slipway/layers/run"
)

// loadDir is the folder, below the clone, of the output of failed rounds.
const loadDir = "build/soak/tests"

// UnderLoad runs the tests of each package under the race detector by stress, two processes
// per processor side by side, until they ran the given rounds or until the time limit each,
// where 0 is none. only is a pattern for packages, then, after a space, one for tests.
func UnderLoad(ctx context.Context, w io.Writer, rounds int, each time.Duration, only string) error {
	root, err := cloneRoot()
	if err != nil {
		return err
	}
	tools, err := buildTools(ctx, root)
	if err != nil {
		return err
	}
	return loadRun{tools["stress"], rounds, each}.underLoad(ctx, w, root, only)
}

// loadRun is how UnderLoad runs each package.
type loadRun struct {
	stress string
	rounds int
	each   time.Duration
}

func (l loadRun) underLoad(ctx context.Context, w io.Writer, root, only string) error {
	pattern, tests, _ := strings.Cut(only, " ")
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	modules, err := goModules(root)
	if err != nil {
		return err
	}
	out := filepath.Join(root, loadDir)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	ran, failed := 0, 0
	for _, dir := range modules {
		packages, err := goList(ctx, dir, nil, "./...")
		if err != nil {
			return err
		}
		for _, p := range packages {
			if len(p.TestImports)+len(p.XTestImports) == 0 || !wanted.MatchString(p.ImportPath) {
				continue
			}
			fmt.Fprintln(w, p.ImportPath)
			logs, err := l.runPackage(ctx, w, dir, filepath.Join(out, strings.ReplaceAll(p.ImportPath, "/", ".")), tests, p)
			if err != nil {
				return err
			}
			ran, failed = ran+1, failed+min(1, len(logs))
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("the tests of %d of %d packages failed under load: see %s", failed, ran, loadDir)
	case ran == 0:
		return fmt.Errorf("no package with tests matches %q", pattern)
	}
	return nil
}

// runPackage returns the files with the output of failed rounds.
func (l loadRun) runPackage(ctx context.Context, w io.Writer, module, binary, tests string, p goPackage) (logs []string, err error) {
	old, err := filepath.Glob(binary + ".failed-*")
	for _, name := range old {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		return nil, err
	}
	defer os.Remove(binary)
	if _, err := run.Output(ctx, command(module, "go", "test", "-c", "-tags="+tags, "-race", "-vet=off", "-o", binary, p.ImportPath)); err != nil {
		return nil, err
	}
	limited, stop := ctx, context.CancelFunc(func() {})
	if l.each > 0 {
		limited, stop = context.WithTimeout(ctx, l.each)
	}
	defer stop()
	err = withTempDir(func(tmp string) error {
		c := command(p.Dir, l.stress, "-count="+strconv.Itoa(l.rounds), "-p="+strconv.Itoa(2*runtime.NumCPU()), "-timeout="+testTimeout,
			"-o="+binary+".failed-", binary, "-test.run="+tests, "-test.shuffle=on", "-test.timeout="+testTimeout)
		c.Env = []string{"TMPDIR=" + tmp, raceOptions()}
		cmd := run.Prepare(limited, c)
		cmd.Stdout, cmd.Stderr = w, w
		return cmd.Run()
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	logs, globErr := filepath.Glob(binary + ".failed-*")
	if len(logs) > 0 || limited.Err() != nil {
		err = nil // the logs say what failed, and the end of the time is no failure
	}
	return logs, errors.Join(err, globErr)
}

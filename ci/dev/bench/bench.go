// Package bench measures Slipway beside the tools that people use today, and beside the limit
// of the machine, in one run. Each area is one file. An area that could not measure returns an
// error, never a partial table.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"slipway/layers/host"
	"slipway/layers/kastest"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Options limits a bench to a part. The zero value measures all of it.
type Options struct {
	Rounds int    // how often each variant is measured
	Only   string // only the variants that this pattern matches
	MiB    int    // the size of the image, file or artifact
	Before string // a checkout of an earlier commit, which is measured too
}

// area is a subject of the bench.
type area struct {
	rounds, mib int             // if not given; 0 if the area has no such option
	names       func() []string // the variants that --only selects from; nil if they need one another
	packages    []string        // Debian packages
	root        bool
	before      bool // whether an earlier checkout can be measured too
	measure     func(context.Context, *session) error
}

// session is one run of an area.
type session struct {
	Options
	w    io.Writer
	only *regexp.Regexp
	dir  string // a new folder, as an absolute path

	program string // Slipway's, which the area measures; the earlier one's name ends in earlierSuffix
}

var areas = map[string]area{
	"deploy": {5, 1024, deployNames, []string{"openssh-server", "openssh-client", "rsync"}, false, true, measureDeploy},
	"flash":  {5, 4 << 10, flashNames, []string{"bmap-tools", "mount", "zstd", "time"}, true, true, measureFlash},
	"hook":   {30, 0, hookNames, []string{"runc", "mount", "binutils", "e2fsprogs", "busybox-static", "python3"}, true, true, measureHook},
	"layers": {3, 0, layersNames, append(kastest.TestingPackages(), "git", "e2fsprogs", "mount"), true, true, measureLayers},
	"store":  {3, 1024, nil, []string{"docker-registry", "curl"}, false, false, measureStore},
	"update": {0, 0, nil, nil, true, false, measureUpdate},
}

// Areas lists the names that Run accepts.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run measures one area.
func Run(ctx context.Context, w io.Writer, name string, o Options) error {
	a, ok := areas[name]
	if !ok {
		return fmt.Errorf("unknown area %q: say which (%s), as in: bench flash", name, strings.Join(Areas(), ", "))
	}
	if err := a.run(ctx, w, o); err != nil {
		return fmt.Errorf("bench %s could not measure: %w", name, err)
	}
	return nil
}

func (a area) run(ctx context.Context, w io.Writer, o Options) error {
	s := &session{Options: o, w: w}
	if err := a.readOptions(s); err != nil {
		return err
	}
	if a.root && os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	if err := host.Ensure(ctx, w, "build/bench/apt.log", append(slices.Clip(a.packages), "hyperfine")...); err != nil {
		return err
	}
	if err := os.MkdirAll("build/bench", 0o755); err != nil {
		return err
	}
	only, err := os.Create("build/bench/lock") // two benches at once would disturb each other
	if err != nil {
		return err
	}
	defer only.Close()
	if err := localfile.WaitLock(ctx, only); err != nil {
		return err
	}
	return keepOnFailure(ctx, func(dir string) error {
		s.dir = dir
		return a.measure(ctx, s)
	})
}

// readOptions refuses options that the area has not, and a pattern that matches nothing.
func (a area) readOptions(s *session) (err error) {
	for _, o := range []struct {
		flag  string
		value *int
		usual int
	}{{"--rounds", &s.Rounds, a.rounds}, {"--mib", &s.MiB, a.mib}} {
		if *o.value < 0 || *o.value > 0 && o.usual == 0 {
			return fmt.Errorf("%s=%d: the area has no such option, or it is not above 0", o.flag, *o.value)
		}
		if *o.value == 0 {
			*o.value = o.usual
		}
	}
	if s.Before != "" && !a.before {
		return errors.New("--before: the area has no such option")
	}
	if s.only, err = regexp.Compile(s.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if s.Only == "" {
		return nil
	}
	if a.names == nil {
		return errors.New("--only is not for this area: its steps need one another")
	}
	if names := a.names(); !slices.ContainsFunc(names, s.only.MatchString) {
		return fmt.Errorf("--only=%s matches none of: %s", s.Only, strings.Join(names, "; "))
	}
	return nil
}

// keepOnFailure calls measure with a new folder in build. It removes the folder unless
// measure fails, as the error names files there.
func keepOnFailure(ctx context.Context, measure func(dir string) error) error {
	parent, err := filepath.Abs("build/bench")
	if err == nil {
		err = os.MkdirAll(parent, 0o755)
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(parent, "run-")
	if err != nil {
		return err
	}
	err = measure(dir)
	if err != nil && ctx.Err() == nil {
		return err
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// earlierPrefix and earlierSuffix mark the rows and the program of the earlier checkout.
const (
	earlierPrefix = "before: "
	earlierSuffix = ".before"
)

// buildProgram builds the program that the area measures: a package, named from its module's
// folder in this checkout, and in the earlier one.
func (s *session) buildProgram(ctx context.Context, module, pkg string) error {
	s.program = filepath.Join(s.dir, filepath.Base(filepath.Join(module, pkg)))
	build := func(checkout, program string) error {
		return run.Run(ctx, run.Command{
			Argv: []string{"go", "build", "-C", filepath.Join(checkout, module), "-o", program, pkg},
			Env:  []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath '-ldflags=-s -w'"},
		})
	}
	err := build(".", s.program)
	if err == nil && s.Before != "" {
		err = build(s.Before, s.program+earlierSuffix)
	}
	return err
}

// withEarlier puts the program into the commands, and returns each variant that needs it once
// more for the earlier checkout.
func (s *session) withEarlier(variants []variant) (all []variant) {
	for _, v := range variants {
		command := v.command
		needed := v.ours || strings.Contains(command, "{program}")
		for _, program := range []string{s.program, s.program + earlierSuffix} {
			v.program, v.command = program, strings.ReplaceAll(command, "{program}", plaintext.Quote(program))
			all = append(all, v)
			if s.Before == "" || !needed {
				break
			}
			v.name = earlierPrefix + v.name
		}
	}
	return all
}

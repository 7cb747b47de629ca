// Package bench measures Slipway beside the tools that people use today, and beside the limit of
// the machine, in one run. Each area is a table of commands, and a script of the same name that
// prepares and checks them. An area that could not measure returns an error, never a partial table.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Options limits a bench. The zero value measures everything.
type Options struct {
	Rounds int    // how often each variant is measured
	Only   string // only the variants that this pattern matches
	MiB    int    // the size of the image, file or artifact
	Before string // a checkout of an earlier commit, which is measured too
}

// area describes what one bench measures: its options, packages, commands and ratios.
type area struct {
	rounds, mib int // if not given; 0 if the area has no such option
	packages    []string
	root        bool
	mounts      bool                                  // all of it runs in a mount namespace, with which its mounts end
	delay       time.Duration                         // of the line to the server, in each direction
	begin       func(context.Context, *session) error // sets the words that the script cannot
	about       string                                // what the table is about
	variants    []variant
	measure     func(context.Context, *session) error // instead of all below; the variants are names for --only
	ordered     bool                                  // the variants need one another, and the bytes on the line count
	ratios      []ratio
}

var areas = map[string]area{"deploy": deploy, "flash": flash, "hook": hook, "hub": hub, "layers": layers, "place": newPlace(), "store": store}

// Areas returns the names that Run accepts.
func Areas() []string { return slices.Sorted(maps.Keys(areas)) }

// Run installs packages, measures one area, and writes its table to w. It runs in Slipway's clone.
func Run(ctx context.Context, w io.Writer, name string, o Options) error {
	a, ok := areas[name]
	if !ok {
		return fmt.Errorf("unknown area %q: say which (%s), as in: bench flash", name, strings.Join(Areas(), ", "))
	}
	s := &session{Options: o, area: a, w: w, name: name}
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("bench %s could not measure: %w", name, err)
	}
	return nil
}

// session is the state of one run of an area.
type session struct {
	Options
	area
	name    string
	w       io.Writer
	only    *regexp.Regexp
	dir     string            // a new folder, as an absolute path
	program string            // what the area measures; the earlier one's name ends in earlierSuffix
	words   map[string]string // for the braces in commands, and the script's variables
	line    *line             // to the server at the word port
}

// run checks the options, installs packages, waits for other benches, and measures the area.
func (s *session) run(ctx context.Context) error {
	if err := s.readOptions(); err != nil {
		return err
	}
	if s.root && os.Geteuid() != 0 {
		return errors.New("it needs root")
	}
	if err := host.Ensure(ctx, s.w, "build/bench/apt.log", append(slices.Clip(s.packages), "hyperfine")...); err != nil {
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
		if s.mounts {
			return inMountNamespace(func() error { return s.measureTable(ctx) })
		}
		return s.measureTable(ctx)
	})
}

// readOptions sets defaults. It refuses options that the area lacks, and patterns without a match.
func (s *session) readOptions() (err error) {
	for _, o := range []struct {
		flag  string
		value *int
		usual int
	}{{"--rounds", &s.Rounds, s.rounds}, {"--mib", &s.MiB, s.mib}} {
		if *o.value < 0 || *o.value > 0 && o.usual == 0 {
			return fmt.Errorf("%s=%d: the area has no such option, or it is not above 0", o.flag, *o.value)
		}
		if *o.value == 0 {
			*o.value = o.usual
		}
	}
	if s.Before != "" && s.ordered {
		return errors.New("--before: the area has no such option")
	}
	if s.only, err = regexp.Compile(s.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if s.Only != "" && s.ordered {
		return errors.New("--only is not for this area: its steps need one another")
	}
	var names []string
	for _, v := range s.variants {
		names = append(names, v.name)
	}
	if s.Only != "" && !slices.ContainsFunc(names, s.only.MatchString) {
		return fmt.Errorf("--only=%s matches none of: %s", s.Only, strings.Join(names, "; "))
	}
	return nil
}

// keepOnFailure calls measure with a new folder in build/bench. It keeps the folder if measure
// fails, because the error names files in it, and removes it after a success or Ctrl-C.
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

// inMountNamespace calls work on an OS thread with a mount namespace of its own, which programs
// that work starts share. The mounts end with the thread, which ends because it is never unlocked.
func inMountNamespace(work func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = work()
		}
		done <- err
	}()
	return <-done
}

// measureTable runs the script's setup, measures all variants and writes the table. It runs the
// script's end also after an error.
func (s *session) measureTable(ctx context.Context) (err error) {
	if s.measure != nil {
		return s.measure(ctx, s)
	}
	ctx, cancel := context.WithCancel(ctx) // with which servers end
	defer cancel()
	if err := s.setUp(ctx); err != nil {
		return err
	}
	defer s.line.Close()
	defer func() {
		_, ended := s.call(context.WithoutCancel(ctx), variant{}, "end")
		err = errors.Join(err, ended)
	}()
	out, err := s.call(ctx, variant{}, "setup")
	s.addWords(string(out))
	if err != nil {
		return err
	}
	rows, err := s.measureVariants(ctx)
	if err != nil {
		return err
	}
	figures, err := s.call(ctx, variant{}, "figures")
	if err != nil {
		return err
	}
	if s.about != "" {
		fmt.Fprintln(s.w, s.fill(s.about, strings.TrimSpace))
	}
	return s.print(rows, strings.Fields(string(figures))...)
}

// setUp starts s.line, sets s.program and s.words (for the braces in commands), and calls s.begin.
func (s *session) setUp(ctx context.Context) error {
	port, err := run.FreePort()
	if err != nil {
		return err
	}
	if s.line, err = listenLine(port, s.delay); err != nil {
		return err
	}
	clone, err := os.Getwd()
	if err != nil {
		return err
	}
	s.words = map[string]string{"clone": clone, "dir": s.dir, "mib": fmt.Sprint(s.MiB), "before": s.Before, "port": fmt.Sprint(port), "far": fmt.Sprint(s.line.port())}
	s.program = filepath.Join(s.dir, "slipway")
	if s.begin == nil {
		return nil
	}
	return s.begin(ctx, s)
}

// addWords adds the words in lines of name=value to s.words.
func (s *session) addWords(text string) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		s.words[name] = value
	}
}

// call runs ci/dev/bench/AREA.sh with the words of verb as arguments, and returns its output. It
// sets environment variables: s.words, program (v's or else s's), and first=yes if v is the first.
func (s *session) call(ctx context.Context, v variant, verb string) ([]byte, error) {
	env := []string{"program=" + cmp.Or(v.program, s.program), "first="}
	if v.first {
		env[1] = "first=yes"
	}
	for name, value := range s.words {
		env = append(env, name+"="+value)
	}
	argv := append([]string{"sh", "-eu", filepath.Join("ci/dev/bench", s.name+".sh")}, strings.Fields(verb)...)
	return run.Output(ctx, run.Command{Argv: argv, Env: env})
}

// fill replaces each {word} in a text by the word's value, which it passes through quote.
func (s *session) fill(text string, quote func(string) string) string {
	var pairs []string
	for name, value := range s.words {
		pairs = append(pairs, "{"+name+"}", quote(value))
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// earlierPrefix and earlierSuffix mark the rows and the program of the earlier checkout.
const (
	earlierPrefix = "before: "
	earlierSuffix = ".before"
)

// allVariants returns the selected variants with filled commands. With --before, each variant that
// runs the program follows a second time, with the program of the earlier checkout.
func (s *session) allVariants() (all []variant) {
	for _, v := range s.variants {
		command := s.fill(v.command, plaintext.Quote)
		needed := v.ours || strings.Contains(command, "{program}")
		v.dir = s.fill(v.dir, strings.TrimSpace)
		for _, program := range []string{s.program, s.program + earlierSuffix} {
			v.program, v.command = program, strings.ReplaceAll(command, "{program}", plaintext.Quote(program))
			all = append(all, v)
			if s.Before == "" || !needed {
				break
			}
			v.name = earlierPrefix + v.name
		}
	}
	return slices.DeleteFunc(all, func(v variant) bool { return !s.only.MatchString(v.name) })
}

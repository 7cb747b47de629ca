package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"slipway/images/bitbake"
	"slipway/images/cache"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// Shell is a command to run in a board's build folder, with bitbake's environment.
type Shell struct {
	Argv []string
	Dir  string
	Env  []string
}

// NewShell checks out a board's layers, writes the configuration as a build does, and returns the
// command in line to run there. An empty line means the user's own shell. It refuses a line with
// operators of a shell, because Slipway starts programs without one.
func NewShell(ctx context.Context, spec Spec, opt Options, line string) (Shell, error) {
	argv, err := splitWords(line)
	if err != nil {
		return Shell{}, err
	}
	sign := func(word string) bool { return shellSign().MatchString(word) }
	if bare, err := splitWords(quoted().ReplaceAllString(line, "_")); err == nil && slices.ContainsFunc(bare, sign) {
		return Shell{}, fmt.Errorf("the command has signs of a shell, and Slipway starts a program without one: %s\nnext: repeat the line with --command=%s", line, plaintext.Quote("sh -c "+plaintext.SingleQuote(line)))
	}
	if len(argv) == 0 {
		argv = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
	}
	project, _, err := Project(ctx, spec, opt)
	if err != nil {
		return Shell{}, err
	}
	b, err := newProjectBuild(project, spec, opt)
	if err != nil {
		return Shell{}, err
	}
	if err := layers.Checkout(ctx, project, b.workspace); err != nil {
		return Shell{}, err
	}
	tree, err := bitbake.Find(ctx, project, b.workspace, b.dir, b.build)
	if err != nil {
		return Shell{}, err
	}
	var given cache.BitbakeOptions
	if tree.Programs != "" {
		if given, err = cacheFor(ctx, spec, project, tree.Programs, b.dir, b.build); err != nil {
			return Shell{}, err
		}
	}
	tree.Set = given.Set
	env := tree.Environment()
	for _, file := range given.Post { // one at most; without it bitbake would make anew what build made
		env = append(env, "BBPOSTCONF="+file)
	}
	return Shell{Argv: argv, Dir: b.build, Env: env}, nil
}

// Become replaces this process with the command, so that the command has the terminal and its exit
// status is Slipway's. It returns only on an error.
func (s Shell) Become() error {
	env := s.mergedEnvironment()
	if err := os.Chdir(s.Dir); err != nil {
		return err
	}
	for _, v := range env {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil { // where the program is looked for
				return err
			}
		}
	}
	program, err := exec.LookPath(s.Argv[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, s.Argv, env)
}

// mergedEnvironment returns this process's environment, overwritten by the shell's.
func (s Shell) mergedEnvironment() []string {
	over := append([]string{"PWD=" + filepath.Clean(s.Dir)}, s.Env...)
	return (&exec.Cmd{Env: append(os.Environ(), over...)}).Environ()
}

// shellSign recognises a word that only a shell understands, and quoted a part that none does.
var (
	shellSign = plaintext.Regexp(`\||^(&&?|;|[0-9]*[<>].*)$|[;&]$|\$[A-Za-z({]|\x60`)
	quoted    = plaintext.Regexp(`'[^']*'|"[^"]*"`)
)

// splitWords splits a command line at spaces that are not within single or double quotes, and
// removes the quotes. No other character is special.
func splitWords(line string) ([]string, error) {
	var all []string
	var word strings.Builder
	begun, quote := false, rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			begun, quote = true, r
		case quote == 0 && unicode.IsSpace(r):
			if begun {
				all = append(all, word.String())
			}
			word.Reset()
			begun = false
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if quote != 0 {
		return nil, errors.New("the command has a quote that is not closed")
	}
	if begun {
		all = append(all, word.String())
	}
	return all, nil
}

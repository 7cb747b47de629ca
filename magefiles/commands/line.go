package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/layers/plaintext"
)

// usageError is a wrong command line, and the command to type next.
type usageError struct {
	what string
	next []string
}

func (w usageError) Error() string {
	next := programName()
	for _, word := range w.next {
		next += " " + plaintext.Quote(word)
	}
	return w.what + "\nnext: " + next
}

// ExitStatus is that of a wrong line, for Mage too.
func (usageError) ExitStatus() int { return 2 }

// wrongUse is another error of what the user typed or set.
type wrongUse struct{ error }

func (wrongUse) ExitStatus() int { return 2 }

// usageOf adds the command and its help to what is wrong with its line.
func usageOf(cmd *cobra.Command, err error) error {
	if errors.As(err, new(usageError)) {
		return err
	}
	path := pathOf(cmd)
	return usageError{strings.TrimLeft(strings.Join(path, " ")+": ", ": ") + err.Error(), append(path, "--help")}
}

// pathOf returns the names of a command, without the program's.
func pathOf(cmd *cobra.Command) (path []string) {
	for c := cmd; c.HasParent(); c = c.Parent() {
		path = append(path, c.Name())
	}
	slices.Reverse(path)
	return path
}

func unknownCommand(parent *cobra.Command, name string) error {
	what := fmt.Sprintf("unknown command %q", strings.Join(append(pathOf(parent), name), " "))
	next := append(pathOf(parent), "--help")
	if near := nearestCommand(parent, name); near != "" {
		what += ": did you mean " + near + "?"
	}
	return usageError{what, next}
}

// nearestCommand returns the commands that a wrong name below parent may mean.
func nearestCommand(parent *cobra.Command, name string) string {
	var known []string
	for _, c := range parent.Commands() {
		known = append(known, c.Name())
	}
	near := plaintext.Nearest(strings.ToLower(name), known)
	if near == "" {
		return ""
	}
	before := strings.Join(append(pathOf(parent), ""), " ")
	return before + strings.ReplaceAll(near, " or ", " or "+before)
}

// flagError says what is wrong with a flag.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var unknown *pflag.NotExistError
	var valueless *pflag.ValueRequiredError
	switch {
	case errors.As(err, &invalid) && errors.Is(err, errTwice):
		err = fmt.Errorf("--%s %w", invalid.GetFlag().Name, errTwice)
	case errors.As(err, &invalid):
		err = fmt.Errorf("--%s=%s: %w", invalid.GetFlag().Name, invalid.GetValue(), invalid.Unwrap())
	case errors.As(err, &unknown):
		err = fmt.Errorf("unknown flag \"--%s\"%s", unknown.GetSpecifiedName(), suggestFlag(cmd, unknown.GetSpecifiedName()))
	case errors.As(err, &valueless):
		err = fmt.Errorf("--%s has no value: write it as --%[1]s=VALUE", valueless.GetSpecifiedName())
	}
	return usageOf(cmd, err)
}

// suggestFlag suggests the flags that the user may have meant.
func suggestFlag(cmd *cobra.Command, name string) string {
	var known []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			known = append(known, "--"+f.Name)
		}
	})
	if len(known) == 0 {
		return ": the command has no flags"
	}
	if near := plaintext.Nearest("--"+name, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return ": the command has " + strings.Join(known, ", ")
}

// normalizeFlag lets flags be written as Mage's once were: --dryrun is --dry-run.
func normalizeFlag(fs *pflag.FlagSet, name string) pflag.NormalizedName {
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	for _, known := range dashedFlags {
		if plain(name) == plain(known) {
			return pflag.NormalizedName(known)
		}
	}
	return pflag.NormalizedName(strings.ToLower(name))
}

// dashedFlags are the flags of two words.
var dashedFlags = []string{
	"block-map", "board-limit", "dry-run", "force-recovery", "host-net", "no-reboot", "stop-after",
}

// modernLine returns a line as cobra takes it. It still takes lines as they were typed for Mage:
// deploy:files for deploy files, and flags with one dash.
func modernLine(root *cobra.Command, args []string) ([]string, error) {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	if end == 0 && len(args) > 0 {
		return nil, usageError{`"--" is not understood before a command`, []string{"--help"}}
	}
	line := slices.Clone(args[:end])
	for i, arg := range line {
		if strings.HasPrefix(arg, "-") && len(arg) > 2 && arg[1] != '-' {
			line[i] = "-" + arg
		}
	}
	if len(line) > 0 && strings.HasPrefix(line[0], "-") && !isHelp(line[0]) {
		return versionLine(root, append(line, args[end:]...))
	}
	if len(line) > 0 {
		group, name, found := strings.Cut(line[0], ":")
		switch {
		case strings.EqualFold(line[0], "deploy:board"):
			line[0] = group
		case found && hasCommand(root, group):
			line = slices.Concat([]string{group, name}, line[1:])
		}
	}
	cmd, _, err := root.Find(line)
	if err != nil {
		return nil, err
	}
	for i, arg := range line {
		if i+1 < len(line) && takesValue(cmd, arg) && strings.HasPrefix(line[i+1], "-") && len(line[i+1]) > 1 {
			return nil, usageOf(cmd, fmt.Errorf("%s has no value: write it as %[1]s=VALUE", arg))
		}
	}
	line = optionalWords(cmd, line)
	if i := slices.IndexFunc(line, isHelp); i > 0 {
		return append(pathOf(cmd), "--help"), nil
	}
	return append(line, args[end:]...), nil
}

// optionalWords makes --board=NAME, which Mage took for an optional BOARD, a word.
func optionalWords(cmd *cobra.Command, line []string) []string {
	for i, arg := range line {
		name, value, valued := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if valued && strings.HasPrefix(arg, "--") && cmd.Flag(name) == nil && strings.Contains(cmd.Use, " ["+strings.ToUpper(name)+"]") {
			line[i] = value
		}
	}
	return line
}

func isHelp(arg string) bool { return arg == "-h" || arg == "--h" || arg == "--help" }

func hasCommand(parent *cobra.Command, name string) bool {
	return slices.ContainsFunc(parent.Commands(), func(c *cobra.Command) bool { return strings.EqualFold(c.Name(), name) })
}

// takesValue reports whether arg is a flag whose value follows as the next word.
func takesValue(cmd *cobra.Command, arg string) bool {
	name, isFlag := strings.CutPrefix(arg, "--")
	if !isFlag || strings.Contains(name, "=") {
		return false
	}
	f := cmd.Flag(string(normalizeFlag(nil, name)))
	return f != nil && f.NoOptDefVal == ""
}

// versionLine refuses flags before the command, except --version.
func versionLine(root *cobra.Command, line []string) ([]string, error) {
	if line[0] == "--version" {
		return append([]string{"version"}, line[1:]...), nil
	}
	what := fmt.Sprintf("%q is not understood before a command", line[0])
	for i, arg := range line {
		if strings.HasPrefix(arg, "-") || !hasCommand(root, strings.SplitN(arg, ":", 2)[0]) {
			continue
		}
		right, err := modernLine(root, slices.Concat(line[i:], line[:i]))
		if err != nil || Parse(context.Background(), Root(), right) != nil {
			cmd, _, _ := root.Find([]string{arg})
			right = append(pathOf(cmd), "--help")
		}
		return nil, usageError{what + ": flags come after it", right}
	}
	return nil, usageError{what, []string{"--help"}}
}

// checkKey marks a context in which commands are checked and not run.
type checkKey struct{}

func checkOnly(cmd *cobra.Command) bool { return cmd.Context().Value(checkKey{}) != nil }

// Parse checks a line and starts nothing. root is from Root.
func Parse(ctx context.Context, root *cobra.Command, args []string) error {
	return execute(context.WithValue(ctx, checkKey{}, true), root, args)
}

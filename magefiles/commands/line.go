package commands

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"slipway/ci"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// usageError is the error for a wrong command line, with the words that the user should type next.
type usageError struct {
	what string
	next []string
}

// Error returns what is wrong, and the line to type: w.next, or help, after the program's name.
func (w usageError) Error() string {
	next := host.ProgramName()
	if len(w.next) == 0 {
		next += " help"
	}
	for _, word := range w.next {
		next += " " + plaintext.Quote(word)
	}
	return plaintext.Printable(w.what + "\nnext: " + next)
}

// ExitStatus returns 2, the status of a wrong command line. Mage calls it too.
func (usageError) ExitStatus() int { return 2 }

// wrongUse is an error in an environment variable of the user's.
type wrongUse struct{ error }

func (wrongUse) ExitStatus() int { return 2 }

// usageOf makes err a usageError, with the command's name and its help to type, if it is none yet.
func usageOf(cmd *cobra.Command, err error) error {
	if errors.As(err, new(usageError)) {
		return err
	}
	path := pathOf(cmd)
	return usageError{strings.TrimLeft(strings.Join(path, " ")+": ", ": ") + err.Error(), helpLine(path)}
}

// askYes returns a function that asks for "yes" and fails with refusal, or nil if the line answered.
// Without a terminal it returns refusal as a usageError, whose next line is a dry run if the refusal
// has a next step, else the command's help.
func (c *Command) askYes(answered bool, refusal string) (func(question string) error, error) {
	switch why, _, canTry := strings.Cut(refusal, "\nnext: "); {
	case answered:
		return nil, nil
	case !term.IsTerminal(int(os.Stdin.Fd())):
		what := strings.Join(pathOf(c.Command), " ") + ": standard input is no terminal, so nobody can type yes: " + why
		if canTry {
			return nil, usageError{what, append(slices.Clone(typedLine(c.Command)), "--dry-run")}
		}
		return nil, usageError{what, helpLine(pathOf(c.Command))}
	}
	return ci.AskYes(os.Stdin, stderr, refusal), nil
}

// pathOf returns the names of a command and its parents, without the program's name.
func pathOf(cmd *cobra.Command) (path []string) {
	for c := cmd; c.HasParent(); c = c.Parent() {
		path = append(path, c.Name())
	}
	slices.Reverse(path)
	return path
}

// helpLine returns the words that show a command's help. For the program that is "help", because
// Mage takes a --help without a command for its own.
func helpLine(path []string) []string {
	if len(path) == 0 {
		return []string{"help"}
	}
	return append(path, "--help")
}

//go:embed peers.txt
var peersText string

// peer returns Slipway's words for a command or flag of another program (peers.txt), or nil.
func peer(word string) []string {
	for line := range strings.Lines(peersText) {
		if fields := strings.Fields(line); fields[0] == word {
			return fields[1:]
		}
	}
	return nil
}

// unknownCommand returns the error for an unknown command below parent, with similar commands.
func unknownCommand(parent *cobra.Command, name string) error {
	shown := name
	if peer(name) != nil {
		shown = strings.ReplaceAll(name, "/", " ") // kas/shell
	}
	what := fmt.Sprintf("unknown command %q", strings.Join(append(pathOf(parent), shown), " "))
	next := helpLine(pathOf(parent))
	near := nearestCommand(parent, name)
	path := peer(strings.ToLower(strings.Join(append(pathOf(parent), name), "/")))
	if path == nil {
		path = peer(strings.ToLower(name))
	}
	if path != nil && (near == "" || !parent.HasParent()) {
		return usageError{what + ": Slipway's command for that is " + strings.Join(path, " "), helpLine(path)}
	}
	if near == "" {
		near = nearestOf(allBelow(parent.Root()), func(c *cobra.Command) bool { return c.Parent().HasParent() && c.Name() == strings.ToLower(name) })
	}
	if near != "" {
		what += ": did you mean " + near + "?"
		if !strings.Contains(near, " or ") {
			next = helpLine(strings.Fields(near))
		}
	}
	return usageError{what, next}
}

// allBelow returns all commands below parent.
func allBelow(parent *cobra.Command) (all []*cobra.Command) {
	for _, c := range parent.Commands() {
		all = append(append(all, c), allBelow(c)...)
	}
	return all
}

// nearestOf returns the paths of those in all for which means is true, joined by " or ".
func nearestOf(all []*cobra.Command, means func(*cobra.Command) bool) string {
	var near []string
	for _, c := range all {
		if means(c) {
			near = append(near, strings.Join(pathOf(c), " "))
		}
	}
	return strings.Join(near, " or ")
}

// nearestCommand returns the commands below parent that resemble a wrong name, joined by " or ".
func nearestCommand(parent *cobra.Command, name string) string {
	var known []string
	for _, c := range parent.Commands() {
		known = append(known, c.Name())
	}
	near := strings.Split(plaintext.Nearest(strings.ToLower(name), known), " or ")
	return nearestOf(parent.Commands(), func(c *cobra.Command) bool { return slices.Contains(near, c.Name()) })
}

// flagError turns an error of pflag into a usageError that says what is wrong with the flag.
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
		name := unknown.GetSpecifiedName()
		typed := "--" + name
		if short := unknown.GetSpecifiedShortnames(); short != "" { // -dryrun, of which pflag names only -d
			name, _, _ = strings.Cut(short, "=")
			typed = "-" + name
		}
		if isVerbose(typed) {
			line := slices.DeleteFunc(slices.Clone(typedLine(cmd)), isVerbose)
			return usageError{fmt.Sprintf("%s: %s: %s", strings.Join(pathOf(cmd), " "), typed, noLevels), line}
		}
		err = fmt.Errorf("unknown flag %q%s", typed, suggestFlag(cmd, name))
		line := swapFlag(cmd, typed, flagOfPeer(cmd, name))
		if _, words, other := strings.Cut(err.Error(), "Slipway's command for that is "); other {
			line = helpLine(strings.Fields(words))
		}
		if line != nil {
			return usageError{strings.Join(pathOf(cmd), " ") + ": " + err.Error(), line}
		}
	case errors.As(err, &valueless):
		err = fmt.Errorf("--%s has no value: write it as --%[1]s=VALUE", valueless.GetSpecifiedName())
	}
	return usageOf(cmd, err)
}

// suggestFlag returns the end of an error about an unknown flag: what was meant, or all flags.
func suggestFlag(cmd *cobra.Command, name string) string {
	var known []string
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			known = append(known, "--"+f.Name)
		}
	})
	if flag := flagOfPeer(cmd, name); flag != "" {
		return ": Slipway's flag for that is " + flag
	}
	if words := peer("--" + name); words != nil && !strings.HasPrefix(words[0], "-") {
		return ": Slipway's command for that is " + strings.Join(words, " ")
	}
	if question := plaintext.DidYouMean("--"+strings.ToLower(name), append(known, "--help")); question != "" {
		return question
	}
	_, words, _ := strings.Cut(cmd.Use, " ")
	return ": the command has " + cmp.Or(strings.Join(known, ", "), "no flags") + plaintext.Either(words == "", "", ", and takes "+words)
}

// flagOfPeer returns the command's flag for one of another program (peers.txt), or "".
func flagOfPeer(cmd *cobra.Command, name string) string {
	for _, flag := range append(peer("--"+name), peer("-"+name)...) {
		if cmd.LocalFlags().Lookup(strings.TrimLeft(flag, "-")) != nil {
			return flag
		}
	}
	return ""
}

// swapFlag returns the user's line with the flag ours in place of typed, nil if that is no line. No
// line confirms by --yes what the user did not.
func swapFlag(cmd *cobra.Command, typed, ours string) (line []string) {
	line = slices.Clone(typedLine(cmd))
	for i, arg := range line {
		if arg == "--" { // the rest is the user's program
			break
		}
		if name, _, _ := strings.Cut(arg, "="); name == typed {
			line[i] = ours + arg[len(name):]
		}
	}
	if ours == "" || ours == "--yes" || Parse(context.Background(), Root(), line) != nil {
		return nil
	}
	return line
}

// translateLine translates other requests for help and the version into cobra's commands. It refuses
// unknown commands and misplaced flags, before cobra parses the line.
func translateLine(root *cobra.Command, args []string) ([]string, error) {
	end := slices.Index(args, "--")
	if end < 0 {
		end = len(args)
	}
	if end == 0 && len(args) > 0 {
		return nil, usageError{`"--" is not understood before a command`, helpLine(nil)}
	}
	line, after := slices.Clone(args[:end]), args[end:]
	switch {
	case len(line) == 0:
		return []string{}, nil // cobra would take the program's own line for nil
	case isHelp(line[0]), strings.EqualFold(line[0], "help") && !slices.ContainsFunc(line[1:min(2, len(line))], isHelp):
		line = append([]string{"help"}, slices.DeleteFunc(line[1:], isHelp)...)
	case line[0] == "--version", len(args) == 1 && line[0] == "-v":
		line[0] = "version"
	case isVerbose(line[0]):
		return nil, usageError{args[0] + ": " + noLevels, append(slices.DeleteFunc(line, isVerbose), after...)}
	case strings.HasPrefix(line[0], "-"):
		return nil, misplacedFlag(root, root, slices.Concat(line, after))
	}
	if err := checkCommandNames(root, line, after); err != nil {
		return nil, err
	}
	cmd, _, err := root.Find(line)
	if err != nil {
		return nil, err
	}
	if err := checkFlagValues(cmd, line, len(after) > 0); err != nil {
		return nil, usageOf(cmd, err)
	}
	if slices.ContainsFunc(line[1:], isHelp) {
		return append(pathOf(cmd), "--help"), nil
	}
	return append(line, after...), nil
}

// checkCommandNames refuses unknown commands and subcommands, and a flag or "--" before them: cobra
// has other errors for these. line ends before "--", and after begins with that.
func checkCommandNames(root *cobra.Command, line, after []string) error {
	cmd, rest := commandBelow(root, line[0]), line[1:]
	switch {
	case cmd == nil && len(rest) > 0 && peer(line[0]+"/"+rest[0]) != nil: // kas shell
		return unknownCommand(root, line[0]+"/"+rest[0])
	case cmd == nil:
		return unknownCommand(root, line[0])
	case !cmd.HasSubCommands():
		return nil
	case len(rest) == 0:
		if len(after) > 0 {
			return usageOf(cmd, errors.New(`"--" is not understood before a command`))
		}
		return nil
	}
	_, words, _ := strings.Cut(cmd.Use, " ")
	name, _, _ := strings.Cut(strings.TrimLeft(rest[0], "-"), "=")
	switch first := rest[0]; {
	case isHelp(first) || commandBelow(cmd, first) != nil:
		return nil
	case strings.HasPrefix(first, "-"):
		follows := slices.ContainsFunc(rest, func(arg string) bool { return commandBelow(cmd, arg) != nil })
		if cmd.Flag(name) != nil || words != "" && !follows || slices.ContainsFunc(rest, isHelp) {
			return nil
		}
		return misplacedFlag(root, cmd, slices.Concat(rest, after))
	case words == "" || isTypo(cmd, first):
		return unknownCommand(cmd, first)
	}
	return nil
}

// isTypo reports whether a word is no board, but resembles a command below cmd.
func isTypo(cmd *cobra.Command, board string) bool {
	_, err := images.Load(board)
	return err != nil && nearestCommand(cmd, board) != ""
}

// checkFlagValues refuses flags whose value would be ambiguous: a missing value before another flag
// or "--" (dashes), and true or false as a word of its own after a boolean flag.
func checkFlagValues(cmd *cobra.Command, line []string, dashes bool) error {
	for i, arg := range line {
		f, next := flagOf(cmd, arg), ""
		if i+1 < len(line) {
			next = line[i+1]
		}
		_, noBool := strconv.ParseBool(next)
		switch {
		case f == nil:
		case f.NoOptDefVal == "" && (strings.HasPrefix(next, "-") && len(next) > 1 || i+1 == len(line) && dashes):
			return fmt.Errorf("%s has no value: write it as %[1]s=VALUE", arg)
		case f.Value.Type() == "bool" && noBool == nil:
			return fmt.Errorf("%s %s: write it as %[1]s=%s", arg, next)
		}
	}
	return nil
}

// flagOf returns the flag that an arg --NAME names, or nil. An arg with "=VALUE" counts as none.
func flagOf(cmd *cobra.Command, arg string) *pflag.Flag {
	name, isFlag := strings.CutPrefix(arg, "--")
	if !isFlag || strings.Contains(name, "=") {
		return nil
	}
	return cmd.Flag(name)
}

// isVerbose reports whether arg is a flag by which other programs print more or less, such as -v.
func isVerbose(arg string) bool {
	switch strings.TrimLeft(arg, "-") {
	case "v", "vv", "vvv", "verbose", "d", "debug", "q", "quiet":
		return strings.HasPrefix(arg, "-")
	}
	return false
}

const noLevels = "the output has no levels; all that programs say is in the logs below build/"

func isHelp(arg string) bool { return arg == "-h" || arg == "-help" || arg == "--help" }

// commandBelow returns the command of a name directly below parent, ignoring case, or nil.
func commandBelow(parent *cobra.Command, name string) *cobra.Command {
	all := parent.Commands()
	if i := slices.IndexFunc(all, func(c *cobra.Command) bool { return strings.EqualFold(c.Name(), name) }); i >= 0 {
		return all[i]
	}
	return nil
}

// misplacedFlag returns the error for a flag before its command, with the corrected line. parent is
// the command before the flag, and line is the rest from the flag on.
func misplacedFlag(root, parent *cobra.Command, line []string) error {
	what := fmt.Sprintf("%q is not understood before a command", line[0])
	path := pathOf(parent)
	if len(path) > 0 {
		what = strings.Join(path, " ") + ": " + what
	}
	for i, arg := range line {
		cmd := commandBelow(parent, arg)
		if strings.HasPrefix(arg, "-") || cmd == nil {
			continue
		}
		right, err := translateLine(root, slices.Concat(path, line[i:], line[:i]))
		if err != nil || Parse(context.Background(), Root(), right) != nil {
			right = append(pathOf(cmd), "--help")
		}
		return usageError{what + ": flags come after it", right}
	}
	return usageError{what, helpLine(path)}
}

// checkKey is the context key by which Parse makes commands check a line without running.
type checkKey struct{}

func checkOnly(cmd *cobra.Command) bool { return cmd.Context().Value(checkKey{}) != nil }

// Parse checks a line and runs nothing. root is a result of Root.
func Parse(ctx context.Context, root *cobra.Command, args []string) error {
	return Run(context.WithValue(ctx, checkKey{}, true), root, args)
}

// Package commands defines Slipway's command lines: the words, flags, help and work of each
// command. The work itself is in the packages that they call.
package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/progress"
)

// Command is a command that checks its words and flags before it starts anything.
type Command struct {
	*cobra.Command
	// Run does the work. words has one element for each word of the usage line, empty if an
	// optional one is missing, or all words if the last one may be repeated.
	Run func(ctx context.Context, words []string) error
	// check refuses combinations of words and flags.
	check func(words []string) error
	words []word
	rest  bool     // the command takes words after "--"
	after []string // those words
	exits []exit
	below []*Command
	// inContext adds flags of the line to the context in which Run works.
	inContext []func(context.Context) context.Context
}

// word describes one word of a usage line, such as BOARD.
type word struct {
	name     string // as BOARD
	optional bool
	repeated bool
	list     bool     // names with commas between them
	choices  []string // all that it can be; none is anything
}

// New returns a command with a usage line such as "name WORD [OPTIONAL]", "name FILE...", "name
// WORD[,WORD]" or "name WORD [-- COMMAND...]", from which the command's words are read.
func New(use, short string) *Command {
	c := &Command{Command: &cobra.Command{Use: use, Short: short, DisableFlagsInUseLine: true}}
	fields := strings.Fields(use)[1:]
	if i := slices.Index(fields, "[--"); i >= 0 {
		c.rest, fields = true, fields[:i]
	}
	for _, field := range fields {
		name, _, list := strings.Cut(field, "[,")
		name, optional := strings.CutPrefix(strings.TrimSuffix(name, "]"), "[")
		name, repeated := strings.CutSuffix(name, "...")
		c.words = append(c.words, word{name: name, optional: optional, repeated: repeated, list: list || repeated})
	}
	c.Args = cobra.ArbitraryArgs // RunE refuses the wrong ones
	c.RunE = c.runLine
	c.ValidArgsFunction = c.completeWord
	c.SetHelpFunc(func(*cobra.Command, []string) { c.printHelp() })
	return c
}

// newGroup returns a command without work of its own, which only has the commands below.
func newGroup(name, short string, below ...*Command) *Command {
	g := New(name, short)
	g.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	return g.with(below...)
}

// with adds commands below this one and returns this one.
func (c *Command) with(below ...*Command) *Command {
	for _, b := range below {
		c.AddCommand(b.Command)
	}
	c.below = append(c.below, below...)
	return c
}

// section adds commands below this one, under a title of their own in the help's list.
func (c *Command) section(title string, below ...*Command) {
	c.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, b := range below {
		b.GroupID = title
	}
	c.with(below...)
}

// runLine checks a line's words and flags, and runs the command with progress. For Parse it only
// checks them. Otherwise it calls host.SetTyped, so that next steps can repeat the line.
func (c *Command) runLine(cmd *cobra.Command, args []string) error {
	words, err := c.readWords(args)
	if err == nil && c.check != nil {
		err = c.check(words)
	}
	if err == nil {
		err = c.swappedWords(words)
	}
	if err != nil {
		return usageOf(cmd, err)
	}
	if checkOnly(cmd) {
		return nil
	}
	if err := useBoards(cmd); err != nil {
		return err
	}
	host.SetTyped(typedLine(cmd))
	reporter, err := newReporter()
	if err != nil {
		return err
	}
	defer reporter.Close()
	ctx := progress.With(cmd.Context(), reporter)
	for _, with := range c.inContext {
		ctx = with(ctx)
	}
	return withStatus(withStep(cmd, c.Run(ctx, words)))
}

// swappedWords refuses an inventory or an address in the place of BOARD with the board behind it,
// with the right line.
func (c *Command) swappedWords(words []string) error {
	if len(words) < 2 || len(c.words) < 2 || words[0] == "" || isFile(words[1]) || !slices.Contains([]string{"HOST", "INVENTORY"}, c.words[1].name) {
		return nil
	}
	_, err := images.LoadBuilt(words[1])
	if err != nil || !strings.Contains(words[0], "@") && (c.words[1].name != "INVENTORY" || !isFile(words[0])) {
		return nil
	}
	line := slices.Concat(pathOf(c.Command), []string{words[1], words[0]}, words[2:], c.typedFlags(words...))
	return usageError{fmt.Sprintf("%s: %s is a board, and stands after %s: %s", strings.Join(pathOf(c.Command), " "), words[1], words[0], c.takes()), line}
}

// readWords assigns args to the usage line's words, and checks each. c.after gets those after "--".
func (c *Command) readWords(args []string) ([]string, error) {
	if at := c.ArgsLenAtDash(); at >= 0 {
		c.after, args = args[at:], args[:at]
		switch {
		case !c.rest:
			return nil, fmt.Errorf("\"--\" is not understood: the command takes no words after it")
		case len(c.after) == 0:
			return nil, fmt.Errorf("no word after \"--\"")
		}
	}
	words, err := c.assignWords(args)
	if err != nil {
		return nil, err
	}
	for i, text := range words {
		if w := c.words[min(i, len(c.words)-1)]; !w.optional || text != "" {
			err := w.checkText(text)
			if right, ok := errors.AsType[boardssh.PasswordError](err); ok {
				return nil, usageError{strings.Join(pathOf(c.Command), " ") + ": " + err.Error(), swapWord(typedLine(c.Command), text, string(right))}
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return words, nil
}

// checkText returns an error for "-", a blank name, a host that is none, or a text that is none of
// the word's choices.
func (w word) checkText(text string) error {
	if text == "-" {
		return fmt.Errorf("%s %q: this is no name", w.name, text)
	}
	if len(w.choices) > 0 && !slices.Contains(w.choices, text) {
		return fmt.Errorf("%s %q: want %s", w.name, text, strings.Join(w.choices, ", "))
	}
	if err := checkNames(w.name, text, w.list); err != nil || w.name != "HOST" {
		return err
	}
	return boardssh.CheckHost(text)
}

// OneOf limits the values of the command's first word.
func (c *Command) OneOf(all []string) { c.words[0].choices = all }

// assignWords assigns args to the words of the usage line, in order. An optional word stays empty if
// there are only enough args for the required words. A repeated word appends all that remain.
func (c *Command) assignWords(args []string) ([]string, error) {
	spare := len(args)
	for _, w := range c.words {
		if !w.optional {
			spare--
		}
	}
	var words []string
	for _, w := range c.words {
		switch {
		case w.repeated && len(args) > 0:
			words, args = append(words, args...), nil
		case w.optional && spare <= 0:
			words = append(words, "")
		case len(args) == 0:
			return nil, c.missingWord(w)
		default:
			if args[0] == "" {
				return nil, fmt.Errorf("%s is empty: is a variable of your script not set?", w.name)
			}
			words, args = append(words, args[0]), args[1:]
			if w.optional {
				spare--
			}
		}
	}
	if len(args) > 0 {
		return nil, c.strayWord(args, words)
	}
	return words, nil
}

// missingWord returns the error for a missing word, with its choices or a hint.
func (c *Command) missingWord(w word) error {
	if len(w.choices) > 0 {
		return fmt.Errorf("%s is missing: want %s", w.name, strings.Join(w.choices, ", "))
	}
	if hint := cmp.Or(hints[c.Parent().Name()+" "+w.name], hints[w.name]); hint != "" {
		return fmt.Errorf("%s is missing (%s): %s", w.name, hint, c.takes())
	}
	return fmt.Errorf("%s is missing: %s", w.name, c.takes())
}

// strayWord returns the error for strays, typed after all of words, with the user's likely mistake.
func (c *Command) strayWord(strays, words []string) error {
	stray, last := strays[0], len(words)-1
	if line := flashLine(words, strays); line != nil && c.Name() == "flash" {
		return usageError{fmt.Sprintf("flash: %q is one word too many: an image is a value of --image", stray), append(line, c.typedFlags(append(words, strays...)...)...)}
	}
	if last >= 0 && c.words[last].list && isDevice(words[last]) && !slices.ContainsFunc(strays, func(name string) bool { return !isDevice(name) }) {
		all := words[last]
		for i, name := range strays {
			if name != words[last] && !slices.Contains(strays[:i], name) {
				all += "," + name
			}
		}
		line := append(pathOf(c.Command), append(words[:last:last], all)...)
		return usageError{fmt.Sprintf("%s: %q is one word too many: write several devices with commas between them", strings.Join(pathOf(c.Command), " "), stray), append(line, c.typedFlags(append(words, strays...)...)...)}
	}
	if f := c.bareFlag(); f != "" {
		return fmt.Errorf("%q is one word too many: write a value of --%s as --%[2]s=%[1]s", stray, f)
	}
	isProject := func(name string) bool { return slices.Contains([]string{".yml", ".yaml"}, filepath.Ext(name)) }
	if last >= 0 && c.words[last].name == "BOARD" && isProject(words[last]) && isProject(stray) {
		return fmt.Errorf("%q is one word too many: write the project files as one word, %s:%[1]s", stray, words[last])
	}
	for _, text := range append(words, stray) {
		if near := nearestCommand(c.Command, text); near != "" {
			return fmt.Errorf("%q is one word too many: did you mean %s?", stray, near)
		}
	}
	return fmt.Errorf("%q is one word too many: %s", stray, c.takes())
}

// bareFlag returns the name of a flag that was typed without a value although it may have one.
func (c *Command) bareFlag() (name string) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() != "bool" && f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal {
			name = f.Name
		}
	})
	return name
}

// takes returns the phrase "it takes WORDS" for error messages.
func (c *Command) takes() string {
	_, words, _ := strings.Cut(c.Use, " ")
	if words == "" {
		words = "no words"
	}
	return "it takes " + words
}

// hints say, by the name of a word, where a user finds a value for it.
var hints = map[string]string{
	"BOARD": "boards lists them", "DEVICE": "devices lists them", "HOST": "the board's address", "INVENTORY": "an Ansible inventory",
	"BUNDLE": "a file for the board's engine", "deploy IMAGE": "an archive, a layout or oci://", "FOLDER": "one of this machine", "DEST": "a folder on the board",
}

package commands

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	suites "slipway/ci/suite"
	"slipway/flash/device"
	"slipway/images"
)

// complete registers the values that a shell suggests for a flag, also in a list with commas, and
// whether it suggests file names too.
func (c *Command) complete(flag string, values func(args []string) []string, others cobra.ShellCompDirective) {
	_ = c.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		return completeLast(toComplete, values(args)), others
	})
}

// completeWord obeys --boards and returns suggestions for a line's next word, or else file names.
func (c *Command) completeWord(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	_ = useBoards(cmd) // a shell asks for names, not for errors
	i := len(args)
	if len(c.words) > 0 && c.words[len(c.words)-1].repeated {
		i = min(i, len(c.words)-1)
	}
	if i >= len(c.words) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	switch w := c.words[i]; {
	case len(w.choices) > 0:
		return w.choices, cobra.ShellCompDirectiveNoFileComp
	case w.name == "BOARD", w.name == "ARTIFACT":
		boards, _ := images.Boards()
		return boards, cobra.ShellCompDirectiveDefault // a project file is one too
	case w.name == "DEVICE" && cmd.Parent().Name() == "rshim":
		names := slices.DeleteFunc(deviceNames(cmd.Context()), func(name string) bool { return !strings.HasPrefix(name, "/dev/rshim") })
		return completeLast(toComplete, names), cobra.ShellCompDirectiveNoFileComp
	case w.name == "DEVICE":
		return completeLast(toComplete, deviceNames(cmd.Context())), cobra.ShellCompDirectiveDefault
	case w.name == "HOST":
		return virtualBoards(), cobra.ShellCompDirectiveNoFileComp // reached by its name while it is on
	case w.name == "COMMAND":
		return commandNames(cmd.Root(), args), cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// completeLast returns names as suggestions for the last part of a list with commas.
func completeLast(toComplete string, names []string) (all []string) {
	before := toComplete[:strings.LastIndex(toComplete, ",")+1]
	for _, name := range names {
		all = append(all, before+name)
	}
	return all
}

// deviceNames returns the paths of this machine's devices, with their models; none on an error.
func deviceNames(ctx context.Context) (all []string) {
	found, err := device.List(ctx)
	if err != nil {
		return nil
	}
	for _, d := range found {
		all = append(all, cobra.CompletionWithDesc(d.Path, d.Model))
	}
	return all
}

// virtualBoards returns the names of the boards that are virtual machines.
func virtualBoards() (all []string) {
	boards, _ := images.Boards() // a shell asks for names, not for errors
	for _, name := range boards {
		if spec, err := images.Load(name); err == nil && spec.Machine != nil {
			all = append(all, name)
		}
	}
	return all
}

func suiteNames([]string) []string {
	names, _ := suites.AllNames() // a shell asks for names, not for errors
	return names
}

// commandNames returns the names and texts of the commands below a path, none for a wrong path.
func commandNames(root *cobra.Command, path []string) (all []string) {
	cmd, rest, err := root.Find(path)
	if err != nil || len(rest) > 0 {
		return nil
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, cobra.CompletionWithDesc(c.Name(), c.Short))
		}
	}
	return all
}

package commands

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"slipway/ci"
	"slipway/ci/report"
	"slipway/images"
	"slipway/images/starter"
	"slipway/layers/plaintext"
)

// initCommand returns the command init, which writes the files of a user's own project.
func initCommand() *Command {
	c := New("init [FOLDER]", "Write the files of a project of your own")
	c.Long = `Without FOLDER it takes the current folder. It makes FOLDER if it is missing. It writes:
- boards/NAME/board.yml, with kas.yml and its pinned layers if bitbake builds the board
- suites/product.yml, a suite for what your product does
- README.md and .gitignore
- with --ci, a pipeline, and a script that downloads Slipway and verifies its signature

In an existing project, --ci without --like adds the missing files of a pipeline.

Slipway replaces no file. A README.md and a .gitignore of yours stay as they are. If another file
exists already, or if you stop it, it writes nothing. At the end it lists the lines that only you
can complete, and the next commands.`
	c.Example = `slipway init lab --like=jetson-orin-nano-devkit --ci=github
slipway init --like=virt --name=virt-lab --dry-run
slipway init --ci=gitlab  # add a pipeline to this project`
	like := c.optionalLike()
	name := c.Text("name=NAME", "", "the board's name; that of --like with -lab if not given")
	pipelines := c.pipelines()
	opt := c.projectOptions()
	c.check = func([]string) error {
		if *like == "" && len(*pipelines) == 0 {
			return errNoLike
		}
		return nil
	}
	c.RunSignalled(func(ctx context.Context, words []string) error {
		folder := plaintext.Either(words[0] == "", ".", words[0])
		return ci.InitProject(ctx, stdout, folder, starter.Request{Like: *like, Name: *name, Pipelines: *pipelines}, opt())
	})
	return c
}

func boardNewCommand() *Command {
	c := New("new NAME", "Add a board to your project")
	c.Long = `The project is the nearest folder with boards/BOARD/board.yml, here or above. Slipway replaces no
file. A board like another one of your project has its layers and suites.`
	c.Example = `slipway board new orin-rack --like=orin-lab
slipway board new orin-nvme --like=jetson-orin-nano-devkit-nvme --dry-run`
	like := c.like()
	opt := c.projectOptions()
	c.RunSignalled(func(ctx context.Context, words []string) error {
		return ci.AddBoard(ctx, stdout, words[0], *like, opt())
	})
	return c
}

func boardCheckCommand() *Command {
	c := New("check", "Read all boards of your project with their suites and layers")
	c.Long = `It asks no server. It also lists the lines that only you can complete: those with EDIT ME. doctor
looks at this machine too. In a job of GitHub, it prints annotations for these lines.`
	c.Example = `slipway board check
slipway board check --code-quality=code-quality.json  # in a job of GitLab`
	asJSON := c.Switch("json", "print the boards and the lines to edit as JSON")
	quality := c.Text("code-quality=FILE", "", "write faults, and the lines to edit, as a GitLab code quality report")
	c.exits = []exit{exitBoardFile}
	c.RunSignalled(func(ctx context.Context, _ []string) error {
		return report.Because(ctx, report.ErrWrong, ci.CheckProject(ctx, stdout, options, ci.CheckOptions{JSON: *asJSON, Quality: *quality}))
	})
	return c
}

// like adds the required flag --like, which names the board to extend. It sets c.check.
func (c *Command) like() *string {
	like := c.optionalLike()
	c.check = func([]string) error {
		if *like == "" {
			return errNoLike
		}
		return nil
	}
	return like
}

var errNoLike = errors.New("--like is missing (boards lists them)")

// optionalLike adds the flag --like, and the exit status of an unknown board.
func (c *Command) optionalLike() *string {
	c.exits = append(c.exits, exitBoardFile)
	like := c.Text("like=BOARD", "", "the board that the new one extends, and takes its layers from; boards lists them")
	c.complete("like", func([]string) []string { all, _ := images.Boards(); return all }, cobra.ShellCompDirectiveNoFileComp)
	return like
}

// pipelines adds the flag --ci, which names the CI servers to write a pipeline for.
func (c *Command) pipelines() *[]string {
	servers := slices.Sorted(maps.Keys(starter.Pipelines))
	var value []string
	c.addFlag("ci", "write a pipeline for these servers, with commas between them", strings.Join(servers, "|"), func(text string) error {
		for _, name := range strings.Split(text, ",") {
			if !slices.Contains(servers, name) {
				return fmt.Errorf("want %s", strings.Join(servers, ", "))
			}
			value = append(value, name)
		}
		return nil
	})
	c.complete("ci", func([]string) []string { return servers }, cobra.ShellCompDirectiveNoFileComp)
	return &value
}

// projectOptions adds the flags --dry-run and --json of commands that write a project's files, and
// returns a function that reads them.
func (c *Command) projectOptions() func() ci.ProjectOptions {
	dryRun := c.Switch("dry-run", "list the files, and write none")
	asJSON := c.Switch("json", "print the files, the lines to edit and the next commands as JSON")
	return func() ci.ProjectOptions { return ci.ProjectOptions{DryRun: *dryRun, JSON: *asJSON} }
}

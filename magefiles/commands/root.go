package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Root returns a new tree of all commands. extra are added as commands for Slipway's own source.
func Root(extra ...*Command) *cobra.Command { return newRoot(extra...).Command }

// newRoot builds the tree of all commands. With extra, it sets host.IsCommand to find these too.
func newRoot(extra ...*Command) *Command {
	help := helpCommand()
	root := New("slipway", "Build images for Jetsons and BlueFields, put them on boards, and prove that they work")
	cobra.EnableCaseInsensitive = true
	root.SilenceErrors, root.SilenceUsage = true, true
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	root.section(
		"Images", upCommand(), initCommand(),
		newGroup("board", "Add and check boards of your own project", boardNewCommand(), boardCheckCommand()), boardsCommand(), doctorCommand(),
		newGroup("layers", "Work on the repositories from which bitbake builds a board",
			layersCheckoutCommand(), layersStatusCommand(), layersLockCommand(), layersDiffCommand(), layersDumpCommand(), layersShellCommand()), buildCommand(),
		auditCommand(), evidenceCommand(), pushCommand(), pullCommand(),
		newGroup("store", "List and clean the artifacts of a store", storeListCommand(), storeReportsCommand(), storeCleanCommand()),
		newGroup("cache", "Share bitbake's results between machines", cacheServeCommand()),
		newGroup("ci", "Plan the jobs of a pipeline for a change", ciPlanCommand()),
	)
	root.section("Devices", devicesCommand(), flashCommand(), readCommand(), placeGroup(), bmapCommand(),
		newGroup("bfb", "Work on BlueField boot streams",
			bfbListCommand(), bfbCheckCommand(), bfbMakeCommand(), bfbExtractCommand()),
		newGroup("rshim", "Look at BlueField DPUs through their rshims", rshimShowCommand()))
	root.section(
		"Running boards", deployGroup(), updateCommand(), smokeCommand(), suitesCommand(),
		reportCommand(), trendsCommand(),
		newGroup("fleet", "Work on many boards at once",
			fleetListCommand(), fleetPinCommand(), fleetDeployCommand(), fleetUpdateCommand(), fleetSmokeCommand(), fleetRunCommand()),
		newGroup("virt", "Look around on a virtual board", virtStartCommand(), virtStopCommand(), virtSSHCommand(), virtConsoleCommand()),
		newGroup("rig", "See a DPU's software work without a DPU", rigUpCommand(), rigBuildCommand(), rigDownCommand(), rigSSHCommand()),
	)
	root.section("Several machines", hubGroup(), joinCommand(), stationGroup(), jobGroup(), rolloutGroup())
	root.section("Others", versionCommand(), completionCommand(), help)
	if len(extra) > 0 {
		root.section("Slipway's source", extra...)
		host.IsCommand = func(word string) bool { return commandBelow(root.Command, word) != nil }
	}
	root.SetHelpCommand(help.Command)
	root.SetHelpCommandGroupID(help.GroupID)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().Var(&flagValue{kind: "FOLDER", set: checkNotBlank}, boardsFlag, "the folder of your own boards (or SLIPWAY_BOARDS); boards/ here or above if not given")
	return root
}

// boardsFlag is the flag with the folder of the user's own boards.
const boardsFlag = "boards"

// useBoards sets SLIPWAY_BOARDS, for this process and its children, from the flag --boards. It
// returns an error for a folder without boards, and does nothing without the flag.
func useBoards(cmd *cobra.Command) error {
	if f := cmd.Root().PersistentFlags().Lookup(boardsFlag); f.Changed {
		folder := f.Value.String()
		if len(images.BoardsIn(folder)) == 0 {
			return wrongUse{fmt.Errorf("--%s=%s: no board there: want BOARD/board.yml in it\nnext: ls %s", boardsFlag, folder, plaintext.Quote(localfile.NearestFolder(folder+"/x")))}
		}
		return os.Setenv(images.BoardsVariable, folder)
	}
	return nil
}

func deployGroup() *Command {
	return deployCommand().with(deployContainerCommand(), deployRunCommand(), deployCleanCommand(),
		deployFilesCommand(), deployServiceCommand(), deployConfigCommand(), deployUndoCommand())
}

// Run checks the environment and a line, unless a shell completes it, and runs it. root is Root's.
func Run(ctx context.Context, root *cobra.Command, args []string) error {
	if !completes(args) {
		if err := cmp.Or(progress.Check(), host.CheckInstall(), boardssh.CheckSettings(ctx)); err != nil {
			return wrongUse{err}
		}
		line, err := translateLine(root, args)
		if err != nil {
			return err
		}
		args = line
	} else {
		allowRepeats(root)
	}
	root.SetArgs(args)
	return root.ExecuteContext(context.WithValue(ctx, typedKey{}, args))
}

// allowRepeats allows each flag of cmd and below to be set twice: cobra parses a line twice to
// complete it.
func allowRepeats(cmd *cobra.Command) {
	allow := func(f *pflag.Flag) {
		if v, ok := f.Value.(*flagValue); ok {
			v.often = true
		}
	}
	cmd.PersistentFlags().VisitAll(allow)
	cmd.Flags().VisitAll(allow)
	for _, c := range cmd.Commands() {
		allowRepeats(c)
	}
}

// completes reports whether args are a shell's request for completions.
func completes(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// Main runs a command line, prints its error, tells the CI server, and returns the exit status.
func Main(args []string, stderr io.Writer) int {
	err := Run(context.Background(), Root(), args)
	if err == nil {
		return 0
	}
	text, next, found := cutLast(plaintext.Printable(err.Error()), "\nnext: ")
	fmt.Fprintln(stderr, plaintext.Bad.On(stderr, "Error:"), text)
	if found {
		fmt.Fprintln(stderr, "next:", plaintext.Next.On(stderr, next))
	}
	TellServer(args, err, stderr)
	return StatusOf(err)
}

// TellServer prints an error in the CI server's own format, if any. Main and Mage print the text.
func TellServer(args []string, err error, stderr io.Writer) {
	if err == nil {
		return
	}
	text, next, _ := cutLast(err.Error(), "\nnext: ")
	if err := report.ShowFailed(stderr, commandOf(args), text, next); err != nil {
		fmt.Fprintln(stderr, "Warning:", err)
	}
}

// commandOf returns slipway and a line up to its first flag, for a CI server: a flag may be secret.
func commandOf(args []string) string {
	words := []string{"slipway"}
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			break
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}

// StatusOf returns the exit status of a command's error.
func StatusOf(err error) int {
	if s, ok := err.(interface{ ExitStatus() int }); ok { // Mage too asks only the outermost error
		return s.ExitStatus()
	}
	return report.ExitStatus(err)
}

func helpCommand() *Command {
	c := New("help [COMMAND...]", "Explain a command")
	c.Example = "slipway help flash\nslipway help deploy files"
	find := func(words []string) (*cobra.Command, error) {
		cmd, rest, err := c.Root().Find(words)
		if err == nil && len(rest) > 0 && rest[0] != "" {
			err = unknownCommand(cmd, strings.Join(rest, " "))
		}
		return cmd, err
	}
	c.check = func(words []string) error {
		_, err := find(words)
		return err
	}
	c.Run = func(_ context.Context, words []string) error {
		cmd, err := find(words)
		return runUnlessFailed(err, cmd.Help)
	}
	return c
}

func completionCommand() *Command {
	c := New("completion SHELL", "Print the completion script for a shell")
	c.Long = `bash also needs the package bash-completion.`
	c.OneOf([]string{"bash", "zsh", "fish"})
	c.Example = `source <(slipway completion bash)
slipway completion zsh > ~/.zfunc/_slipway  # a folder of fpath
slipway completion fish > ~/.config/fish/completions/slipway.fish`
	c.Run = func(_ context.Context, words []string) error {
		root := c.Root()
		switch words[0] {
		case "bash":
			return root.GenBashCompletionV2(os.Stdout, true)
		case "zsh":
			return root.GenZshCompletion(os.Stdout)
		}
		return root.GenFishCompletion(os.Stdout, true)
	}
	return c
}

func versionCommand() *Command {
	c := New("version", "Print the version of Slipway, and the commit that it was compiled from")
	c.Long = `It prints the version, the commit and the release of Go. A development build is of
no release. "unknown" means that the value was not recorded. For the commit, compile with
-buildvcs=true in a clone. Reports and artifacts name the same version and commit. The modules of
a program are in "go version -m slipway".`
	c.Example = `slipway version
slipway version --json`
	asJSON := c.Switch("json", "print it as JSON")
	c.Run = func(_ context.Context, _ []string) error {
		v := version{images.ThisProgram(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
		if *asJSON {
			return printJSON(v)
		}
		_, err := fmt.Fprintf(stdout, "slipway %s\n%s, %s\n", v.Program, v.Go, v.Platform)
		return err
	}
	return c
}

// version is what the command version prints of this program.
type version struct {
	images.Program
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

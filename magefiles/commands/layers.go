package commands

import (
	"context"

	"slipway/images"
	"slipway/images/builder"
	"slipway/images/cache"
	"slipway/layers/progress"
)

// orProjectFile is the sentence in the help of commands whose BOARD may also be a project file.
const orProjectFile = `BOARD is a name, or a project file of kas or bitbake-setup.`

func layersCheckoutCommand() *Command {
	c := New("checkout BOARD", "Fetch a board's layers and check out the commits that it names")
	c.Long = `The checkouts are below build/<board>/layers. Slipway writes bitbake's conf folder beside
them. It does not touch files that you changed in them, and stops at commits of yours. build
does the same first.

` + orProjectFile + `

SLIPWAY_LOCAL=oe=/src/oe,meta-x=/src/meta-x builds from these folders as they are.`
	c.Example = `slipway layers checkout jetson-orin-nano-devkit
slipway layers checkout kas.yml  # somebody else's project`
	c.runOn(images.Load, func(ctx context.Context, spec images.Spec, words []string) error {
		return builder.CheckoutLayers(ctx, spec, options)
	})
	return c
}

func layersLockCommand() *Command {
	c := New("lock BOARD", "Pin the branches of a board's layers in its lock file")
	c.Long = `Slipway pins the commits of the checkouts or, without those, the servers'. The lock file is
beside the project file. Slipway does not change older pins without --update.

` + orProjectFile
	c.Example = `slipway layers lock jetson-orin-nano-devkit
slipway layers lock jetson-orin-nano-devkit --update=meta-tegra`
	update := c.Words("update", "move the pins of these repositories to their servers' commits, with commas between them; --update without a name moves all")
	c.Flags().Lookup("update").NoOptDefVal = "all"
	c.runOn(images.Load, func(ctx context.Context, spec images.Spec, words []string) error {
		return builder.LockLayers(ctx, spec, options, *update)
	})
	return c
}

// layersDumpCommand returns the command layers dump, which prints a merged project file.
func layersDumpCommand() *Command {
	c := New("dump BOARD", "Print a board's project file with all that it includes")
	c.Long = orProjectFile
	c.Example = `slipway layers dump jetson-orin-nano-devkit`
	asJSON := c.Switch("json", "print it as JSON")
	c.runOn(images.Load, func(ctx context.Context, spec images.Spec, words []string) error {
		return builder.DumpLayers(ctx, stdout, spec, options, *asJSON)
	})
	return c
}

func layersStatusCommand() *Command {
	c := New("status BOARD", "Compare a board's checkouts with what its project file names")
	c.Long = `It asks no server. ` + orProjectFile
	c.Example = `slipway layers status jetson-orin-nano-devkit`
	asJSON := c.Switch("json", "print it as JSON")
	c.runOn(images.Load, func(ctx context.Context, spec images.Spec, words []string) error {
		return builder.LayerStatus(ctx, stdout, spec, options, *asJSON)
	})
	return c
}

func layersDiffCommand() *Command {
	c := New("diff BOARD", "List the layers that moved since an older state of a board's project")
	c.Long = `The older state is a commit, branch or tag of this clone, or a project or lock file. Slipway
also prints the subjects of the commits.

` + orProjectFile
	c.Example = `slipway layers diff jetson-orin-nano-devkit
slipway layers diff jetson-orin-nano-devkit --from=v1.0`
	from := c.Text("from=REF", "HEAD", "the older state; HEAD if not given, to see uncommitted changes")
	asJSON := c.Switch("json", "print it as JSON")
	c.runOn(images.Load, func(ctx context.Context, spec images.Spec, words []string) error {
		return builder.DiffLayers(ctx, stdout, spec, options, *from, *asJSON)
	})
	return c
}

// layersShellCommand returns the command layers shell, which opens a shell for bitbake's commands.
func layersShellCommand() *Command {
	c := New("shell BOARD", "Open a shell in a board's bitbake environment, or run one line in it")
	c.Long = `Its exit status is the shell's. ` + orProjectFile
	c.Example = `slipway layers shell jetson-orin-nano-devkit
slipway layers shell jetson-orin-nano-devkit --command='bitbake-layers show-layers'`
	command := c.Text("command=LINE", "", "a line that sh runs")
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		var shell builder.Shell
		err := runFor(ctx, board, images.Load, func(ctx context.Context, spec images.Spec) (err error) {
			shell, err = builder.NewShell(ctx, spec, options, *command)
			return err
		})
		progress.Release(ctx)
		return runUnlessFailed(err, func() error { return shell.Become() })
	}
	return c
}

// cacheServeCommand returns the command cache serve, which serves sstate, downloads and hashes.
func cacheServeCommand() *Command {
	c := New("serve [DIR]", "Share this machine's builds and downloads with other machines")
	c.Long = `It runs bitbake's own hash equivalence server and PR server. Beside them it runs a read-only
server of sstate and downloads. It prints the cache: line for the other machines.

Other machines can read everything, and get versions from the PR server. Only builds on this
machine add to it. There are no passwords and no encryption: listen only where you trust the
network. Ctrl-C ends all servers.

DIR is the folder with sstate-cache and downloads; build if not given.`
	c.Example = `slipway cache serve  # only for this machine
slipway cache serve --listen=:8600  # for all machines that can reach this one
slipway cache serve /srv/yocto --board=jetson-orin-nano-devkit`
	board := c.Text("board=BOARD", "", "run the servers of this board's bitbake; the newest that is checked out if not given")
	listen := c.Text("listen=HOST:PORT", "127.0.0.1:8600", "address of the server of files, 127.0.0.1:8600 if not given; the next two ports are the other servers'")
	asJSON := c.Switch("json", "print the addresses as JSON")
	c.RunSignalled(func(ctx context.Context, words []string) error {
		dir := words[0]
		if name := *board; name != "" {
			if _, err := images.Load(name); err != nil {
				return err
			}
		}
		return builder.ServeCache(ctx, options, *board, cache.ServeOptions{
			Dir: dir, Listen: *listen, JSON: *asJSON, Out: stdout,
		})
	})
	return c
}

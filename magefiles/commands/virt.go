package commands

import (
	"context"
	"os"

	"slipway/ci"
	"slipway/images"
	"slipway/layers/progress"
)

func virtStartCommand() *Command {
	c := New("start [BOARD]", "Switch the virtual board on, with its disk build/<board>/machine/disk.img")
	c.Long = `Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt start
slipway virt start virt-arm64`
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		return runFor(ctx, board, images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			return ci.StartVirtual(ctx, stdout, options, spec)
		})
	}
	return c
}

func virtStopCommand() *Command {
	c := New("stop [BOARD]", "Shut the virtual board down")
	c.Long = `Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt stop
slipway virt stop --now  # when it hangs`
	now := c.Switch("now", "switch it off at once instead")
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		return runFor(ctx, board, images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			return ci.StopVirtual(ctx, stdout, options, spec, *now)
		})
	}
	return c
}

func virtSSHCommand() *Command {
	c := New("ssh [BOARD] [-- COMMAND...]", "Log in on the virtual board, or run a command on it")
	c.Long = `Leave with "exit". Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt ssh virt-arm64
slipway virt ssh -- systemctl --failed`
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		spec, err := images.LoadBuilt(board)
		progress.Release(ctx)
		return withStatus(firstError(err, func() error { return ci.SSHVirtual(options, spec, c.after) }))
	}
	return c
}

func virtConsoleCommand() *Command {
	c := New("console [BOARD]", "Join the terminal to the virtual board's serial line")
	c.Long = `Leave with Ctrl-]. Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt console virt-arm64`
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		return runFor(ctx, board, images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			defer progress.Release(ctx)()
			return ci.ConsoleVirtual(ctx, os.Stdin, os.Stdout, options, spec)
		})
	}
	return c
}

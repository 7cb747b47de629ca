package commands

import (
	"context"

	"slipway/images"
	"slipway/images/cache"
)

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
	asJSON := c.Switch("json", "print the state as JSON lines")
	c.Run = func(ctx context.Context, words []string) error {
		dir := words[0]
		return WithSignals(ctx, func(ctx context.Context) error {
			if name := *board; name != "" {
				if _, err := images.Load(name); err != nil {
					return err
				}
			}
			return images.ServeCache(ctx, options, *board, cache.ServeOptions{
				Dir: dir, Listen: *listen, JSON: *asJSON, Out: stdout,
			})
		})
	}
	return c
}

func cacheReportCommand() *Command {
	c := New("report BOARD", "Show which tasks a board's last build took from shared state")
	c.Long = `It also lists the tasks that the build did not find there, with the reason if it is known.`
	c.Example = `slipway cache report jetson-orin-nano-devkit`
	asJSON := c.Switch("json", "print it as JSON, also the tasks that were found")
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		return runFor(ctx, board, images.Load, func(ctx context.Context, spec images.Spec) error {
			return images.CacheReport(ctx, stdout, spec, options, *asJSON)
		})
	}
	return c
}

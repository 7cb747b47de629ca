package commands

import (
	"context"
	"errors"
	"os"
	"slices"

	"slipway/ci"
	"slipway/flash/target"
	"slipway/images"
)

func updateCommand() *Command {
	c := New("update BOARD HOST BUNDLE", "Install a bundle by a running board's own update engine, and prove the result")
	c.Long = `The host is as for deploy. Slipway needs root on it. It works in these steps:
1. find the engine on the board: RAUC or SWUpdate
2. check the bundle, its signature, its version and the board's slots
3. install the bundle by the engine, through the SSH connection or from a copy on the board
4. restart the board, and run its smoke suites on the new system
5. mark the new system good, or start the old one again

Slipway always says which system runs. It reconnects after a broken connection, and removes its
copy of the bundle.

Ctrl-C while the engine installs leaves the board on the old system. Once the board restarts,
the first Ctrl-C waits until Slipway knows which system stays. A second one leaves the board as
it is.`
	c.exits = append(slices.Clone(exitsOfSmoke), exitRefused)
	c.Example = `slipway update virt virt new.raucb --dry-run
slipway update bluefield2 root@10.0.0.7 new.raucb --yes --json`
	dryRun := c.Switch("dry-run", "look at the board and the bundle, write nothing")
	downgrade := c.Switch("downgrade", "allow an older version than the one that runs")
	otherBoard := c.otherBoard()
	noReboot := c.Switch("no-reboot", "only install: somebody else restarts the board, checks it and marks it good")
	rate := c.rate()
	yes := c.Switch("yes", "do not ask")
	asJSON := c.Switch("json", "print the outcome as JSON")
	become := c.become()
	c.Run = func(ctx context.Context, words []string) error {
		board, host, bundle := words[0], words[1], words[2]
		ctx = target.WithRate(asRoot(ctx, *become), *rate)
		return runPatientlyFor(ctx, board, images.LoadBuilt, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
			how := ci.UpdateOptions{DryRun: *dryRun, Downgrade: *downgrade, OtherBoard: *otherBoard, NoReboot: *noReboot, Now: now, Out: stderr}
			if !*yes {
				how.Confirm = ci.AskYes(os.Stdin, stderr)
			}
			outcome, err := ci.Update(ctx, options, spec, host, bundle, how)
			return errors.Join(err, ci.ShowUpdate(stdout, outcome, *asJSON))
		})
	}
	return c
}

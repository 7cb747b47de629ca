//go:build mage

package main

import (
	"context"
	"errors"
	"os"

	"slipway/ci"
	"slipway/images"
)

// Update has a running board's own engine install a bundle, and proves the result.
//
// The host is as for deploy, and needs root as that does. The engine (RAUC, SWUpdate, Mender) is
// found on the board and fetches the bundle through the SSH connection; where it cannot,
// the bundle is put on the board first and removed afterwards. Before anything is written
// the bundle, its signature, its version and the board's slots are looked at. Then it is
// restarted, its smoke suites are run on the new system, and only after that it is
// marked good; otherwise the old system is started again. It always says which system
// runs. A connection that breaks is made again. Ctrl-C while the engine installs leaves
// the board on the old system; once the board restarts, the first one waits until it is
// known which system stays, and a second one leaves the board as it is. It exits with 3
// where the board was not reached or lets nobody in, with 4 where the new system failed a
// check, with 5 where a suite or board.yml is wrong, and with 1 after any other failure.
//
// Examples: "update virt virt new.raucb -dryrun"; "update bluefield2 root@10.0.0.7
// new.raucb -yes -json".
func Update(ctx context.Context, board, host, bundle string,
	dryRun *bool, // look at the board and the bundle, write nothing
	downgrade *bool, // allow an older version than the one that runs
	noReboot *bool, // install alone; somebody else restarts the board, proves it and marks it good
	rate *string, // at most so many bytes a second to the board, such as 512k or 10M
	yes *bool, // do not ask
	json *bool, // print the outcome as JSON
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return withRate(asRoot(ctx, become), rate, func(ctx context.Context) error {
		return runPatientlyFor(ctx, board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
			how := ci.UpdateOptions{DryRun: given(dryRun, false), Downgrade: given(downgrade, false), NoReboot: given(noReboot, false), Now: now, Out: os.Stderr}
			if !given(yes, false) {
				how.Confirm = ci.AskYes(os.Stdin, os.Stderr)
			}
			outcome, err := ci.Update(ctx, options, spec, host, bundle, how)
			return errors.Join(err, ci.ShowUpdate(os.Stdout, outcome, given(json, false)))
		})
	})
}

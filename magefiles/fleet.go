//go:build mage

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/magefile/mage/mg"

	"slipway/ci"
	"slipway/ci/fleet"
	"slipway/flash/target/files"
	"slipway/images"
)

// Fleet works on many boards at once.
type Fleet mg.Namespace

// List shows the hosts of an inventory, and how they are reached.
//
// The inventory is Ansible's, in YAML or as INI; what it says of logging in is kept to
// where Slipway can, and warned of or refused where not. The pattern is Ansible's too.
//
// Examples: "fleet:list hosts.yml"; "fleet:list hosts.yml -limit='racks:!rack2' -json".
func (Fleet) List(inventory string,
	limit *string, // only what this pattern of groups and hosts means
	json *bool, // print them as JSON
) error {
	return fleet.List(os.Stdout, os.Stderr, inventory, given(limit, ""), given(json, false))
}

// Deploy gives the boards of an inventory what deploy gives one, and runs their suites.
//
// A board has passed when its suites have. Canaries come first, and where one of them
// fails no other board is begun. A board that hangs costs its own place only, until its
// limit. What came of it is in build/BOARD/fleet/deploy: index.html with a report of each board,
// fleet.json and junit.xml. It exits as smoke does, for the worst board. A run that was
// broken off, also by a kill, continues with -failed, which refuses a file, artifact or
// suite that changed since. One run at a time works in that folder.
//
// Examples: "fleet:deploy BOARD hosts.yml -dryrun"; "fleet:deploy BOARD hosts.yml
// -limit=rack1 -canary=2 -stopafter=5"; "fleet:deploy BOARD hosts.yml -failed";
// "fleet:deploy BOARD hosts.yml -file=model.bin -to=/opt/model.bin".
func (Fleet) Deploy(ctx context.Context, board, inventory string,
	limit *string, // only what this pattern of groups and hosts means
	failed *bool, // only those that failed or were not begun last time
	parallel *int, // so many boards at a time; 16 if not given
	canary *int, // so many of the first boards must pass before the others begin
	stopAfter *int, // begin no board after so many failures
	retries *int, // try again, after all others, boards that did not answer or were lost
	boardLimit *time.Duration, // the time that one board has; 30m if not given
	file *string, // send this file, in place of what deploy sends
	to *string, // its whole path on the boards
	mode *string, // its mode there, in octal; 0644 if not given
	owner *string, // its user, or user:group, there
	rate *string, // at most so many bytes a second to each board, such as 512k or 10M
	unproved *bool, // do not run the suites
	dryRun *bool, // say which boards it would be, and ask none
	json *bool, // print the outcome as JSON
	become *bool, // run programs on the boards as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	request := fleetRequest(inventory, limit, failed, parallel, canary, stopAfter, retries, boardLimit, dryRun)
	request.File, request.To, request.Unproved, request.Deploy = given(file, ""), given(to, ""), given(unproved, false), given(file, "") == ""
	bits, bad := parseMode(given(mode, "0644"))
	request.Rights = files.Rights{Mode: bits, Owner: given(owner, "")}
	return firstError(bad, func() error {
		return withRate(asRoot(ctx, become), rate, func(ctx context.Context) error { return runFleet(ctx, board, request, given(json, false)) })
	})
}

// Update has the engine of each board of an inventory install a bundle, as update does.
//
// A board has passed when it runs the new system, its suites passed there, and it was
// marked good. One that did not come up, or failed a check, is rolled back to the old
// system and counts as failed. It asks once, for all boards; one canary goes first unless
// -canary says otherwise. With -dryrun each board is asked whether it would take the
// bundle, and nothing is written. Ctrl-C begins no other board and breaks installations
// off, which leaves the old system; boards that restart already are waited for, until a
// second Ctrl-C. A board's limit holds up to its restart. What came of it is in
// build/BOARD/fleet/update (or preflight), as fleet:deploy has it, and -failed goes on. A
// board that runs this bundle since an earlier run is not written again. It exits as smoke
// does, for the worst board.
//
// Examples: "fleet:update BOARD hosts.yml new.raucb -dryrun"; "fleet:update BOARD
// hosts.yml new.raucb -limit=rack1 -canary=2 -stopafter=2 -yes".
func (Fleet) Update(ctx context.Context, board, inventory, bundle string,
	limit *string, // only what this pattern of groups and hosts means
	failed *bool, // only those that failed or were not begun last time
	parallel *int, // so many boards at a time; 16 if not given
	canary *int, // so many of the first boards must pass before the others begin; 1 if not given
	stopAfter *int, // begin no board after so many failures
	retries *int, // try again, after all others, boards that did not answer or were lost
	boardLimit *time.Duration, // the time that one board has until its restart; 30m if not given
	downgrade *bool, // allow an older version than the one that runs
	rate *string, // at most so many bytes a second to each board, such as 512k or 10M
	dryRun *bool, // look at each board and the bundle, write nothing
	yes *bool, // do not ask
	json *bool, // print the outcome as JSON
	become *bool, // run programs on the boards as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return withRate(asRoot(ctx, become), rate, func(ctx context.Context) error {
		return runPatientlyFor(ctx, board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
			if bundle == "" { // an empty variable of a script's, which would leave the suites alone to do
				return errors.New("the bundle's name is empty; name the file to install")
			}
			first := given(canary, 1)
			request := fleetRequest(inventory, limit, failed, parallel, &first, stopAfter, retries, boardLimit, dryRun)
			request.Update, request.Downgrade, request.Now = bundle, given(downgrade, false), now
			if !given(yes, false) {
				request.Confirm = ci.AskYes(os.Stdin, os.Stderr)
			}
			return runFleetOn(ctx, spec, request, given(json, false))
		})
	})
}

// Smoke runs a board's suites on the boards of an inventory.
//
// It is fleet:deploy without sending anything, with the same reports and the same exit,
// in build/BOARD/fleet/smoke.
//
// Examples: "fleet:smoke BOARD hosts.yml"; "fleet:smoke BOARD hosts.yml -limit='all:!dpus'".
func (Fleet) Smoke(ctx context.Context, board, inventory string,
	limit *string, // only what this pattern of groups and hosts means
	failed *bool, // only those that failed or were not begun last time
	parallel *int, // so many boards at a time; 16 if not given
	canary *int, // so many of the first boards must pass before the others begin
	stopAfter *int, // begin no board after so many failures
	retries *int, // try again, after all others, boards that did not answer or were lost
	boardLimit *time.Duration, // the time that one board has; 30m if not given
	dryRun *bool, // say which boards it would be, and ask none
	json *bool, // print the outcome as JSON
	become *bool, // run programs on the boards as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	return runFleet(asRoot(ctx, become), board, fleetRequest(inventory, limit, failed, parallel, canary, stopAfter, retries, boardLimit, dryRun), given(json, false))
}

// Pin shows the host keys of all boards of which nothing is known, and pins them.
//
// The commands over a fleet ask nobody: a board whose key is not known yet is refused.
// This one asks all boards of an inventory for their keys, shows the new ones as one list,
// asks once, and adds them to your known_hosts, as ssh does. Boards behind a jump host that
// is new itself come in a second list. A key that changed is never pinned. With -json the
// keys are printed as slipway_host_key takes them, for the inventory.
//
// Examples: "fleet:pin BOARD hosts.yml -dryrun"; "fleet:pin BOARD hosts.yml -limit=rack3".
func (Fleet) Pin(ctx context.Context, board, inventory string,
	limit *string, // only what this pattern of groups and hosts means
	parallel *int, // so many boards at a time; 16 if not given
	dryRun *bool, // show the list, ask nobody and pin nothing
	json *bool, // print the keys as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		request := fleet.Request{Inventory: inventory, Limit: given(limit, ""), Parallel: given(parallel, 0), DryRun: given(dryRun, false)}
		confirm := ci.AskYesOr(os.Stdin, os.Stderr, "not confirmed, and nothing was pinned; where nobody can be asked, give slipway_host_key in the inventory")
		met, err := fleet.Pin(ctx, os.Stderr, options, spec, request, confirm)
		if given(json, false) && len(met) > 0 {
			err = errors.Join(err, printJSON(met))
		}
		return err
	})
}

// fleetRequest returns what all fleet commands have in common.
func fleetRequest(inventory string, limit *string, failed *bool, parallel, canary, stopAfter, retries *int, boardLimit *time.Duration, dryRun *bool) fleet.Request {
	return fleet.Request{
		Inventory: inventory, Limit: given(limit, ""), Failed: given(failed, false),
		Parallel: given(parallel, 0), Canary: given(canary, 0), StopAfter: given(stopAfter, 0), Retries: given(retries, 0),
		BoardLimit: given(boardLimit, 0), DryRun: given(dryRun, false),
	}
}

func runFleet(ctx context.Context, board string, request fleet.Request, asJSON bool) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error { return runFleetOn(ctx, spec, request, asJSON) })
}

func runFleetOn(ctx context.Context, spec images.Spec, request fleet.Request, asJSON bool) error {
	said := os.Stdout
	if asJSON {
		said = os.Stderr
	}
	outcome, err := fleet.Run(ctx, said, options, spec, request)
	if asJSON && len(outcome.Results) > 0 {
		err = errors.Join(err, printJSON(outcome))
	}
	return err
}

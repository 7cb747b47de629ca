package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/fleet"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash/boardssh/files"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// fleetListCommand returns the command fleet list, which shows the hosts of an Ansible inventory.
func fleetListCommand() *Command {
	c := New("list INVENTORY", "Show the hosts of an inventory, and how they are reached")
	c.Long = `The inventory is an Ansible inventory, in YAML or INI. Slipway follows its login settings if it can,
and warns of the others or refuses them. The pattern is an Ansible pattern too.`
	c.Example = `slipway fleet list hosts.yml
slipway fleet list hosts.yml --limit='racks:!rack2' --json`
	limit := c.limit()
	asJSON := c.Switch("json", "print them as JSON")
	c.Run = func(_ context.Context, words []string) error {
		inventory := words[0]
		return fleet.List(stdout, stderr, inventory, *limit, *asJSON)
	}
	return c
}

func fleetDeployCommand() *Command {
	c := New("deploy BOARD INVENTORY", "Deploy to the boards of an inventory, and run their suites")
	c.Long = `A board has passed when its suites have. Canaries are first: if one fails, Slipway begins no
other board. A board that hangs blocks only its own place, until its limit. The exit status is
that of the worst board.

The results are in build/BOARD/fleet/deploy: index.html with a report of each board,
fleet.json and junit.xml. Only one run at a time works in that folder.

With --failed, Slipway continues an interrupted run, also after a kill. It refuses that if a
file, artifact or suite changed since.`
	c.exits = append(slices.Clone(exitsOfSmoke), exitRefused)
	c.Example = `slipway fleet deploy BOARD hosts.yml --dry-run
slipway fleet deploy BOARD hosts.yml --limit=rack1 --canary=2 --stop-after=5
slipway fleet deploy BOARD hosts.yml --failed
slipway fleet deploy BOARD hosts.yml --file=model.bin --to=/opt/model.bin`
	request := c.fleetFlags(0)
	file := c.Text("file=FILE", "", "send this file instead of the artifact")
	to := c.Text("to=PATH", "", "its full path on the boards")
	mode := parsed(c, "mode", "MODE", 0o644, "its mode on the boards, in octal; 0644 if not given", parseMode)
	owner := c.Text("owner=USER", "", "its user, or user:group, on the boards")
	c.rate()
	unproved := c.Switch("unproved", "do not run the suites")
	c.check = func([]string) error {
		return errors.Join(c.needs("file", "to"), c.needs("to", "file"), c.needs("mode", "file"), c.needs("owner", "file"))
	}
	dryRun := c.Switch("dry-run", "list the boards, and connect to none")
	asJSON := c.Switch("json", "print the outcome as JSON")
	c.become()
	c.runOn(loadAny, func(ctx context.Context, spec images.Spec, words []string) error {
		request := request(words[1], *dryRun)
		request.File, request.To, request.Unproved, request.Deploy = *file, *to, *unproved, *file == ""
		request.Rights = files.Rights{Mode: *mode, Owner: *owner}
		return runFleet(ctx, spec, request, *asJSON)
	})
	c.orByRollout(request, asJSON, stepsOnly(job.Step{Do: job.Deploy}))
	return c
}

func fleetUpdateCommand() *Command {
	c := New("update BOARD INVENTORY BUNDLE", "Install a bundle on the boards of an inventory, like update")
	c.Long = `A board has passed when it runs the new system, its suites passed on it, and it was marked
good. A board that did not start, or failed a check, rolls back to the old system and counts
as failed. The exit status is that of the worst board.

Slipway asks once, for all boards. One canary goes first unless --canary says otherwise. With
--dry-run Slipway asks each board whether it would take the bundle, and writes nothing.

After Ctrl-C, Slipway begins no other board. It also stops installations, which leaves the old
system. It waits for boards that restart already, until a second Ctrl-C. A board's limit holds
up to its restart.

The results are in build/BOARD/fleet/update (or preflight), as for fleet deploy. --failed
continues. Slipway does not write a board again that already runs this bundle.`
	c.exits = append(slices.Clone(exitsOfSmoke), exitRefused)
	c.Example = `slipway fleet update BOARD hosts.yml new.raucb --dry-run
slipway fleet update BOARD hosts.yml new.raucb --limit=rack1 --canary=2 --stop-after=2 --yes`
	request := c.fleetFlags(1)
	downgrade := c.Switch("downgrade", "allow an older version than the one that runs")
	otherBoard := c.otherBoard()
	c.rate()
	dryRun := c.Switch("dry-run", "look at each board and the bundle, write nothing")
	yes := c.Switch("yes", "do not ask")
	asJSON := c.Switch("json", "print the outcome as JSON")
	c.become()
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		inventory, bundle := words[1], words[2]
		request := request(inventory, *dryRun)
		request.Update, request.Downgrade, request.OtherBoard, request.Now = bundle, *downgrade, *otherBoard, now
		var err error
		if request.Confirm, err = c.askYes(*yes || *dryRun, notUpdated); err != nil {
			return err
		}
		return runFleet(ctx, spec, request, *asJSON)
	})
	c.orByRollout(request, asJSON, c.updateSteps(yes, downgrade), "downgrade", "yes")
	return c
}

func fleetSmokeCommand() *Command {
	c := New("smoke BOARD INVENTORY", "Run a board's suites on the boards of an inventory")
	c.Long = `It is fleet deploy that sends nothing. The reports are the same, in build/BOARD/fleet/smoke.
The exit status is that of the worst board.`
	c.exits = exitsOfSmoke
	c.Example = `slipway fleet smoke BOARD hosts.yml
slipway fleet smoke BOARD hosts.yml --limit='all:!dpus'
slipway fleet smoke BOARD hosts.yml --suite=my.yml`
	request := c.fleetFlags(0)
	suites := c.suites()
	dryRun := c.Switch("dry-run", "list the boards, and connect to none")
	asJSON := c.Switch("json", "print the outcome as JSON")
	c.become()
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		if len(*suites) > 0 {
			spec.Suites = *suites
		}
		return runFleet(ctx, spec, request(words[1], *dryRun), *asJSON)
	})
	c.orByRollout(request, asJSON, stepsOnly(job.Step{Do: job.Smoke}))
	return c
}

func fleetRunCommand() *Command {
	c := New("run [BOARD] INVENTORY [-- COMMAND...]", "Run a program on the boards of an inventory")
	c.Long = `The words after "--" are a program and its arguments. No shell reads them: for its signs, run
sh -c 'LINE'. Slipway prints the output of each board, with the board's name before each line. A
board has passed when the program's exit status is 0.

BOARD chooses the hosts whose slipway_board it is, and its host keys. The results are in
build/BOARD/fleet/run, or build/fleet/run without BOARD. They are as for fleet deploy. They
have the first 16 KiB of a program's output.`
	c.exits = []exit{exitsOfSmoke[0], {4, "the program failed on a board"}}
	c.Example = `slipway fleet run hosts.yml -- uptime
slipway fleet run hosts.yml --limit=rack1 --become -- systemctl restart chrony
slipway fleet run BOARD hosts.yml --json -- sh -c 'df / | tail -1'`
	request := c.fleetFlags(0)
	dryRun := c.Switch("dry-run", "list the boards, and connect to none")
	asJSON := c.Switch("json", "print the outcome as JSON")
	c.become()
	c.check = func(words []string) error {
		missing := errors.New("the program is missing: write it after \"--\"")
		switch {
		case len(c.after) > 0:
			return nil
		case isFile(words[0]) && !isFile(words[1]): // fleet run hosts.yml uptime
			return usageError{"fleet run: " + missing.Error(), slices.Concat([]string{"fleet", "run", words[0]}, c.typedFlags(words...), []string{"--", words[1]})}
		}
		return missing
	}
	c.runOn(loadAny, func(ctx context.Context, spec images.Spec, words []string) error {
		request := request(words[1], *dryRun)
		request.Program, request.Unproved = c.after, true
		return runFleet(ctx, spec, request, *asJSON)
	})
	return c
}

// loadAny loads a board like images.LoadBuilt, or returns an empty spec for "".
func loadAny(board string) (images.Spec, error) {
	if board == "" {
		return images.Spec{}, nil
	}
	return images.LoadBuilt(board)
}

// fleetPinCommand returns the command fleet pin, which adds boards' host keys to known_hosts.
func fleetPinCommand() *Command {
	c := New("pin [BOARD] INVENTORY", "Show the unknown host keys of all boards, and pin them")
	c.Long = `The other fleet commands ask no questions. They refuse a board whose key is unknown. fleet pin gets
the keys of all boards of an inventory, and shows the new ones as one list. It asks once, and
adds them to your known_hosts, as ssh does.

Boards behind a new jump host come in a second list. Slipway never pins a key that changed.
With --json it prints the keys as slipway_host_key takes them, for the inventory. BOARD chooses
the hosts whose slipway_board it is.`
	c.Example = `slipway fleet pin BOARD hosts.yml --dry-run
slipway fleet pin BOARD hosts.yml --limit=rack3`
	c.exits = exitsOfSmoke[:1]
	limit := c.limit()
	parallel := c.numberUpTo("parallel", 0, 1, fleet.MaxParallel, "boards at a time; 16 if not given")
	dryRun := c.Switch("dry-run", "show the boards' keys, pin none")
	asJSON := c.Switch("json", "print the keys as JSON")
	c.runOn(loadAny, func(ctx context.Context, spec images.Spec, words []string) error {
		inventory := words[1]
		request := fleet.Request{Inventory: inventory, Limit: *limit, Parallel: *parallel, DryRun: *dryRun}
		step := "repeat the line with --dry-run" + plaintext.Either(*asJSON, "", " --json")
		confirm, err := c.askYes(*dryRun, "not confirmed, and nothing was pinned; without a terminal, give slipway_host_key in the inventory\nnext: "+step+"  # prints the values of slipway_host_key")
		if err != nil {
			return err
		}
		met, err := fleet.Pin(ctx, stderr, options, spec, request, confirm)
		if *asJSON && len(met) > 0 {
			err = errors.Join(err, printJSON(met))
		}
		return err
	})
	return c
}

// limit adds the flag --limit, which selects hosts of an inventory.
func (c *Command) limit() *string {
	return c.Text("limit=PATTERN", "", "only boards that this pattern of groups and hosts matches")
}

// fleetFlags adds the flags that fleet deploy, update, smoke and run share. It returns a function
// that makes a request from their values. canaries is the default of --canary.
func (c *Command) fleetFlags(canaries int) func(inventory string, dryRun bool) fleet.Request {
	limit := c.limit()
	failed := c.Switch("failed", "only boards that failed or did not begin last time")
	parallel := c.numberUpTo("parallel", 0, 1, fleet.MaxParallel, "boards at a time; 16 if not given")
	canary := c.Number("canary", canaries, 0, fmt.Sprintf("this many boards must pass before the others begin; %d if not given", canaries))
	stopAfter := c.Number("stop-after", 0, 0, "begin no board after this many failures")
	retries := c.numberUpTo("retries", 0, 0, fleet.MaxRetries, "how often to try lost or unreached boards again, after all others")
	boardLimit := c.Span("board-limit", 0, "the time that one board has (until its restart, in an update); 30m if not given")
	return func(inventory string, dryRun bool) fleet.Request {
		return fleet.Request{
			Inventory: inventory, Limit: *limit, Failed: *failed, Parallel: *parallel,
			Gate: fleet.Gate{Canary: *canary, StopAfter: *stopAfter, Retries: *retries}, BoardLimit: *boardLimit, DryRun: dryRun,
		}
	}
}

// runFleet runs a request. With asJSON it prints the outcome to stdout and the summary to stderr.
func runFleet(ctx context.Context, spec images.Spec, request fleet.Request, asJSON bool) error {
	said := stdout
	if asJSON {
		said = stderr
	}
	outcome, err := fleet.Run(ctx, said, options, spec, request)
	if asJSON && len(outcome.Results) > 0 {
		err = errors.Join(err, printJSON(outcome))
	}
	return err
}

// isHub reports whether an inventory is the boards of a hub.
func isHub(inventory string) bool { return inventory == "hub:" }

// withHub are the flags of fleets that a rollout of a hub has, too.
var withHub = []string{"limit", "canary", "stop-after", "retries", "board-limit", "json", "waves", "pause-after-wave", "patience", "follow", "boards"}

// orByRollout adds the flags of a rollout to a command whose work and check are set. For the inventory
// hub: it begins a rollout of these steps, and follows it. It refuses other flags than withHub and
// allowed there.
func (c *Command) orByRollout(request func(inventory string, dryRun bool) fleet.Request, asJSON *bool, steps stepsFor, allowed ...string) {
	waves := parsed(c, "waves", "PERCENT,...", nil, "for INVENTORY hub: only: how many percent of the boards have begun after each wave, such as 10,50", parseWaves)
	pause := c.Switch("pause-after-wave", "for INVENTORY hub: only: wait for \"rollout resume\" after each wave")
	patience := c.Span("patience", access.Patience, "for INVENTORY hub: only: how long a board may not be heard before it counts as failed; 15m if not given")
	follows := c.Switch("follow", "for INVENTORY hub: only: boards that match before the end form a last wave")
	check, here := c.check, c.Run
	c.check = func(words []string) error {
		err := checkIf(check, words)
		switch {
		case err != nil:
			return err
		case isHub(words[1]):
			return c.onlyFlags("the inventory hub:", append(allowed, withHub...))
		}
		for _, name := range []string{"waves", "pause-after-wave", "patience", "follow"} {
			if c.given(name) {
				return fmt.Errorf("--%s is for the boards of a hub: write hub: for INVENTORY", name)
			}
		}
		return nil
	}
	c.Run = func(ctx context.Context, words []string) error {
		if !isHub(words[1]) {
			return here(ctx, words)
		}
		return runFor(ctx, words[0], images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			return onHub(ctx, "", func(client *access.Client) error {
				todo, err := steps(spec, words, job.HubBoard{Board: job.Board{Name: "the boards"}, Station: "the hub"})
				if err != nil {
					return err
				}
				asked := request(words[1], false)
				return rollOut(ctx, client, spec, job.Rollout{
					Steps: todo, Pattern: asked.Limit, Gate: asked.Gate, Waves: *waves, PauseAfterWave: *pause, Follow: *follows,
					LimitMS: cmp.Or(asked.BoardLimit, job.Limit).Milliseconds(), PatienceMS: patience.Milliseconds(),
				}, *asJSON)
			})
		})
	}
}

// rollOut sends what a rollout needs to the hub, begins it, and follows it.
func rollOut(ctx context.Context, client *access.Client, spec images.Spec, r job.Rollout, asJSON bool) (err error) {
	r.Board = spec.Board
	if r.Project, err = client.SendProject(ctx, spec.Board); err != nil {
		return err
	}
	if r.Artifact, err = pushToHub(ctx, spec); err != nil {
		return err
	}
	r.ID = job.NewID() // so that it is one rollout, also if the hub's answer is lost
	begun, err := access.AskOn[job.RolloutState](ctx, client, job.VerbRolloutAdd, r)
	if err != nil {
		return err
	}
	_, err = followRollout(ctx, client, begun, asJSON)
	return err
}

func checkIf(check func([]string) error, words []string) error {
	if check == nil {
		return nil
	}
	return check(words)
}

// parseWaves parses percentages with commas between them.
func parseWaves(text string) (waves []int, err error) {
	for _, word := range splitWords(text) {
		n, err := strconv.Atoi(strings.TrimSuffix(word, "%"))
		if err != nil || n < 1 || n > 100 {
			return nil, fmt.Errorf("%q: want percentages from 1 to 100, such as 10,50", word)
		}
		waves = append(waves, n)
	}
	return waves, nil
}

// followRollout shows how far a rollout is until it has ended or waits for a person.
func followRollout(ctx context.Context, client *access.Client, s job.RolloutState, asJSON bool) (job.RolloutState, error) {
	step := progress.Start(ctx, "rollout", int64(s.Boards), progress.Tasks)
	for !s.Ended && s.Wish != job.Pause {
		step.Set(int64(s.Counts.Sum()))
		step.Detail(describeRollout(s))
		now, err := access.NextOf(ctx, client, s)
		if err != nil {
			err = fmt.Errorf("the rollout goes on: %w\nnext: rollout show %s", err, s.ID)
			step.End("", err)
			return s, err
		}
		s = now
	}
	err := access.RolloutErr(s)
	step.End(describeRollout(s), err)
	all, lost := access.Ask[job.RolloutState](ctx, client, job.VerbRolloutShow, job.RolloutWish{ID: s.ID, Results: true})
	if lost == nil { // else the counts are right all the same
		s = all
	}
	return s, errors.Join(printResult(s, nil, asJSON, func(w io.Writer) error { return showRollout(w, s) }), err)
}

// describeRollout returns how far a rollout is, in a few words.
func describeRollout(s job.RolloutState) string {
	return fmt.Sprintf("%s, %d at work, %d waiting%s%s", s.WaveName(s.Wave), s.Running, s.Waiting, plaintext.Either(len(s.Counts) > 0, ", ", ""), s.Counts)
}

func showRollout(w io.Writer, s job.RolloutState) error {
	_, err := fmt.Fprintf(w, "%s  %s, %d boards, by %s: %s %s\n  %s\n", s.ID, s.Board, s.Boards, s.By, s.Word(), plaintext.OneLine(s.Why), describeRollout(s))
	for _, r := range s.Results {
		if r.Result != nil && r.Result.Kind.Failed() {
			fmt.Fprintf(w, "  %s: %s: %s\n", plaintext.OneLine(r.Name), r.Result.Kind, plaintext.OneLine(r.Result.Saw))
		}
	}
	return err
}

// rolloutGroup returns the commands for the rollouts of a hub.
func rolloutGroup() *Command {
	return newGroup("rollout", "Look after the rollouts of a hub", rolloutListCommand(), rolloutShowCommand(),
		rolloutWishCommand("pause", "Begin no other board of a rollout", job.Pause),
		rolloutWishCommand("resume", "Go on with a rollout, also after boards failed", job.Go),
		rolloutWishCommand("stop", "End a rollout: stop gently what runs, and begin nothing", job.Cancel), rolloutBackCommand())
}

func rolloutListCommand() *Command {
	c := New("list", "List the rollouts of a hub, the newest last")
	c.Example = `slipway rollout list --json`
	return lists(c, job.VerbRollouts, func(w io.Writer, all job.Rollouts) error {
		var err error
		for _, s := range all.Rollouts {
			err = errors.Join(err, showRollout(w, s))
		}
		return err
	})
}

func rolloutShowCommand() *Command {
	c := New("show ROLLOUT", "Show a rollout: its wave, how many boards passed, and which failed")
	c.Long = `With --to it writes what a fleet's run writes: index.html, fleet.json, junit.xml, and a report of each
board. While the rollout runs, these have the boards that have ended.`
	c.Example = `slipway rollout show 06FQ3C8T9KX2M4Z7 --follow
slipway rollout show 06FQ3C8T9KX2M4Z7 --to=rollout`
	follow := c.Switch("follow", "show it until it has ended, or waits for a person")
	to := c.Text("to=FOLDER", "", "also write its page and the reports of its boards into this folder")
	asJSON := c.Switch("json", "print it as JSON")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		s, err := access.Ask[job.RolloutState](ctx, client, job.VerbRolloutShow, job.RolloutWish{ID: words[0], Results: true})
		if err != nil {
			return err
		}
		if *follow {
			s, err = followRollout(ctx, client, s, *asJSON)
		} else {
			err = printResult(s, nil, *asJSON, func(w io.Writer) error { return showRollout(w, s) })
		}
		if *to != "" && ctx.Err() == nil {
			err = errors.Join(err, access.WriteRollout(ctx, client, s, *to))
		}
		return err
	})
	return c
}

func rolloutWishCommand(name, short string, wish job.Wish) *Command {
	c := New(name+" ROLLOUT", short)
	c.Example = "slipway rollout " + name + " 06FQ3C8T9KX2M4Z7"
	return c.wishes(job.VerbRolloutWish, func(words []string) any { return job.RolloutWish{ID: words[0], Wish: wish} })
}

func rolloutBackCommand() *Command {
	c := New("back ROLLOUT", "Bring what the boards had before a rollout onto them again")
	c.Long = `It is a new rollout of the earlier artifact, with the same gates, on the boards that got the one that is
named. That one must have ended, and all of these boards must have had the same artifact before. Slipway
asks once, for all boards.`
	c.Example = `slipway rollout back 06FQ3C8T9KX2M4Z7 --dry-run
slipway rollout back 06FQ3C8T9KX2M4Z7 --yes`
	dryRun := c.Switch("dry-run", "only say which boards would get what")
	yes := c.Switch("yes", "do not ask")
	asJSON := c.Switch("json", "print the rollout as JSON")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		confirm, err := c.askYes(*yes || *dryRun, "not confirmed, and nothing was begun\nnext: repeat the line with --dry-run")
		if err != nil {
			return err
		}
		wish := job.RolloutBack{ID: words[0], New: job.NewID(), DryRun: true}
		s, err := access.Ask[job.RolloutState](ctx, client, job.VerbRolloutBack, wish)
		if err != nil || *dryRun {
			return printResult(s, err, *asJSON, func(w io.Writer) error {
				fmt.Fprintf(w, "%s would go to %d boards:\n", s.Artifact, s.Boards)
				return table(w, "NAME\tSTATION", s.Plan, func(b job.RolloutBoard) []any { return []any{b.Name, b.Station} })
			})
		}
		if confirm != nil {
			err = confirm(fmt.Sprintf("Bring %s onto %d boards?", s.Artifact, s.Boards))
		}
		if wish.DryRun = false; err == nil {
			s, err = access.AskOn[job.RolloutState](ctx, client, job.VerbRolloutBack, wish)
		}
		if err == nil {
			_, err = followRollout(ctx, client, s, *asJSON)
		}
		return err
	})
	return c
}

package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"slipway/ci"
	"slipway/ci/hub/access"
	"slipway/ci/hub/local"
	"slipway/ci/job"
	"slipway/flash"
	"slipway/flash/store"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// jobGroup returns the commands for the jobs of a hub.
func jobGroup() *Command {
	return newGroup("job", "Look after the jobs of a hub", jobListCommand(), jobShowCommand(), jobLogCommand(), jobWaitCommand(), jobStopCommand(), jobAbandonCommand(), jobExecCommand())
}

func jobListCommand() *Command {
	c := New("list", "List the jobs of a hub, the newest last")
	c.Example = `slipway job list --board=orin-lab --failed
slipway job list --json`
	board := c.Text("board=BOARD", "", "only those of this kind of board, or of the board with this name")
	failed := c.Switch("failed", "only those that failed")
	wish := func() job.ListWish { return job.ListWish{Board: *board, Failed: *failed} }
	return listsBy(c, job.VerbJobList, wish, func(all *job.Changes) {
		slices.SortFunc(all.Jobs, func(a, b job.Change) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Job.ID, b.Job.ID)) })
	}, func(w io.Writer, all job.Changes) error {
		return table(w, "JOB\tSTATION\tNAME\tBOARD\tSTEPS\tBY\tSTATE", all.Jobs, func(c job.Change) []any {
			j := c.Job
			return []any{j.ID, j.Station, j.Subject(), j.Board, job.StepNames(j.Steps), j.By, j.Word()}
		})
	})
}

func jobShowCommand() *Command {
	c := New("show JOB", "Show a job: its steps, its result, and the line to type on the station instead")
	c.Example = `slipway job show 06FQ3C8T9KX2M4Z7
slipway job show 06FQ3C8T9KX2M4Z7 --json`
	asJSON := c.Switch("json", "print it as JSON")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		change, err := access.Ask[job.Change](ctx, client, job.VerbJobWait, job.Wait{ID: words[0]})
		return printResult(change.Job, err, *asJSON, func(w io.Writer) error { return showJob(w, change.Job) })
	})
	return c
}

func showJob(w io.Writer, j job.Job) error {
	fmt.Fprintln(w, plaintext.OneLine(fmt.Sprintf("%s  %s of %s (%s), by %s: %s", j.ID, j.Subject(), cmp.Or(j.Station, "any builder"), j.Board, j.By, j.Word())))
	if r := j.Result; r != nil {
		for _, s := range r.Steps {
			fmt.Fprintf(w, "  %-8s exit status %d after %v\n", plaintext.OneLine(string(s.Do)), s.Status, (time.Duration(s.ElapsedMS) * time.Millisecond).Round(time.Second/10))
		}
		if r.Saw != "" {
			fmt.Fprintln(w, " ", plaintext.OneLine(r.Saw))
		}
		if r.Line != "" {
			fmt.Fprintf(w, "by hand on %s: %s\n", plaintext.OneLine(j.Station), plaintext.OneLine(r.Line))
		}
	}
	return nil
}

func jobLogCommand() *Command {
	c := New("log JOB", "Print the log of a job")
	c.Example = `slipway job log 06FQ3C8T9KX2M4Z7 --follow`
	follow := c.Switch("follow", "print on until the job has ended")
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		return printLog(ctx, client, words[0], *follow)
	})
	return c
}

func printLog(ctx context.Context, client *access.Client, id string, follow bool) error {
	wish, ask := job.LogWish{ID: id, N: 1, Now: !follow}, access.Ask[job.Log]
	if follow {
		ask = access.AskOn[job.Log]
	}
	for {
		piece, err := ask(ctx, client, job.VerbJobLog, wish)
		if err != nil {
			return err
		}
		fmt.Fprint(stdout, plaintext.Printable(piece.Text))
		if !piece.More || piece.Text == "" && !follow {
			return nil
		}
		wish.N = piece.N
	}
}

func jobWaitCommand() *Command {
	c := New("wait JOB", "Show a job's progress until it has ended; its exit status is this one's")
	c.Example = `slipway job wait 06FQ3C8T9KX2M4Z7`
	c.exits = exitsOfSmoke
	c.onHub(func(ctx context.Context, client *access.Client, words []string) error {
		change, err := access.Ask[job.Change](ctx, client, job.VerbJobWait, job.Wait{ID: words[0]})
		if err != nil {
			return err
		}
		return followJob(ctx, client, change.Job)
	})
	return c
}

// followJob shows a job's progress until it has ended, and returns its result as an error.
func followJob(ctx context.Context, client *access.Client, j job.Job) error {
	ended, err := awaitJob(ctx, client, j)
	return runUnlessFailed(err, func() error { return showEnded(ended, false) })
}

// showEnded prints a job that has ended, and returns its result as an error.
func showEnded(j job.Job, asJSON bool) error {
	return errors.Join(printResult(j, nil, asJSON, func(w io.Writer) error { return showJob(w, j) }), access.Err(j))
}

// awaitJob shows a job's progress until it has ended, and returns it.
func awaitJob(ctx context.Context, client *access.Client, j job.Job) (job.Job, error) {
	ended, err := access.Follow(ctx, client, j, func(e progress.Event) { progress.Relay(ctx, e) })
	if ctx.Err() != nil {
		err = fmt.Errorf("the job goes on: %w\nnext: job wait %s", context.Cause(ctx), j.ID)
	}
	return ended, err
}

func jobStopCommand() *Command {
	c := New("stop JOB", "Stop a job, as Ctrl-C stops its command")
	c.Long = `A job that waits ends at once. A running job first finishes what must not be cut off.
--now stops it as a second Ctrl-C does.`
	c.Example = `slipway job stop 06FQ3C8T9KX2M4Z7
slipway job stop 06FQ3C8T9KX2M4Z7 --now`
	now := c.Switch("now", "do not wait")
	return c.wishes(job.VerbJobStop, func(words []string) any {
		return job.StopWish{ID: words[0], How: job.Stop(plaintext.Either(*now, string(job.Now), string(job.Gently)))}
	})
}

func jobAbandonCommand() *Command {
	c := New("abandon JOB STATION", "Give up a running job of a station that is not heard")
	c.Long = `What the board has is then unknown, and the job says so. It is for an admin, when a station's machine is
lost. The name of the station proves that no other job is meant.`
	c.Example = `slipway job abandon 06FQ3C8T9KX2M4Z7 bench-3`
	return c.wishes(job.VerbAbandon, func(words []string) any { return job.StopWish{ID: words[0], Station: words[1]} })
}

// jobExecCommand returns the command job exec, which a station starts for each job.
func jobExecCommand() *Command {
	c := New("exec FOLDER", "Run the job in a folder, for the station that made it")
	c.Example = `slipway job exec jobs/06H2MGV7L1A7CN36`
	c.Hidden = true
	c.Run = func(ctx context.Context, words []string) error {
		program, err := os.Executable()
		if err != nil {
			return err
		}
		return job.Exec(ctx, job.Folder(words[0]), program)
	}
	return c
}

// lastHub is the value of --hub without one.
const lastHub = "last"

// stepsFor returns the steps of a job on a board of a hub, from the board and the words of the line.
type stepsFor func(spec images.Spec, words []string, b job.HubBoard) ([]job.Step, error)

// viaHub lets the station do these steps that has the board, if --hub is given. The work and the check of
// the command must be set. It refuses other flags than the allowed ones beside --hub.
func (c *Command) viaHub(asJSON *bool, steps stepsFor, allowed ...string) {
	c.orByHub(func(ctx context.Context, client *access.Client, spec images.Spec, words []string) (job.Job, error) {
		name := spec.Board // virt start has no other word
		if len(words) > 1 {
			name = words[1]
		}
		return boardJob(ctx, client, spec, name, func(b job.HubBoard) ([]job.Step, error) { return steps(spec, words, b) })
	}, func(_ context.Context, _ images.Spec, ended job.Job) error {
		return showEnded(ended, asJSON != nil && *asJSON)
	}, allowed...)
}

// order makes a job of the words of a line, with all that it needs on the hub.
type order func(ctx context.Context, client *access.Client, spec images.Spec, words []string) (job.Job, error)

// orByHub adds the flags --hub and --detach. With --hub, prepare makes a job, and end gets it once it has
// ended.
func (c *Command) orByHub(prepare order, end func(ctx context.Context, spec images.Spec, ended job.Job) error, allowed ...string) {
	name := c.hubFlag("let the station do it that has this board; --hub=ADDRESS if several hubs were joined")
	detach := c.Switch("detach", "with --hub: print the job's ID, and do not wait for its end")
	check, here := c.check, c.Run
	c.check = func(words []string) error {
		if err := checkIf(check, words); err != nil || !c.given("hub") {
			return cmp.Or(err, c.needs("detach", "hub"))
		}
		return c.onlyFlags("--hub", append(allowed, "hub", "detach", "boards"))
	}
	c.Run = func(ctx context.Context, words []string) error {
		if !c.given("hub") {
			return here(ctx, words)
		}
		return runFor(ctx, words[0], images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			return onHub(ctx, *name, func(client *access.Client) error {
				j, err := prepare(ctx, client, spec, words)
				if err != nil {
					return err
				}
				added, err := access.Submit(ctx, client, j)
				switch {
				case err != nil:
					return err
				case *detach:
					_, err := fmt.Fprintln(stdout, added.Job.ID)
					return err
				}
				ended, err := awaitJob(ctx, client, added.Job)
				return runUnlessFailed(err, func() error { return end(ctx, spec, ended) })
			})
		})
	}
}

// hubFlag adds the flag --hub, whose value is optional, and returns the hub's address or "".
func (c *Command) hubFlag(help string) *string {
	name := new(string)
	flag := c.addFlag("hub", help, "ADDRESS", func(text string) error {
		if text != lastHub {
			*name = text
		}
		return checkNotBlank(text)
	})
	flag.NoOptDefVal = lastHub
	return name
}

// onlyFlags returns an error if the line has other flags than the allowed ones, which do nothing beside
// what.
func (c *Command) onlyFlags(what string, allowed []string) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(allowed, f.Name) {
			err = errors.Join(err, fmt.Errorf("--%s does nothing beside %s: a job has no field for it", f.Name, what))
		}
	})
	return err
}

// checkTravels returns an error for a board that a builder would not build as this machine does.
func checkTravels(ctx context.Context, spec images.Spec) error {
	name := spec.TypedName()
	if name != spec.Board {
		return fmt.Errorf("%s: a project file does not travel to a builder, only a board of yours does\nnext: build %s", name, plaintext.Quote(name))
	}
	local, err := images.LocalLayers(ctx, spec, options)
	if err == nil && len(local) > 0 {
		err = fmt.Errorf("%s: the layers of %s are folders of this machine, and only commits travel to a builder\nnext: build %[1]s  # here; or give each a url and a commit in its project file", name, strings.Join(local, ", "))
	}
	return err
}

// buildJob returns the job by which a builder of the hub builds a board.
func buildJob(ctx context.Context, client *access.Client, spec images.Spec, targets []string) (job.Job, error) {
	err := checkTravels(ctx, spec)
	if err != nil {
		return job.Job{}, err
	}
	arch, err := access.BuilderArch(ctx, client)
	if err != nil {
		return job.Job{}, err
	}
	j, err := newJob(ctx, client, spec, []job.Step{{Do: job.Build, Targets: strings.Join(targets, ",")}})
	j.Name, j.Arch = job.Builder, arch
	return j, err
}

// pullBuild pulls what a builder has built into the board's folder.
func pullBuild(ctx context.Context, spec images.Spec, built job.Job, asJSON bool) error {
	if err := access.Err(built); err != nil {
		return err
	}
	dir := options.BoardDir(spec)
	if _, err := store.Pull(ctx, job.Builds+"@"+built.Result.Artifact, store.PullOptions{Into: dir}); err != nil {
		return err
	}
	a, err := images.ReadArtifact(dir)
	return ci.ShowArtifact(stdout, a, err, asJSON)
}

// boardJob returns a job of these steps for the board with a name on the hub. It sends the board's
// artifact to the hub, unless it is there.
func boardJob(ctx context.Context, client *access.Client, spec images.Spec, name string, steps func(job.HubBoard) ([]job.Step, error)) (job.Job, error) {
	b, err := access.FindBoard(ctx, client, name)
	if err != nil {
		return job.Job{}, err
	}
	todo, err := steps(b)
	if err != nil {
		return job.Job{}, err
	}
	j, err := newJob(ctx, client, spec, todo)
	j.Station, j.Name = b.Station, b.Name
	if err == nil && b.Image == "" {
		j.Artifact, err = pushToHub(ctx, spec)
	}
	if err == nil && !b.Heard {
		progress.Warn(ctx, fmt.Sprintf("the station %s is not heard; the job waits for it", b.Station))
	}
	return j, err
}

// newJob returns a job of these steps for a kind of board, and sends the user's boards to the hub.
func newJob(ctx context.Context, client *access.Client, spec images.Spec, steps []job.Step) (j job.Job, err error) {
	j.Board, j.Steps = spec.Board, steps
	j.LimitMS, j.StartWithinMS = job.Times(steps)
	j.Project, err = client.SendProject(ctx, spec.Board)
	return j, err
}

// pushToHub sends the artifact of a board to the hub, unless it is there, and returns its place.
func pushToHub(ctx context.Context, spec images.Spec) (string, error) {
	place := "hub:" + spec.Board
	pushed, err := store.Push(ctx, options.BoardDir(spec), options.ReportsDir(), place, nil)
	return place + "@" + pushed.Digest, err
}

// flashSteps returns a function for the step that flashes a board, after it was confirmed: by --yes,
// or by a person who sees what the station read of the device.
func (c *Command) flashSteps(yes *[]string) stepsFor {
	return func(_ images.Spec, _ []string, b job.HubBoard) ([]job.Step, error) {
		steps := []job.Step{{Do: job.Flash, Token: b.Token}}
		shown := fmt.Sprintf("%s at %s: %s", b.Name, b.Station, plaintext.OneLine(b.Shows))
		switch {
		case b.Token == "" || slices.Contains(*yes, b.Token): // a virtual disk needs no confirmation
			return steps, nil
		case len(*yes) > 0:
			return nil, fmt.Errorf("%s, and --yes names another device: %w\nnext: hub boards --json  # the token of %s confirms it", shown, flash.ErrRefused, b.Name)
		}
		confirm, err := c.askYes(false, "not confirmed, and nothing was sent: "+shown)
		if err != nil {
			return nil, fmt.Errorf("%s: nobody can type yes, and nothing was sent: %w\nnext: hub boards --json  # the token of %s confirms it", shown, flash.ErrRefused, b.Name)
		}
		fmt.Fprintln(stderr, shown)
		return steps, confirm("Erase it?")
	}
}

// stepsOnly returns steps without settings.
func stepsOnly(all ...job.Step) stepsFor {
	return func(images.Spec, []string, job.HubBoard) ([]job.Step, error) { return all, nil }
}

// updateSteps returns a function for the step that installs a bundle, the third word and a file of the
// board's artifact, after it was confirmed.
func (c *Command) updateSteps(yes, downgrade *bool) stepsFor {
	return func(spec images.Spec, words []string, b job.HubBoard) ([]job.Step, error) {
		bundle := words[2]
		confirm, err := c.askYes(*yes, notSent)
		if err != nil {
			return nil, err
		}
		a, err := images.ReadArtifact(options.BoardDir(spec))
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(a.Files, func(f images.File) bool { return localfile.Same(a.Path(f), bundle) })
		if i < 0 {
			return nil, fmt.Errorf("%s is no file of %s, and only that travels to a hub\nnext: build %s --target=bundle", bundle, images.ArtifactPath(options.BoardDir(spec)), spec.Board)
		}
		steps := []job.Step{{Do: job.Update, Bundle: "sha256:" + a.Files[i].SHA256, Downgrade: *downgrade}}
		if confirm == nil {
			return steps, nil
		}
		return steps, confirm(fmt.Sprintf("Update and restart %s at %s?", b.Name, b.Station))
	}
}

// upByHub is the command up by a hub and a station, both of this process.
func upByHub(ctx context.Context, spec images.Spec, build images.Options, keep bool) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := ci.Build(ctx, stderr, spec, build); err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(build.Dir, "hub"))
	if err != nil {
		return err
	}
	o := local.Options{Dir: dir, Virtual: []string{spec.Board}, Program: program, Log: stderr}
	return local.Run(ctx, o, func(ctx context.Context, client *access.Client) error {
		link, err := pageLink(ctx, client)
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "the hub's page, within a minute:", link)
		err = proveByHub(ctx, client, spec)
		if keep && ctx.Err() == nil {
			if err != nil { // it is returned only after Ctrl-C
				fmt.Fprintln(stderr, "Error:", err)
			}
			fmt.Fprintln(stderr, "the hub and the station go on until Ctrl-C")
			<-ctx.Done()
		}
		off := run.Command{Argv: []string{program, "virt", "stop", spec.Board}, Dir: filepath.Join(dir, "station", "boards", spec.Board)}
		if localfile.Exists(off.Dir) {
			err = errors.Join(err, run.Run(context.WithoutCancel(ctx), off))
		}
		return err
	})
}

// proveByHub flashes, starts and tests a virtual board by one job.
func proveByHub(ctx context.Context, client *access.Client, spec images.Spec) error {
	if err := access.WaitForBoard(ctx, client, spec.Board); err != nil {
		return err
	}
	all := []job.Step{{Do: job.Flash}, {Do: job.Boot}, {Do: job.Deploy}, {Do: job.Smoke}}
	j, err := boardJob(ctx, client, spec, spec.Board, func(job.HubBoard) ([]job.Step, error) { return all, nil })
	if err != nil {
		return err
	}
	added, err := access.Submit(ctx, client, j)
	if err != nil {
		return err
	}
	return followJob(ctx, client, added.Job)
}

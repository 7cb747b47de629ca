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
			return []any{j.ID, j.Station, j.Subject(), j.Board, job.StepNames(j.Steps), j.By, stateOf(j)}
		})
	})
}

// stateOf returns the state of a job, or how it ended.
func stateOf(j job.Job) string {
	switch {
	case j.Result != nil:
		return string(j.Result.Kind)
	case j.Stop != "":
		return fmt.Sprintf("%s, to be stopped %s", j.State, j.Stop)
	}
	return string(j.State)
}

func jobShowCommand() *Command {
	c := New("show JOB", "Show a job: its steps, its result, and the line that does the same by hand")
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
	fmt.Fprintln(w, plaintext.OneLine(fmt.Sprintf("%s  %s of %s (%s), by %s: %s", j.ID, j.Subject(), cmp.Or(j.Station, "any builder"), j.Board, j.By, stateOf(j))))
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
	c := New("log JOB", "Print what a job has said")
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
		return followJob(ctx, client, change.Job, false)
	})
	return c
}

// followJob shows a job's progress until it has ended, and returns its result as an error.
func followJob(ctx context.Context, client *access.Client, j job.Job, asJSON bool) error {
	ended, err := awaitJob(ctx, client, j)
	switch {
	case err != nil:
		return err
	case asJSON:
		return errors.Join(printJSON(ended), access.Err(ended))
	}
	return errors.Join(showJob(stdout, ended), access.Err(ended))
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
	c.Long = `A job that waits ends at once. One that runs finishes what must not be cut off. --now is the second Ctrl-C.`
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

// viaHub are the flags of a command that can let a station of a hub do its work.
type viaHub struct {
	c      *Command
	name   *string // of the hub; "" is the one that was joined last
	detach *bool
}

// lastHub is the value of --hub without one.
const lastHub = "last"

// viaHub adds the flags --hub and --detach. The command's other flags but allowed are refused beside
// --hub, because a job has no field for them.
func (c *Command) viaHub(allowed ...string) *viaHub {
	v := &viaHub{c: c, name: c.hubFlag("let the station do it that has this board; --hub=ADDRESS if several hubs were joined")}
	v.detach = c.Switch("detach", "with --hub: print the job's ID, and do not wait for its end")
	before := c.check
	c.check = func(words []string) error {
		if err := checkIf(before, words); err != nil || !c.given("hub") {
			return cmp.Or(err, c.needs("detach", "hub"))
		}
		return c.onlyFlags("--hub", append(allowed, "hub", "detach", "boards"))
	}
	return v
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

// given reports whether the work is for a station.
func (v *viaHub) given() bool { return v.c.given("hub") }

// run adds a job with these steps by submit, and follows it.
func (v *viaHub) run(ctx context.Context, spec images.Spec, name string, asJSON bool, steps func(job.HubBoard) ([]job.Step, error)) error {
	return onHub(ctx, *v.name, func(client *access.Client) error {
		return submit(ctx, client, spec, name, steps, func(j job.Job) error {
			if *v.detach {
				_, err := fmt.Fprintln(stdout, j.ID)
				return err
			}
			return followJob(ctx, client, j, asJSON)
		})
	})
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

// build lets a builder of the hub build a board, and pulls the artifact into the board's folder.
func (v *viaHub) build(ctx context.Context, spec images.Spec, targets []string, asJSON bool) error {
	err := checkTravels(ctx, spec)
	if err != nil {
		return err
	}
	return onHub(ctx, *v.name, func(client *access.Client) error {
		j := job.Job{Name: job.Builder, Board: spec.Board, Steps: []job.Step{{Do: job.Build, Targets: strings.Join(targets, ",")}}}
		j.LimitMS, j.StartWithinMS = job.Times(j.Steps)
		if j.Arch, err = access.BuilderArch(ctx, client); err != nil {
			return err
		}
		if j.Project, err = client.SendProject(ctx, spec.Board); err != nil {
			return err
		}
		added, err := access.Submit(ctx, client, j)
		switch {
		case err != nil:
			return err
		case *v.detach:
			_, err := fmt.Fprintln(stdout, added.Job.ID)
			return err
		}
		ended, err := awaitJob(ctx, client, added.Job)
		if err = cmp.Or(err, access.Err(ended)); err != nil {
			return err
		}
		dir := options.BoardDir(spec)
		if _, err := store.Pull(ctx, job.Builds+"@"+ended.Result.Artifact, store.PullOptions{Into: dir}); err != nil {
			return err
		}
		a, err := images.ReadArtifact(dir)
		return ci.ShowArtifact(stdout, a, err, asJSON)
	})
}

// submit sends the artifact of a board to the hub, unless it is there, adds a job with these steps for
// the board with a name there, and passes the job to follow.
func submit(ctx context.Context, client *access.Client, spec images.Spec, name string, steps func(job.HubBoard) ([]job.Step, error), follow func(job.Job) error) error {
	b, err := access.FindBoard(ctx, client, name)
	if err != nil {
		return err
	}
	j := job.Job{Station: b.Station, Name: b.Name, Board: spec.Board}
	if j.Steps, err = steps(b); err != nil {
		return err
	}
	j.LimitMS, j.StartWithinMS = job.Times(j.Steps)
	if j.Project, err = client.SendProject(ctx, spec.Board); err != nil {
		return err
	}
	if b.Image == "" {
		if j.Artifact, err = pushToHub(ctx, spec); err != nil {
			return err
		}
	}
	added, err := access.Submit(ctx, client, j)
	if err != nil {
		return err
	}
	if !b.Heard {
		progress.Warn(ctx, fmt.Sprintf("the station %s is not heard; the job waits for it", b.Station))
	}
	return follow(added.Job)
}

// pushToHub sends the artifact of a board to the hub, unless it is there, and returns its place.
func pushToHub(ctx context.Context, spec images.Spec) (string, error) {
	place := "hub:" + spec.Board
	pushed, err := store.Push(ctx, options.BoardDir(spec), options.ReportsDir(), place, nil)
	return place + "@" + pushed.Digest, err
}

// flashSteps returns a function for the step that flashes a board, after it was confirmed: by --yes,
// or by a person who sees what the station read of the device.
func (c *Command) flashSteps(yes []string) func(job.HubBoard) ([]job.Step, error) {
	return func(b job.HubBoard) ([]job.Step, error) {
		steps := []job.Step{{Do: job.Flash, Token: b.Token}}
		shown := fmt.Sprintf("%s at %s: %s", b.Name, b.Station, plaintext.OneLine(b.Shows))
		switch {
		case b.Token == "" || slices.Contains(yes, b.Token): // a virtual disk needs no confirmation
			return steps, nil
		case len(yes) > 0:
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
func stepsOnly(all ...job.Do) func(job.HubBoard) ([]job.Step, error) {
	return func(job.HubBoard) (steps []job.Step, _ error) {
		for _, do := range all {
			steps = append(steps, job.Step{Do: do})
		}
		return steps, nil
	}
}

// updateSteps returns a function for the step that installs a bundle, a file of the board's artifact,
// after confirm, which may be nil.
func updateSteps(spec images.Spec, bundle string, downgrade bool, confirm func(question string) error) func(job.HubBoard) ([]job.Step, error) {
	return func(b job.HubBoard) ([]job.Step, error) {
		a, err := images.ReadArtifact(options.BoardDir(spec))
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(a.Files, func(f images.File) bool { return localfile.Same(a.Path(f), bundle) })
		if i < 0 {
			return nil, fmt.Errorf("%s is no file of %s, and only that travels to a hub\nnext: build %s --target=bundle", bundle, images.ArtifactPath(options.BoardDir(spec)), spec.Board)
		}
		steps := []job.Step{{Do: job.Update, Bundle: "sha256:" + a.Files[i].SHA256, Downgrade: downgrade}}
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
	if err := os.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state")); err != nil { // its identities are of this hub alone
		return err
	}
	o := local.Options{Dir: dir, Virtual: []string{spec.Board}, Program: program, Log: stderr}
	return local.Run(ctx, o, func(ctx context.Context, client *access.Client) error {
		link, err := pageLink(ctx, client)
		if err != nil {
			return err
		}
		fmt.Fprintln(stderr, "the hub's page, within a minute:", link)
		if err := access.WaitForBoard(ctx, client, spec.Board); err != nil {
			return err
		}
		err = submit(ctx, client, spec, spec.Board, stepsOnly(job.Flash, job.Boot, job.Deploy, job.Smoke), func(j job.Job) error { return followJob(ctx, client, j, false) })
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

package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// Exec does the job of a folder, and writes its result last. It is the work of "slipway job exec".
// program is Slipway's absolute path. An error means that there is no result: a job that failed has
// one. A job with a result is not done again.
func Exec(ctx context.Context, f Folder, program string) error {
	order, err := f.Order()
	if err != nil { // else the lock would make the folder
		return err
	}
	if err := order.isLate(); err != nil {
		return err
	}
	lock, err := localfile.HoldFile(f.path(lockName))
	if err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	defer lock.Close()
	if localfile.Exists(f.path(resultName)) {
		return nil
	}
	if order, err = f.Order(); err == nil { // as it is under the lock
		err = order.isLate()
	}
	if err != nil {
		return err
	}
	log, err := f.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	c := child{folder: f, program: program, order: order, work: cmp.Or(order.How.Clone, f.Work(order.Job.Name)), lock: lock, log: log}
	c.stops = stops{folder: f, over: time.Now().Add(order.Job.limit())}
	stopAt("order")
	result := c.do(ctx)
	stopAt("result")
	if err := log.Sync(); err != nil {
		return err
	}
	return f.write(resultName, result)
}

// isLate returns an error if another run of the station may have the lease by now.
func (o Order) isLate() error {
	if o.BeginBy > 0 && BootTime() > o.BeginBy {
		return errors.New("the lease of the station was over before the job began")
	}
	return nil
}

// stopAt does nothing. Tests kill the process there.
var stopAt = func(string) {}

func sizeOf(name string) (int64, error) {
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f Folder) openLog() (*os.File, error) {
	return os.OpenFile(f.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// child is the process of one job.
type child struct {
	folder  Folder
	program string
	order   Order
	work    string
	lock    *os.File
	log     *os.File
	stops   stops
	result  Result
}

// do runs the job's lines up to the first that fails.
func (c *child) do(ctx context.Context) Result {
	began := time.Now()
	err := c.prepare(ctx)
	var lines []Line
	if err == nil {
		lines, err = Lines(c.order)
	}
	for _, l := range lines {
		if err == nil {
			err = c.run(ctx, l)
		}
	}
	c.conclude(err)
	c.result.Host, c.result.ElapsedMS = c.order.Job.Name, time.Since(began).Milliseconds()
	c.result.Attempts = 1
	if claim := c.order.Job.Claim; claim != nil {
		c.result.Attempts = max(1, claim.Attempt)
	}
	fmt.Fprintf(c.log, "%s %s\n", c.result.Kind, c.result.Saw)
	return c.result
}

// prepare makes the board's working folder as the lines need it.
func (c *child) prepare(ctx context.Context) error {
	if err := localfile.MkdirAll(c.work); err != nil {
		return err
	}
	if text := c.order.How.Inventory; text != "" {
		if err := localfile.Replace(filepath.Join(c.work, inventoryName), []byte(text)); err != nil {
			return err
		}
	}
	if pull, ok := Pull(c.order); ok {
		if err := c.run(ctx, pull); err != nil {
			return err
		}
	}
	if c.order.How.Artifact == "" {
		return nil
	}
	return linkArtifact(c.order.How.Artifact, filepath.Join(c.work, c.order.buildDir()))
}

// linkArtifact fills a board's folder with links to an artifact, which many boards share. The folder
// is the board's own: flashes, virtual machines and fleets keep their files there. It copies
// artifact.json and its signatures, because Slipway reads no signature through a link.
func linkArtifact(artifact, dir string) error {
	if err := localfile.MkdirAll(dir); err != nil {
		return err
	}
	old, err := os.ReadDir(dir)
	for _, e := range old {
		if e.Type()&fs.ModeSymlink != 0 || strings.HasPrefix(e.Name(), images.ArtifactName) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	files, unread := os.ReadDir(artifact)
	for _, e := range files {
		from, to := filepath.Join(artifact, e.Name()), filepath.Join(dir, e.Name())
		switch {
		case !e.Type().IsRegular() || e.Name() == images.ArtifactName:
		case strings.HasPrefix(e.Name(), images.ArtifactName):
			err = errors.Join(err, copyFile(from, to))
		default:
			err = errors.Join(err, os.Symlink(from, to))
		}
	}
	if err := errors.Join(err, unread); err != nil {
		return err
	}
	return copyFile(images.ArtifactPath(artifact), images.ArtifactPath(dir)) // the last: without it there is no artifact
}

func copyFile(from, to string) error {
	data, err := localfile.Read(from, 1<<20)
	if err != nil {
		return err
	}
	return localfile.Replace(to, data)
}

// run runs a line, and adds what it printed to the result. If it fails, the error is what it said.
func (c *child) run(ctx context.Context, l Line) error {
	if c.stops.look(ctx) > 0 {
		return errStopped
	}
	began := time.Now()
	c.result.Line = l.typed(c.work)
	fmt.Fprintln(c.log, "$", c.result.Line)
	from, err := sizeOf(c.folder.Log())
	if err != nil {
		return err
	}
	status, err := c.runProgram(ctx, l)
	c.note(l, status, time.Since(began))
	if err == nil && status != 0 {
		err = lineError{status, lastError(c.folder.Log(), from)}
	}
	return err
}

// runProgram runs a line to its end, and returns its exit status, -1 if a signal ended it. Its output
// goes to files: no pipe breaks if this process is killed. It then gets a SIGTERM, and keeps the lock
// until it has ended, so that no second attempt meets it.
func (c *child) runProgram(ctx context.Context, l Line) (status int, err error) {
	how := run.Command{Argv: l.Argv, Dir: c.work, Hold: c.lock, Env: []string{"SLIPWAY_PROGRESS=json:" + c.folder.Progress()}}
	if !l.Own {
		how.Argv = append([]string{c.program}, l.Argv...)
	}
	if c.order.Job.Project != "" {
		how.Env = append(how.Env, images.SentVariable+"=1")
	}
	if l.Own || l.Argv[0] == "virt" { // what they start may live on, with the lock
		how.Hold = nil
	}
	out := c.log
	if l.printsJSON() {
		if out, err = os.Create(c.stepFile(l)); err != nil {
			return -1, err
		}
		defer out.Close()
	}
	cmd := run.Prepare(context.WithoutCancel(ctx), how) // c.stops ends it
	cmd.Stdout, cmd.Stderr = out, c.log
	if err := cmd.Start(); err != nil {
		return -1, err
	}
	err = c.stops.wait(ctx, cmd)
	if failed := (&exec.ExitError{}); errors.As(err, &failed) {
		return failed.ExitCode(), nil
	}
	return 0, err
}

// stepFile returns the file with the stdout of a line.
func (c *child) stepFile(l Line) string { return c.folder.path(fmt.Sprintf(stepName, l.Step+1)) }

// Start starts "program job exec FOLDER" in a session of its own, and returns once it has the lock or
// has ended. It outlives this process. If ctx ends, it goes on. If it cannot begin, the folder is as
// before its order.
func Start(ctx context.Context, f Folder, program string) error {
	dir, err := filepath.Abs(string(f))
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "job", "exec", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	log, err := f.openLog()
	var from int64
	if err == nil {
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		from, err = sizeOf(f.Log())
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return errors.Join(err, f.withdraw())
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		state, pid, err := f.State()
		if err != nil || state == Held && pid == cmd.Process.Pid {
			return err
		}
		select {
		case err := <-ended:
			return f.explainEnd(err, cmd.Process.Pid, from)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// explainEnd returns the error of a job's process that has ended, nil if there is a result.
func (f Folder) explainEnd(ended error, process int, from int64) error {
	state, pid, err := f.State()
	switch {
	case err != nil || state == Done:
		return err
	case state == Held:
		return fmt.Errorf("%s: %w by process %d", f, localfile.ErrHeld, pid)
	case ended == nil:
		ended = errors.New("no result")
	}
	if pid != process {
		err = f.withdraw()
	}
	return errors.Join(fmt.Errorf("job %s: its process ended: %w: %s", filepath.Base(string(f)), ended, lastError(f.Log(), from)), err)
}

// withdraw removes the order of a process that never had the lock: nothing was begun.
func (f Folder) withdraw() error {
	lock, err := localfile.LockNow(f.path(lockName), 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if localfile.Exists(f.path(resultName)) {
		return nil
	}
	return errors.Join(os.Remove(f.path(orderName)), localfile.SyncFolder(string(f)))
}

// Package ci is the flow of a board: build, flash, boot, deploy, update, smoke. Up, UpRig and
// Update run stages in order and write a report. Other functions run one stage for its command.
// Packages images, flash and flash/boardssh do the work of a stage, and suite runs the checks.
package ci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/host"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// UpOptions says how Up runs.
type UpOptions struct {
	Build images.Options
	Out   io.Writer // messages for a person
	Keep  bool      // leave the board on
}

// Up takes a virtual board from nothing to a report: it installs host packages, fixes the host
// where root can, builds, flashes a virtual disk, boots, deploys and runs the suites. The report
// has a failed stage's error and next step. Unless opt.Keep is set, Up then switches the board off.
func Up(ctx context.Context, spec images.Spec, opt UpOptions) (report.Report, error) {
	if spec.Machine == nil {
		return report.Refused(spec, notVirtual(spec, "build "+plaintext.Quote(spec.TypedName())+"  # then flash, deploy and smoke: up is for virtual boards"))
	}
	build, err := builder.Prepare(ctx, spec, opt.Build, "up")
	if err != nil {
		return report.Refused(spec, err)
	}
	if err := suite.CheckListed(spec); err != nil { // a build takes minutes
		r, err := report.New(spec), report.Because(ctx, report.ErrWrong, err)
		r.AddFailure("smoke", err, suite.SuitesNext)
		return r, err
	}
	if err := refuseDiskInUse(spec, opt.Build, filepath.Join(opt.Build.MachineDir(spec), qemu.DiskName)); err != nil {
		return report.Refused(spec, err)
	}
	u := &upRun{spec: spec, opt: opt, build: build, report: report.New(spec)}
	if err := host.CheckMayInstall(ctx, u.packages()...); err != nil {
		return report.Refused(spec, err)
	}
	if err := report.Remove(opt.Build.ReportDir(spec)); err != nil {
		return report.Refused(spec, err)
	}
	u.report.Source = spec.Source(ctx)
	err = runStages(ctx, &u.report, u.stages())
	u.stopVM()
	err = errors.Join(err, u.report.WriteAndPrintPath(opt.Out, opt.Build.ReportDir(spec)))
	if vm, off := qemu.Find(u.machineDir()); off == nil && opt.Keep {
		err = errors.Join(err, printOn(opt.Out, spec, vm, ""))
	}
	return u.report, err
}

// upRun is one run of Up.
type upRun struct {
	spec   images.Spec
	opt    UpOptions
	build  builder.Prepared
	report report.Report

	artifact images.Artifact
	vm       *qemu.VM
	conn     *boardssh.Conn
}

// stage is one named step of a flow. A report records its result.
type stage struct {
	name string
	work func(context.Context) (saw string, err error)
	next string // what to do if it fails
}

func (u *upRun) stages() []stage {
	program, board := host.ProgramName(), plaintext.Quote(u.spec.TypedName())
	return []stage{
		{"packages", u.installPackages, "run that line, then try again"},
		{"build", u.buildImage, fmt.Sprintf("the log named above says more; \"%s doctor %s\" looks at this machine", program, board)},
		{"flash", u.flashDisk, "look at the disk space of the build folder; build again if the image is damaged"},
		{"boot", u.bootBoard, fmt.Sprintf("look around: %[1]s virt start %[2]s, then %[1]s virt console %[2]s", program, board)},
		{"deploy", u.deployArtifact, fmt.Sprintf("look around: %[1]s virt start %[2]s, then %[1]s virt ssh %[2]s", program, board)},
		{"smoke", u.runSmoke, "each failed check says what to do"},
	}
}

// runStages runs stages until one fails, skips the others, and sets the report's reason and time.
func runStages(ctx context.Context, r *report.Report, stages []stage) (err error) {
	defer func() { r.Reason, r.ElapsedMS = report.ReasonFor(err), time.Since(r.Started).Milliseconds() }()
	for i, s := range stages {
		if err := runStage(ctx, r, s); err != nil {
			for _, rest := range stages[i+1:] {
				r.Stages = append(r.Stages, report.Stage{Name: rest.name, Status: report.Skipped})
			}
			return err
		}
	}
	return nil
}

// errCached is returned by a stage that reused an earlier result. It is no failure.
var errCached = errors.New("cached")

// runStage runs one stage and adds its result, with the next step after a failure, to the report. A
// stage fails if ctx ended meanwhile. errCached is no failure.
func runStage(ctx context.Context, r *report.Report, s stage) error {
	began := time.Now()
	saw, err := s.work(ctx)
	result := report.Stage{Name: s.name, Status: report.Passed, ElapsedMS: time.Since(began).Milliseconds(), Saw: saw}
	switch {
	case errors.Is(err, errCached):
		result.Status, err = report.Cached, nil
	case ctx.Err() != nil:
		stopped := fmt.Errorf("%s: stopped: %w", s.name, context.Cause(ctx))
		if errors.Is(err, report.ErrNotBegun) {
			stopped = report.NotBegun(stopped)
		}
		err = stopped
		result.Status, result.Saw, result.Next = report.Failed, err.Error(), host.TypedStep("repeat the line  # what is finished is kept")
	case s.name == "smoke" && errors.Is(err, report.ErrUnreachable): // no check says what to do
		result.Status, result.Saw, result.Next = report.Failed, err.Error(), suite.LostNext
	case err != nil:
		result.Status = report.Failed
		result.Saw, result.Next = report.SplitNext(err, s.next)
		result.Saw = host.TypedSteps(result.Saw)
	}
	r.Stages = append(r.Stages, result)
	return err
}

func (u *upRun) packages() []string {
	return append(u.build.HostPackages(), qemu.HostPackages(u.spec)...)
}

// installPackages runs installMissing for u.packages, then FixHost, also if no package was missing.
func (u *upRun) installPackages(ctx context.Context) (string, error) {
	saw, err := installMissing(ctx, u.opt.Out, u.opt.Build.BoardDir(u.spec), u.packages())
	if err != nil && !errors.Is(err, errCached) {
		return saw, err
	}
	return saw, cmp.Or(u.build.FixHost(ctx, u.opt.Out), err)
}

// installMissing installs missing host packages by one apt with its log in dir. It returns their
// number as text, and errCached if there are none.
func installMissing(ctx context.Context, w io.Writer, dir string, needed []string) (saw string, err error) {
	missing, err := host.Missing(ctx, needed...)
	if err == nil && len(missing) == 0 {
		return "all there", errCached
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d installed", len(missing)), host.Ensure(ctx, w, images.LogPath(dir, "apt"), needed...)
}

// buildImage builds u.artifact, and returns its key as text. A reused build gives errCached.
func (u *upRun) buildImage(ctx context.Context) (string, error) {
	began := time.Now().UTC()
	var err error
	u.artifact, err = u.build.Build(ctx)
	if err == nil && u.artifact.Board == "" {
		err = fmt.Errorf("the build made no image to flash: the task or the targets of the project make none\nnext: layers dump %s  # shows both", plaintext.Quote(u.spec.TypedName()))
	}
	if err == nil && u.artifact.Built.Before(began) {
		err = errCached
	}
	return "image " + u.artifact.Key, err
}

// flashDisk writes image and keys to the virtual machine's disk, and returns the size and host key
// as text. It refuses if the board is on.
func (u *upRun) flashDisk(ctx context.Context) (string, error) {
	dir := u.machineDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if old, err := qemu.Find(dir); err == nil {
		return "", fmt.Errorf("the board is on (pid %d), with the disk that is to be flashed\nnext: virt stop %s", old.PID, u.spec.Board)
	}
	state, err := u.opt.Build.StateDir(u.spec)
	if err != nil {
		return "", err
	}
	id, err := flash.NewIdentity(state)
	if err != nil {
		return "", err
	}
	disk := filepath.Join(dir, qemu.DiskName)
	receipt, err := flash.Write(ctx, u.spec, u.artifact, disk, flash.Options{Identity: &id, Yes: []string{disk}})
	return fmt.Sprintf("%d MiB written and read back, host key %s", receipt.WrittenBytes>>20, receipt.HostKey), err
}

// A board must accept a login within bootLimit. After its serial line shows the login prompt,
// sshd may take as long again as the prompt took, because emulation on a busy machine is slow
// throughout. It always has at least loginLeast.
const (
	bootLimit  = 5 * time.Minute
	loginLeast = 20 * time.Second
	watchEvery = 100 * time.Millisecond
	// silenceLimit is for boards on KVM, whose boot loader speaks within 2 s.
	silenceLimit = 20 * time.Second
)

// The errors after which the board is switched off and on again.
var (
	errPanicked = errors.New("the board's kernel panicked")
	errSilent   = errors.New("the board said nothing on its serial line")
)

// powerCycles is how often a board is switched on again. QEMU before 8.1 sometimes runs kernel code
// that the kernel has just rewritten, which panics (once in about 70 boots here). On some machines
// KVM runs the firmware and then nothing. The report mentions each retry.
const powerCycles = 2

// bootBoard switches the board on, logs in, and returns the time and any retries as text. After a
// kernel panic or a silent boot it switches the board off and on again, at most powerCycles times.
func (u *upRun) bootBoard(ctx context.Context) (saw string, err error) {
	step := progress.Start(ctx, "boot", 0, "")
	defer func() { step.End(saw, err) }()
	var before []string
	for {
		saw, err = u.powerOn(ctx, step)
		if len(before) > 0 {
			saw += "; before that " + strings.Join(before, ", ")
		}
		why := u.retryReason(err)
		if why == "" || len(before) == powerCycles {
			return saw, err
		}
		before = append(before, why)
		step.Detail(why + "; switching the board off and on")
		if err := u.switchOffForRetry(); err != nil {
			return "", err
		}
	}
}

// retryReason returns why to boot again (silence on KVM, a kernel panic under emulation), or "".
func (u *upRun) retryReason(err error) string {
	switch {
	case errors.Is(err, errSilent):
		return fmt.Sprintf("it said nothing for %s on this machine's KVM, so it is emulated", silenceLimit)
	case errors.Is(err, errPanicked) && u.vm.Accel == qemu.TCG:
		return fmt.Sprintf("the kernel panicked under emulation (%s.panic)", qemu.ConsoleLog(u.machineDir()))
	}
	return ""
}

// switchOffForRetry switches the board off. If it ran on KVM, all boards are emulated for a day. If
// not, it adds .panic to the console log's name.
func (u *upRun) switchOffForRetry() error {
	if u.vm.Accel == qemu.KVM {
		return errors.Join(u.vm.Stop(), qemu.DistrustKVM())
	}
	console := qemu.ConsoleLog(u.machineDir())
	return errors.Join(u.vm.Stop(), os.Rename(console, console+".panic"))
}

func (u *upRun) machineDir() string { return u.opt.Build.MachineDir(u.spec) }

// powerOn switches the board on as u.vm, logs in, and puts the time in the report and into saw.
func (u *upRun) powerOn(ctx context.Context, step *progress.Step) (saw string, err error) {
	dir := u.machineDir()
	u.vm, err = qemu.Start(ctx, u.spec, dir, u.opt.Keep)
	if err != nil {
		return "", err
	}
	if err := u.logIn(ctx, u.vm, step); err != nil {
		return "", fmt.Errorf("%w\nlast lines of its serial line (all: %s):\n%s", err, qemu.ConsoleLog(dir), qemu.Tail(dir))
	}
	took := time.Since(u.vm.Started)
	u.report.Boot = report.Boot{ElapsedMS: took.Milliseconds(), Accel: u.vm.Accel}
	return fmt.Sprintf("ssh after %.1f s (%s)", took.Seconds(), u.vm.Accel), nil
}

// logIn waits until the board accepts an SSH login, and keeps the connection in u.conn. It fails as
// soon as watchBoot finds that the boot cannot succeed.
func (u *upRun) logIn(ctx context.Context, vm *qemu.VM, step *progress.Step) (err error) {
	watched, stop := context.WithCancelCause(ctx)
	ready := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() { u.watchBoot(watched, stop, vm, ready, step) })
	defer watcher.Wait() // the next power-on replaces the files that it reads
	defer stop(nil)
	select {
	case <-ready:
		var a boardssh.Address
		if a, err = reach.VirtualAddress(u.opt.Build, u.spec, vm); err == nil {
			u.conn, err = boardssh.WaitDial(watched, a, bootLimit)
		}
	case <-watched.Done():
	}
	if watched.Err() != nil {
		err = context.Cause(watched)
	}
	err = report.Because(ctx, report.ErrUnreachable, err)
	if err != nil && u.conn != nil {
		u.conn.Close()
		u.conn = nil
	}
	return err
}

// watchBoot watches the serial line until ctx ends. It closes ready when sshd may answer. It calls
// stop with the reason when the boot cannot succeed: power-off, panic, silence, or a time limit.
func (u *upRun) watchBoot(ctx context.Context, stop context.CancelCauseFunc, vm *qemu.VM, ready chan<- struct{}, step *progress.Step) {
	dir := u.machineDir()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	isReady := func() bool { return u.spec.Machine.Ready == "" || qemu.Said(dir, u.spec.Machine.Ready) }
	var limit time.Duration // since power-on, until which a login must succeed; 0 before the prompt
	for {
		select {
		case <-ctx.Done():
			return
		case <-vm.Exited():
			stop(errors.New("the machine switched itself off"))
			return
		case <-tick.C:
		}
		if ready != nil && isReady() {
			close(ready)
			ready = nil
		}
		since := time.Since(vm.Started)
		switch {
		case qemu.Panicked(dir):
			stop(errPanicked)
		case vm.Accel == qemu.KVM && since > silenceLimit && qemu.Silent(dir):
			stop(errSilent)
		case limit == 0 && qemu.Prompted(dir):
			limit = since + max(since, loginLeast)
			step.Detail("it is up; waiting for its sshd")
		case limit > 0 && since > limit:
			stop(errors.New("the board is up, and nothing answers on its SSH port: is sshd in the image, and enabled"))
		case since > bootLimit:
			stop(fmt.Errorf("the board did not boot within %v", bootLimit))
		}
	}
}

func (u *upRun) deployArtifact(ctx context.Context) (string, error) {
	deployed, err := container.DeployArtifact(ctx, u.conn, u.spec, u.artifact)
	return summarizeDeploy(deployed), reach.MarkUnreachable(ctx, u.conn, err)
}

// runSmoke runs the suites on the board, and copies their results into the report. It returns the
// counts of checks in words, also with an error.
func (u *upRun) runSmoke(ctx context.Context) (string, error) {
	proved, err := suite.Run(ctx, u.conn, u.spec, u.artifact, suite.KeepMetrics(u.opt.Build, u.spec))
	u.report.Identity, u.report.Suites, u.report.Logs = proved.Identity, proved.Suites, proved.Logs
	return report.CountWords(proved.Counts().Checks), err
}

// stopVM closes SSH and, unless opt.Keep is set, switches the board off. It prints errors.
func (u *upRun) stopVM() {
	if u.conn != nil {
		u.conn.Close()
	}
	if u.vm != nil && !u.opt.Keep {
		if err := u.vm.Stop(); err != nil {
			fmt.Fprintln(u.opt.Out, err)
		}
	}
}

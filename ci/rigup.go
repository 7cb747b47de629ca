package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"slipway/ci/report"
	softrig "slipway/ci/rig"
	"slipway/ci/suite"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/host"
	"slipway/layers/plaintext"
)

// RigOptions says how UpRig runs.
type RigOptions struct {
	Build images.Options
	Out   io.Writer // messages for a person
	Keep  bool      // leave the rig on until the context ends
	How   []suite.Option
}

// UpRig installs host packages, builds a rig's userland and software, starts the rig, runs its
// suites, writes the report, and stops the rig. With opt.Keep the rig stays on until ctx ends.
// UpRig needs root, and refuses a rig that is on already.
func UpRig(ctx context.Context, spec images.Spec, opt RigOptions) (report.Report, error) {
	if err := errors.Join(checkRig(spec), softrig.CheckRoot()); err != nil {
		return report.Refused(spec, err)
	}
	dir := opt.Build.BoardDir(spec)
	_, err := suite.LoadAll(spec)
	err = report.Because(ctx, report.ErrWrong, err)
	if _, off := softrig.Find(dir); err == nil && off == nil {
		err = fmt.Errorf("the rig is on already\nnext: rig down %s", plaintext.Quote(spec.TypedName()))
	}
	if err == nil {
		err = host.CheckMayInstall(ctx, builder.HostPackages(spec, "")...)
	}
	if err == nil {
		err = report.Remove(opt.Build.ReportDir(spec))
	}
	if err != nil {
		return report.Refused(spec, err)
	}
	u := &rigRun{spec: spec, opt: opt, dir: dir, report: report.New(spec)}
	u.report.Target = "software on this machine"
	err = u.runStages(ctx, u.rigStages())
	return u.report, err
}

// BuildRig installs host packages, builds a rig's layers, and prints their folders. It needs root.
func BuildRig(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options) error {
	if err := errors.Join(checkRig(spec), softrig.CheckRoot()); err != nil {
		return err
	}
	if err := host.Ensure(ctx, w, images.LogPath(opt.BoardDir(spec), "apt"), builder.HostPackages(spec, "")...); err != nil {
		return err
	}
	layers, err := softrig.Build(ctx, spec, opt)
	if err == nil {
		_, err = fmt.Fprintln(w, strings.Join(layers, "\n"))
	}
	return err
}

// SSHRig replaces this process by ssh: a session on the running rig, or a run of argv there.
func SSHRig(opt images.Options, spec images.Spec, argv []string) error {
	a, err := softrig.Find(opt.BoardDir(spec))
	if err != nil {
		return errors.Join(checkRig(spec), err)
	}
	return execSSH(a, argv)
}

// execSSH replaces this process by ssh: a session, or a run of argv. It returns only an error.
func execSSH(a boardssh.Address, argv []string) error {
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		return fmt.Errorf("%w; install it: %s", err, host.AptLine([]string{"openssh-client"}))
	}
	return syscall.Exec(ssh, sshArguments(a, argv...), os.Environ())
}

// sshArguments returns ssh's command line, with recorded host keys and argv as one quoted line.
func sshArguments(a boardssh.Address, argv ...string) []string {
	line := []string{
		"ssh", "-p", strconv.Itoa(a.Port), "-i", a.Identities[0], "-o", "IdentitiesOnly=yes",
		"-o", "UserKnownHostsFile=" + append(a.KnownHosts, a.Recorded)[0], "-o", "HostKeyAlias=" + a.HostKeyAlias, "-o", "StrictHostKeyChecking=yes",
		a.User + "@" + a.Host,
	}
	if len(argv) > 0 {
		line = append(line, "--", suite.ShellLine(argv))
	}
	return line
}

// DownRig stops the rig that another command keeps on.
func DownRig(ctx context.Context, opt images.Options, spec images.Spec) error {
	return errors.Join(checkRig(spec), softrig.Down(ctx, opt.BoardDir(spec)))
}

// checkRig returns an error for a board whose board.yml has no rig.
func checkRig(spec images.Spec) error {
	if spec.Rig == nil {
		return fmt.Errorf("%s describes no rig (rig:); name a board of namespaces, as bluefield-rig", spec.BoardFile())
	}
	return nil
}

// rigRun is one run of UpRig.
type rigRun struct {
	spec   images.Spec
	opt    RigOptions
	dir    string
	report report.Report

	layers []string
	rig    *softrig.Rig
}

// runStages runs stages, writes the report, and stops the rig, with opt.Keep only when ctx ends.
func (u *rigRun) runStages(ctx context.Context, stages []stage) error {
	err := runStages(ctx, &u.report, stages)
	err = errors.Join(err, u.report.WriteAndPrintPath(u.opt.Out, u.opt.Build.ReportDir(u.spec)))
	if u.rig == nil {
		return err
	}
	if u.opt.Keep {
		fmt.Fprintln(u.opt.Out, "the rig is on: rig ssh in another terminal logs in; Ctrl-C, or rig down there, switches it off")
		<-ctx.Done()
	}
	return errors.Join(err, u.rig.Stop())
}

func (u *rigRun) rigStages() []stage {
	return []stage{
		{"packages", u.installPackages, "run that line, then try again"},
		{"build", u.buildLayers, "the log named above says more; what is finished is kept"},
		{"rig", u.startRig, "rig down switches off one that is on"},
		{"smoke", u.runSmoke, "each failed check says what to do"},
	}
}

func (u *rigRun) installPackages(ctx context.Context) (string, error) {
	return installMissing(ctx, u.opt.Out, u.dir, builder.HostPackages(u.spec, ""))
}

// buildLayers builds the layers of the rig's root into u.layers, and returns their names as text.
func (u *rigRun) buildLayers(ctx context.Context) (saw string, err error) {
	u.layers, err = softrig.Build(ctx, u.spec, u.opt.Build)
	var names []string
	for _, layer := range u.layers {
		names = append(names, filepath.Base(layer))
	}
	return strings.Join(names, ", "), err
}

// startRig starts the rig, and returns what it is as text. After an error u.rig is nil.
func (u *rigRun) startRig(ctx context.Context) (saw string, err error) {
	if u.rig, err = softrig.Start(ctx, u.spec, u.dir, u.layers); err != nil {
		u.rig = nil
		return "", err
	}
	return fmt.Sprintf("software, no BlueField: namespaces of this machine, %d ports, %d machines behind them", len(u.spec.Rig.Ports), len(u.spec.Rig.Places)), nil
}

// runSmoke connects to the rig, runs suites without restarts, copies results into the report, and
// returns the counts of checks as text.
func (u *rigRun) runSmoke(ctx context.Context) (saw string, err error) {
	conn, err := boardssh.WaitDial(ctx, u.rig.Address, loginLeast)
	if err != nil {
		return "", report.Because(ctx, report.ErrUnreachable, err)
	}
	defer conn.Close()
	// The rig cannot restart: nothing would switch it on again.
	how := slices.Concat(u.opt.How, []suite.Option{suite.AllowReboots(false), suite.KeepMetrics(u.opt.Build, u.spec)})
	proved, err := suite.Run(ctx, conn, u.spec, images.NoArtifact(u.spec, u.dir), how...)
	u.report.Identity, u.report.Suites, u.report.Logs = proved.Identity, proved.Suites, proved.Logs
	return report.CountWords(proved.Counts().Checks) + ", of software", err
}

package commands

import (
	"context"
	"os"

	"slipway/ci"
	"slipway/ci/job"
	suites "slipway/ci/suite"
	"slipway/images"
	"slipway/layers/progress"
)

func virtStartCommand() *Command {
	c := New("start [BOARD]", "Switch the virtual board on, with its disk build/<board>/machine/disk.img")
	c.Long = `Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt start
slipway virt start virt-arm64`
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		return ci.StartVirtual(ctx, stdout, options, spec)
	})
	c.viaHub(nil, stepsOnly(job.Step{Do: job.Boot}))
	return c
}

func virtStopCommand() *Command {
	c := New("stop [BOARD]", "Shut the virtual board down")
	c.Long = `Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt stop
slipway virt stop --now  # when it hangs`
	now := c.Switch("now", "switch it off at once instead")
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		return ci.StopVirtual(ctx, stdout, options, spec, *now)
	})
	return c
}

func virtSSHCommand() *Command {
	c := New("ssh [BOARD] [-- COMMAND...]", "Log in on the virtual board, or run a command on it")
	c.Long = `Leave with "exit". Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt ssh virt-arm64
slipway virt ssh -- systemctl --failed`
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		spec, err := images.LoadBuilt(board)
		progress.Release(ctx)
		return withStatus(runUnlessFailed(err, func() error { return ci.SSHVirtual(options, spec, c.after) }))
	}
	return c
}

func virtConsoleCommand() *Command {
	c := New("console [BOARD]", "Join the terminal to the virtual board's serial line")
	c.Long = `Leave with Ctrl-]. Without BOARD it takes the default virtual board.`
	c.Example = `slipway virt console virt-arm64`
	c.runOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string) error {
		defer progress.Release(ctx)()
		return ci.ConsoleVirtual(ctx, os.Stdin, os.Stdout, options, spec)
	})
	return c
}

// rigUpCommand returns the command rig up, which tests a DPU's software in network namespaces.
func rigUpCommand() *Command {
	c := New("up [BOARD]", "Take a rig, a BlueField of namespaces, from nothing to a report")
	c.Long = `It needs root, on Debian, and works in these steps:
1. fetch a userland with DPDK, and build our software driver in it
2. make network namespaces: the DPU's ports, its host, a virtual machine and two leaves
3. run the suites in them over SSH
4. write report.html, report.json and junit.xml into build/reports/<board>

All of this tests software, and no hardware. It does not build unchanged parts again. Without
BOARD it takes the first rig, on Debian 12.`
	c.exits = exitsOfSmoke
	c.Example = `slipway rig up
slipway rig up bluefield-rig-trixie
slipway rig up --keep  # and then: slipway rig ssh`
	keep := c.Switch("keep", "leave it on until Ctrl-C or rig down")
	form := c.reportForm()
	c.runPatientlyOn(loadRig, func(ctx context.Context, spec images.Spec, _ []string, now <-chan struct{}) error {
		r, err := ci.UpRig(ctx, spec, ci.RigOptions{Build: options, Out: stderr, Keep: *keep, How: []suites.Option{suites.EndTeardown(now)}})
		return showReport(r, err, *form)
	})
	return c
}

// rigBuildCommand returns the command rig build, which makes only a rig's root file system.
func rigBuildCommand() *Command {
	c := New("build [BOARD]", "Make only the root of a rig: the userland, and the programs that are compiled in it")
	c.Long = `Without BOARD it takes the first rig.`
	c.Example = `slipway rig build bluefield-rig-trixie`
	c.runPatientlyOn(loadRig, func(ctx context.Context, spec images.Spec, _ []string, _ <-chan struct{}) error {
		return ci.BuildRig(ctx, stdout, spec, options)
	})
	return c
}

// rigDownCommand returns the command rig down, which switches off a rig that rig up --keep left on.
func rigDownCommand() *Command {
	c := New("down [BOARD]", "Switch off the rig that \"rig up --keep\" keeps on")
	c.Long = `Without BOARD it takes the first rig.`
	c.Example = `slipway rig down`
	c.runPatientlyOn(loadRig, func(ctx context.Context, spec images.Spec, _ []string, _ <-chan struct{}) error {
		return ci.DownRig(ctx, options, spec)
	})
	return c
}

// rigSSHCommand returns the command rig ssh, which logs in on a rig that rig up --keep left on.
func rigSSHCommand() *Command {
	c := New("ssh [BOARD] [-- COMMAND...]", "Log in on the rig that \"rig up --keep\" keeps on")
	c.Long = `Leave with "exit". Without BOARD it takes the first rig.`
	c.Example = `slipway rig ssh
slipway rig ssh -- ip -brief link  # to run that on the rig`
	c.Run = func(ctx context.Context, words []string) error {
		spec, err := loadRig(words[0])
		progress.Release(ctx)
		return withStatus(runUnlessFailed(err, func() error { return ci.SSHRig(options, spec, c.after) }))
	}
	return c
}

// loadRig loads the spec of a board, which need not be a rig, or of the first rig for "".
func loadRig(board string) (images.Spec, error) {
	if board == "" {
		return images.First("is a rig", func(s images.Spec) bool { return s.Rig != nil })
	}
	return images.Load(board)
}

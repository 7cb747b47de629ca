package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"slipway/ci"
	"slipway/ci/doctor"
	"slipway/ci/hub/access"
	"slipway/ci/hub/health"
	"slipway/ci/job"
	"slipway/ci/report"
	suites "slipway/ci/suite"
	"slipway/flash"
	devices "slipway/flash/device"
	"slipway/flash/source"
	"slipway/flash/trust"
	"slipway/images"
)

// upCommand returns the command up, which builds, boots and tests a virtual board.
func upCommand() *Command {
	c := New("up [BOARD]", "Take a virtual board from nothing to a report")
	c.Long = `It works in these steps:
1. install the packages that this machine lacks, after showing the apt line
2. build the image
3. flash it to a virtual disk, and boot that
4. deploy to the board over SSH, and run the smoke suites on it
5. write report.html, report.json and junit.xml into build/reports/<board>
6. switch the board off

It does not build unchanged parts again. Without BOARD it takes the project's board, and outside
of a project the default virtual board.`
	c.exits = exitsOfSmoke
	c.Example = `slipway up
slipway up virt --keep  # and then: slipway virt ssh
slipway up --hub --keep  # the same by a hub and a station on this machine, with a page to look at
slipway up --json  # for a script`
	viaHub := c.Switch("hub", "let a station of a new hub do it, both on this machine, and print the address of the hub's page")
	keep := c.Switch("keep", "leave the board on afterwards")
	fresh := c.Switch("fresh", "fetch Debian's packages again")
	form := c.reportForm()
	c.check = func([]string) error {
		return errors.Join(c.refuseTogether("hub", "as"), c.refuseTogether("hub", "json"))
	}
	c.runOn(images.LoadOwn, func(ctx context.Context, spec images.Spec, words []string) error {
		build := options
		build.Fresh = *fresh
		if *viaHub {
			return upByHub(ctx, spec, build, *keep)
		}
		r, err := ci.Up(ctx, spec, ci.UpOptions{Build: build, Out: stderr, Keep: *keep})
		return showReport(r, err, *form)
	})
	return c
}

// showReport prints a report in this form, or as a short text for nil, and adds it to the CI
// server's summary. It joins the errors to err.
func showReport(r report.Report, err error, form *report.Form) error {
	err = errors.Join(err, report.AddSummary(r.Markdown))
	if form != nil {
		return errors.Join(err, report.WriteAs(stdout, form, r))
	}
	r.Summary(stdout)
	return err
}

func boardsCommand() *Command {
	c := New("boards", "List the boards that Slipway knows")
	c.Example = `slipway boards --json`
	asJSON := c.Switch("json", "print them as JSON, with all their settings")
	c.Run = func(_ context.Context, _ []string) error {
		return ci.ListBoards(stdout, *asJSON)
	}
	return c
}

// doctorCommand returns the command doctor, which checks this machine, or a bitbake configuration.
func doctorCommand() *Command {
	c := New("doctor [BOARD]", "Check whether this machine is ready to build a board")
	c.Long = `Each finding names the fault, its consequence, and the command that fixes it. The exit status
is an error if the build would stop. Without BOARD it takes the project's board, and outside of
a project the default virtual board.

` + orProjectFile + `

With --conf and --branch, doctor reads only a bitbake configuration. It lists the names in it
that this branch of meta-tegra lacks, and proposes the right names.

With --hub, doctor looks at the hub, at its stations, and at the hub and the station of this machine.`
	c.Example = `slipway doctor jetson-orin-nano-devkit
slipway doctor --hub
slipway doctor --conf=local.conf --branch=scarthgap`
	conf := c.Text("conf=FILE", "", "look only at this local.conf")
	branch := c.Text("branch=NAME", "", "the branch of meta-tegra, or release of Yocto, that --conf is for")
	offline := c.Switch("offline", "ask no server, fetch nothing")
	asJSON := c.Switch("json", "print the findings as JSON")
	hub := c.hubFlag("look at the hub and the station; --hub=ADDRESS if several hubs were joined")
	c.check = func(words []string) error {
		board := error(nil)
		if words[0] != "" && (c.given("conf") || c.given("hub")) {
			board = errors.New("BOARD does nothing beside --conf and --hub")
		}
		return errors.Join(board, c.needs("conf", "branch"), c.needs("branch", "conf"), c.refuseTogether("offline", "conf"), c.refuseTogether("offline", "hub"), c.refuseTogether("conf", "hub"))
	}
	c.Run = func(ctx context.Context, words []string) error {
		board := words[0]
		if c.given("hub") {
			return withSignals(ctx, func(ctx context.Context) error {
				return health.Look(ctx, stdout, *hub, stationFile(""), *asJSON)
			})
		}
		if file := *conf; file != "" || *branch != "" {
			return doctor.Conf(stdout, file, *branch, *asJSON)
		}
		return runFor(ctx, board, images.LoadOwn, func(ctx context.Context, spec images.Spec) error {
			build := options
			build.Offline = *offline
			return doctor.Look(ctx, stdout, spec, doctor.Options{Build: build, JSON: *asJSON})
		})
	}
	return c
}

func buildCommand() *Command {
	c := New("build BOARD", "Make a board's image, below build/<board>")
	c.Long = orProjectFile + `

Slipway makes virtual boards of Debian packages, in minutes. bitbake builds the others from
images/boards/<board>/kas.yml. That takes hours the first time, and not as root. doctor says
whether this machine can. build/<board>/build.html shows the steps of bitbake, and build.json
has them for programs.

If Debian packages are missing, Slipway shows the apt line, then runs it as root or by sudo.
SLIPWAY_INSTALL=no forbids that, as --dry-run and --parse do: Slipway then stops, and prints
the line. SLIPWAY_INSTALL=yes allows it for --parse too.

Ctrl-C lets bitbake finish the tasks that run. A second Ctrl-C stops them too.

To log in on a board that bitbake built, set these variables for the build:
- SLIPWAY_AUTHORIZED_KEYS names a file of public keys
- SLIPWAY_ROOT_LOGIN=1 lets root in, which deploy, container suites and updates need`
	c.Example = `slipway build virt
slipway build virt --target=bundle  # for an update that RAUC installs, too
slipway build jetson-orin-nano-devkit
slipway build jetson-orin-nano-devkit --hub  # by a station of a hub that takes builds; the artifact comes back
slipway build kas.yml  # somebody else's project
slipway build jetson-orin-nano-devkit --parse  # to read its recipes only
slipway build jetson-orin-nano-devkit --target=u-boot --task=compile`
	fresh := c.Switch("fresh", "fetch the Debian packages of a virtual board again")
	target := c.Words("target", "bitbake's targets instead of the project file's, with commas between them; for a virtual board, bundle")
	task := c.Text("task=TASK", "", "bitbake's task instead of the project file's")
	goOn := c.Switch("continue", "continue after a failed task as far as possible")
	dryRun := c.Switch("dry-run", "make bitbake list what it would run, and build and install nothing")
	parse := c.Switch("parse", "make bitbake read all recipes, and build nothing")
	install := c.Switch("install", "with --parse, install missing Debian packages as a build does")
	asJSON := c.Switch("json", "print the artifact as JSON")
	c.check = func([]string) error { return c.needs("install", "parse") }
	c.runPatientlyOn(images.Load, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		build := options
		build.Fresh, build.Now, build.Install = *fresh, endSoon(ctx, now), *install
		build.Request = images.BuildRequest{
			Targets: *target, Task: *task,
			Continue: *goOn, DryRun: *dryRun, Parse: *parse,
		}
		artifact, err := ci.Build(ctx, stderr, spec, build)
		return ci.ShowArtifact(stdout, artifact, err, *asJSON)
	})
	c.orByHub(func(ctx context.Context, client *access.Client, spec images.Spec, _ []string) (job.Job, error) {
		return buildJob(ctx, client, spec, *target)
	}, func(ctx context.Context, spec images.Spec, built job.Job) error {
		return pullBuild(ctx, spec, built, *asJSON)
	}, "target", "json")
	return c
}

func devicesCommand() *Command {
	c := New("devices", "List the devices that Slipway can flash from this machine")
	c.Long = `It lists:
- disks and cards, with their contents, and the reasons not to write them
- Jetsons in recovery mode, with their module and USB port
- the rshims of BlueFields
- the disks of virtual boards

With --watch it reports each change until Ctrl-C. With --json too, each is a line of JSON.`
	c.Example = `slipway devices --json
slipway devices --watch`
	watch := c.Switch("watch", "report each device that comes, goes or changes, until Ctrl-C")
	asJSON := c.Switch("json", "print them as JSON")
	c.RunSignalled(func(ctx context.Context, _ []string) error {
		if *watch {
			return ci.WatchDevices(ctx, stdout, options, *asJSON)
		}
		return ci.ListDevices(ctx, stdout, options, *asJSON)
	})
	return c
}

// runUnlessFailed returns err or, if it is nil, the result of then.
func runUnlessFailed(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

func flashCommand() *Command {
	c := New("flash BOARD DEVICE[,DEVICE...]", "Write a board's image to a device, after showing what it would erase")
	c.Long = `BOARD is a name, or a folder with its image: one with an artifact.json, or a machine's folder
tmp/deploy/images/MACHINE of a build by bitbake without Slipway.

The device is one of these, or several with commas between them:
- a file, which is a virtual disk: a name such as disk.img, or file:NAME
- a whole disk: /dev/sdX
- a Jetson in recovery mode, by its USB port: usb:1-2.3
- a BlueField: /dev/rshim0, or user@host:/dev/rshim0

Slipway refuses a device that is in use, too small, or the system's own. It also refuses one
that is not removable, unless you give its serial.

The image may be packed (` + strings.Join(source.FormNames(), ", ") + `). Without --raw
it must be that of a whole disk, with a partition table that fits.

Slipway writes only the parts that differ from the device's contents, and reads them back. So an
interrupted flash continues when you repeat it. Until a disk is complete it has no
partition table. Slipway keeps the old table in its state folder.

With --image=- the image comes from a pipe, and --yes confirms the device. --grow is for a
device that is larger than its image: before it is complete, the last partition gets the rest of the
device, and so does an ext4 in it (resize2fs).

A device that fails does not stop the others. With --json each device has a receipt. The
receipt of a failed flash has an "error" and its "reason": refused, image or device. flash.json in
the board's folder below ~/.local/state/slipway/boards keeps the last receipt of each device.`
	c.exits = []exit{exitBoardFile, {6, "a device was refused or not confirmed"}, {7, "the image is missing, damaged, not signed, none of a disk, or refused by a policy"}, {8, "a device is faulty"}}
	c.Example = `slipway flash virt build/virt/machine/disk.img
slipway flash build/tmp/deploy/images/qemux86-64 /dev/sdX --dry-run
slipway flash BOARD /dev/sdX --dry-run  # to see what would be done
slipway flash BOARD /dev/sdX --yes=SERIAL  # for a script
slipway flash BOARD /dev/sdX,/dev/sdY  # for two cards from one decode
slipway flash BOARD /dev/sdX --identity=lab-7.yml  # with a host name and a user of its own
slipway flash BOARD usb:1-2.3,usb:1-4 --force-recovery  # for two Jetsons side by side
slipway flash BOARD /dev/sdX --image=- --yes=SERIAL --grow  # the image is standard input, such as that of curl
slipway flash bluefield2 /dev/rshim0 --image=bf-bundle.bfb --config=bf.cfg`
	image := c.Text("image=FILE", "", "write this instead of the board's build: a path, https://, host:path, oci://, or - for standard input")
	blockMap := c.Text("block-map=FILE", "", "the image's block map; the file beside the image if not given")
	holes := c.choice("holes", flash.Holes, "what to do with blocks that are not in the map; zero if not given")
	blind := c.Switch("blind", "do not read back the written data")
	yes := c.Names("yes", "do not ask: each device's serial, with commas between them (its port if another has the same serial, its path if it has none)")
	digest := c.Text("digest=DIGEST", "", "the image's digest: sha256:HEX, or the path or address of a list such as SHA256SUMS")
	signers := c.Text("signers=FILE", "", "refuse an image that none of these signed: a GPG keyring, or a file of allowed signers (or SLIPWAY_SIGNERS)")
	pkc := c.Text("pkc=FILE", "", "private key (PEM) to sign the boot files with, for Jetsons whose fuses require it")
	sbk := c.Text("sbk=FILE", "", "key (words of hex) to encrypt these boot files with")
	forceRecovery := c.Switch("force-recovery", "bring Jetsons into recovery mode by the command of board.yml")
	config := c.Text("config=FILE", "", "a bf.cfg for the installer in a BlueField's boot stream, such as a line ubuntu_PASSWORD='HASH'; openssl passwd -6 makes a hash")
	grow := c.Switch("grow", "give the last partition the rest of the device, and its ext4 too")
	raw := c.Switch("raw", "write the image as it is, also without a partition table that fits")
	otherBoard := c.otherBoard()
	row := c.Text("identity=FILE", "", "give the one disk a host name, address, user and files of its own: flash/identity.md")
	dryRun := c.Switch("dry-run", "show what would be written and check the image, and write nothing")
	asJSON := c.Switch("json", "print the receipts as JSON")
	c.check = func(words []string) error { return c.checkFlash(words[0], words[1], *digest) }
	c.Run = func(ctx context.Context, words []string) error {
		board, device := words[0], words[1]
		if err := c.refuseImage(board, device); err != nil {
			return err
		}
		return runFor(ctx, board, images.LoadBuilt, func(ctx context.Context, spec images.Spec) error {
			return ci.Flash(ctx, stdout, spec, options, splitList(device), flash.Options{
				Image: *image, BlockMap: *blockMap, Digest: *digest, Signers: *signers,
				Holes: *holes, Blind: *blind, ForceRecovery: *forceRecovery, Config: *config,
				PKC: *pkc, SBK: *sbk, Raw: *raw, Grow: *grow, OtherBoard: *otherBoard,
				Yes: *yes, DryRun: *dryRun, Confirm: devices.Ask(os.Stdin, stderr), Out: stderr,
			}, *row, *asJSON)
		})
	}
	c.viaHub(asJSON, c.flashSteps(yes), "yes", "json")
	return c
}

// checkFlash refuses a device in the place of the board, and a digest without its kind.
func (c *Command) checkFlash(board, device, digest string) error {
	if _, err := images.LoadBuilt(device); err == nil && isDevice(board) {
		return usageError{fmt.Sprintf("flash: %s is a device, and a BOARD stands there", board), append([]string{"flash", device, board}, c.typedFlags(board, device)...)}
	}
	_, named, err := trust.ParseDigest(digest)
	if _, _, wrong := trust.ParseDigest("sha256:" + digest); digest != "" && !named && wrong == nil {
		return usageError{fmt.Sprintf("flash: --digest=%s: write sha256: before the digits", digest), swapWord(typedLine(c.Command), digest, "sha256:"+digest)}
	}
	return err
}

// refuseImage refuses an image in the place of the board, also in dd's form.
func (c *Command) refuseImage(board, device string) error {
	first, to := strings.TrimPrefix(board, "if="), strings.TrimPrefix(device, "of=")
	if isDevice(board) {
		first, to = device, board
	}
	if next := imageFirst(first, to); next != nil {
		return usageError{fmt.Sprintf("flash: %s is an image, and a BOARD stands there: name the one that it is for", first), append(next, c.typedFlags(board, device)...)}
	}
	return nil
}

func isDevice(word string) bool {
	return strings.HasPrefix(word, "/dev/") || devices.SpecialKind(word) != ""
}

// flashLine returns the right command line if the user typed an image before the device, or dd's
// operands; else nil.
func flashLine(words, strays []string) []string {
	if len(words) < 2 {
		return nil
	}
	image, isDD := strings.CutPrefix(words[0], "if=")
	if to, ok := strings.CutPrefix(words[1], "of="); ok && isDD {
		return imageFirst(image, to)
	}
	if len(strays) == 1 && isDevice(strays[0]) && isFile(words[1]) {
		return []string{"flash", words[0], strays[0], "--image=" + words[1]}
	}
	return nil
}

// imageFirst returns the right command line, with a likely board, if the user typed an image where
// the board belongs. It returns nil if the word is a board, or neither a regular file nor a URL.
func imageFirst(image, device string) []string {
	info, err := os.Stat(image)
	isFile := err == nil && info.Mode().IsRegular() || strings.Contains(image, "://")
	if _, err := images.LoadBuilt(image); err == nil || !isFile {
		return nil
	}
	dir := filepath.Dir(image)
	if a, err := images.ReadArtifact(dir); err == nil {
		if f, err := a.File(images.DiskImage); err == nil && f.Name == filepath.Base(image) {
			return []string{"flash", dir, device}
		}
	}
	spec, err := images.LoadOwn("")
	if own, _ := images.OwnBoards(); err != nil || len(own) == 0 {
		spec, err = images.First("for any image", func(s images.Spec) bool {
			return s.Arch == runtime.GOARCH && slices.Contains(s.Flash.Kinds, "block") && slices.Contains(s.Flash.Kinds, "file")
		})
	}
	if err != nil {
		return nil
	}
	return []string{"flash", spec.Board, device, "--image=" + image}
}

// suitesCommand returns the command suites, which lists Slipway's own suites and kinds of checks.
func suitesCommand() *Command {
	c := New("suites", "List Slipway's own suites, and the kinds of checks that a suite can have")
	c.Long = `ci/suites.md shows each section with an example. ci/workloads.md lists the systems that suites
prove.`
	c.Run = func(_ context.Context, _ []string) error {
		return suites.Show(stdout)
	}
	return c
}

// smokeCommand returns the command smoke, which runs suites on a running board.
func smokeCommand() *Command {
	c := New("smoke [BOARD] HOST", "Run suites on a running board, and write the report")
	c.Long = `BOARD is a name, or the folder of a build, also of another machine. The host is as for deploy.
"smoke HOST --suite=my.yml" needs no BOARD and no build, and writes no report. With a BOARD whose
folder is here, Slipway writes report.html, report.json and junit.xml into build/reports/BOARD.

With --as it also prints the report for a program: TAP, JUnit, a page or JSON. Progress goes
to stderr.`
	c.exits = exitsOfSmoke
	c.Example = `slipway smoke virt virt
slipway smoke jetson-orin-nano-devkit root@10.0.0.7 --as=tap
slipway smoke root@10.0.0.7 --suite=my.yml`
	suite := c.suites()
	c.check = func(words []string) error {
		if words[0] == "" && !c.given("suite") {
			return fmt.Errorf("HOST is missing (%s): %s, and no BOARD where --suite is given", hints["HOST"], c.takes())
		}
		host, file := words[0], words[1]
		if _, err := suites.Load(host); err == nil && isFile(host) && !c.given("suite") { // smoke my.yml root@b
			host, file = file, host
		}
		if strings.Contains(host, "@") && isFile(file) {
			return usageError{fmt.Sprintf("smoke: %s is a file, and a BOARD or HOST stands there: a suite is a value of --suite", file), slices.Concat([]string{"smoke", host, "--suite=" + file}, c.typedFlags(words...))}
		}
		return nil
	}
	form := c.reportForm()
	pin := c.pin()
	noReboot := c.Switch("no-reboot", "skip checks that restart the board, and those that follow them")
	c.become()
	c.Run = func(ctx context.Context, words []string) error {
		board, host := words[0], words[1]
		return runPatiently(ctx, func(ctx context.Context, now <-chan struct{}) error {
			spec, err := smokeSpec(board, host, *suite)
			return runUnlessFailed(err, func() error {
				how := []suites.Option{suites.EndTeardown(now), suites.AllowReboots(!*noReboot)}
				r, err := ci.SmokeOn(ctx, stderr, options, spec, host, *pin, how...)
				return showReport(r, err, *form)
			})
		})
	}
	c.viaHub(nil, stepsOnly(job.Step{Do: job.Smoke}))
	return c
}

// suites adds the flag --suite, which replaces the board's suites.
func (c *Command) suites() *[]string {
	value := c.Names("suite", "run these instead of the board's: a goss file or a suite's name, with commas between them")
	c.complete("suite", suiteNames, cobra.ShellCompDirectiveDefault)
	return value
}

// smokeSpec returns the spec for a smoke run. Without a board, it is that of the virtual board that
// host names, or an empty one. suites, if given, replace the board's suites.
func smokeSpec(board, host string, suites []string) (spec images.Spec, err error) {
	if board != "" {
		spec, err = images.LoadBuilt(board)
	} else if virtual, unknown := images.Load(host); unknown == nil && virtual.Machine != nil {
		spec = virtual
	}
	if len(suites) > 0 {
		spec.Suites = suites
	}
	return spec, err
}

// reportCommand returns the command report, which shows reports of earlier runs in another form.
func reportCommand() *Command {
	c := New("report FILE...", "Show reports of earlier runs, also of other machines, in another form")
	c.Long = `A file is a report.json of smoke, up or fleet, a folder with one, or a folder of such folders.
Several files become one report, with a table of boards and checks. Write commas or blanks
between them. A board that fleet did not reach has no report: the index.html of fleet lists it.`
	c.Example = `slipway report build/reports/virt
slipway report build/reports/virt/report.json --as=tap
slipway report a/report.json b/report.json --out=all`
	form := c.reportForm()
	out := c.Text("out=FOLDER", "", "write report.html, report.json and junit.xml into this folder")
	c.Run = func(_ context.Context, words []string) error {
		return report.Convert(stdout, splitList(strings.Join(words, ",")), *form, *out)
	}
	return c
}

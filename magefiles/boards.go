//go:build mage

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"slipway/ci"
	"slipway/ci/doctor"
	"slipway/ci/report"
	suites "slipway/ci/suite"
	"slipway/flash"
	devices "slipway/flash/device"
	"slipway/images"
)

// Up takes a virtual board from nothing to a report.
//
// It installs the packages that this machine lacks (and shows the apt line
// first), builds the image, flashes it to a virtual disk, boots it, deploys to it
// over SSH, runs the smoke suites on it, writes report.html, report.json and
// junit.xml into build/<board>, and switches the board off. What did not change is
// not built again. It exits as smoke does.
//
// Examples: "up"; "up virt -keep" and then "virt:ssh"; "up -json" for a script.
func Up(ctx context.Context,
	board *string, // which virtual board; the default one if not given
	keep *bool, // leave the board on afterwards
	fresh *bool, // fetch Debian's packages anew
	as *string, // print the report as tap, lava, junit, html or json
	json *bool, // the same as -as=json
) error {
	form, err := report.FormOf(given(as, ""), given(json, false))
	if err != nil {
		return err
	}
	return runFor(ctx, given(board, ""), func(ctx context.Context, spec images.Spec) error {
		build := options
		build.Fresh = given(fresh, false)
		r, err := ci.Up(ctx, spec, ci.UpOptions{Build: build, Out: os.Stderr, Keep: given(keep, false)})
		return showReport(r, err, form)
	})
}

// showReport prints a report as text, or in a form for a program.
func showReport(r report.Report, err error, form *report.Form) error {
	if form != nil {
		return errors.Join(err, report.WriteAs(os.Stdout, form, r))
	}
	r.Summary(os.Stdout)
	return err
}

// Version prints which Slipway this is, and of which commit it was compiled.
//
// "unknown" is what nobody recorded: ci/README.md shows how to compile the program with both.
// Reports and artifacts say the same.
//
// Examples: "version"; "version -json"; "--version".
func Version(
	json *bool, // print it as JSON
) error {
	if given(json, false) {
		return printJSON(images.ThisProgram())
	}
	_, err := fmt.Println("slipway", images.ThisProgram())
	return err
}

// Boards lists the boards that Slipway knows.
//
// Example: "boards -json".
func Boards(
	json *bool, // print them as JSON, with all their settings
) error {
	return ci.ListBoards(os.Stdout, given(json, false))
}

// Doctor looks at this machine before a board's build does.
//
// Each finding says what, why it matters and the command that fixes it. It exits with
// an error where the build would stop. With -conf and -branch it looks at a bitbake
// configuration alone: which of the names in it that branch of meta-tegra lacks, and
// what to write instead.
//
// Examples: "doctor jetson-orin-nano-devkit"; "doctor -conf=local.conf -branch=scarthgap".
func Doctor(ctx context.Context,
	board *string, // for which board; the default one, a virtual board, if not given
	conf *string, // look at this local.conf alone
	branch *string, // the branch of meta-tegra, or release of Yocto, that -conf is for
	offline *bool, // ask no server, fetch nothing
	json *bool, // print the findings as JSON
) error {
	if file := given(conf, ""); file != "" || given(branch, "") != "" {
		return doctor.Conf(os.Stdout, file, given(branch, ""), given(json, false))
	}
	return runFor(ctx, given(board, ""), func(ctx context.Context, spec images.Spec) error {
		build := options
		build.Offline = given(offline, false)
		return doctor.Look(ctx, os.Stdout, spec, doctor.Options{Build: build, JSON: given(json, false)})
	})
}

// Build makes a board's image, below build/<board>.
//
// Virtual boards are made of Debian packages, in minutes; the others by bitbake from
// images/boards/<board>/kas.yml, in hours the first time, and not as root: doctor says
// whether this machine can. What bitbake did is in build/<board>/build.html, and for
// programs in build.json. Ctrl-C lets it finish the tasks that run; a second one breaks
// them off. Nobody can log in on what bitbake built unless SLIPWAY_AUTHORIZED_KEYS names
// a file of public keys, and nobody as root, which deploy, container suites and updates
// need, unless SLIPWAY_ROOT_LOGIN is 1, both while it builds.
//
// Examples: "build virt"; "build virt -target=bundle" for an update that RAUC installs, too;
// "build jetson-orin-nano-devkit"; "build jetson-orin-nano-devkit -parse"
// to read its recipes only; "build jetson-orin-nano-devkit -target=u-boot -task=compile".
func Build(ctx context.Context, board string,
	fresh *bool, // fetch Debian's packages anew, of a virtual board
	target *string, // bitbake's targets instead of the project file's, with commas between them; of a virtual board, bundle
	task *string, // bitbake's task instead of the project file's
	Continue *bool, // go on after a failed task as far as possible
	dryRun *bool, // let bitbake say what it would run, and build nothing
	parse *bool, // let bitbake read all recipes, and build nothing
	json *bool, // print the artifact as JSON
) error {
	return runPatientlyFor(ctx, board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
		build := options
		build.Fresh, build.Now = given(fresh, false), now
		build.Request = images.BuildRequest{
			Targets: splitWords(given(target, "")), Task: given(task, ""),
			Continue: given(Continue, false), DryRun: given(dryRun, false), Parse: given(parse, false),
		}
		artifact, err := ci.Build(ctx, os.Stderr, spec, build)
		return ci.ShowArtifact(os.Stdout, artifact, err, given(json, false))
	})
}

// Devices lists what an image can be flashed to from this machine.
//
// These are disks and cards, with what is on them and what speaks against writing
// them; Jetsons in recovery mode, with their module and USB port; BlueFields' rshims;
// and the virtual boards' disks. With -watch it goes on and tells what comes, goes and
// changes, until Ctrl-C; with -json as a line of JSON each.
//
// Examples: "devices -json"; "devices -watch".
func Devices(ctx context.Context,
	watch *bool, // tell what comes and goes, until Ctrl-C
	json *bool, // print them as JSON
) error {
	return withSignals(ctx, func(ctx context.Context) error {
		if given(watch, false) {
			return ci.WatchDevices(ctx, os.Stdout, os.Stderr, options, given(json, false))
		}
		return ci.ListDevices(ctx, os.Stdout, options, given(json, false))
	})
}

func firstError(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

// Flash writes a board's image to a device, after showing what it would erase.
//
// The device is a file (a virtual disk: a name such as disk.img, or file:NAME), a whole
// disk, a Jetson in recovery mode
// (usb:1-2.3, by its USB port) or a BlueField (/dev/rshim0, also as user@host:/dev/rshim0),
// or several of them with commas between. It is refused when it is in use, the system's
// own, too small, or not removable unless its serial is given.
//
// The image may be packed (gz, xz, zst, bz2, zip, sparse). It must be that of a whole
// disk, with a partition table that fits into it, unless -raw is given. Only what differs from what
// the device holds is written, and that is read back; so a flash that was cut off goes
// on when it is called again. Until a disk is whole it has no partition table; what it
// had for one is kept in build/BOARD/replaced.
//
// Of several devices, one that fails does not stop the others. It exits with 6 where a
// device was refused or not confirmed, with 7 where the image is missing, damaged, not
// signed or none of a disk, with 8 where a device is faulty, with 5 where board.yml is
// wrong, and with 1 after any other failure. With -json each device has a receipt; where
// the flash failed, that has an "error" and its "reason": refused, image or device.
//
// Examples: "flash virt build/virt/machine/disk.img"; "flash BOARD /dev/sdX -dryrun"
// to see what would be done; "flash BOARD /dev/sdX -yes=SERIAL" for a script;
// "flash BOARD /dev/sdX,/dev/sdY" for two cards from one decode; "flash BOARD
// usb:1-2.3,usb:1-4 -forcerecovery" for two Jetsons side by side; "flash bluefield2
// /dev/rshim0 -image=bf-bundle.bfb -config=bf.cfg".
func Flash(ctx context.Context, board, device string,
	image *string, // instead of the board's build: a path, https://, host:path, oci://
	blockMap *string, // of that image; the file beside it if not given
	holes *string, // what becomes of what the map leaves out: zero (if not given), discard or keep
	blind *bool, // do not read back what was written
	yes *string, // each device's serial (its port where another has the same one, its path where it has none), with commas between, instead of being asked
	digest *string, // of the image: sha256:HEX, or a list such as SHA256SUMS, a path or an address
	signers *string, // keyring of GPG, file of allowed signers, or minisign's public key: what they did not sign is refused (or SLIPWAY_SIGNERS)
	pkc *string, // private key (PEM) that the boot files are signed with for Jetsons whose fuses ask for it
	sbk *string, // key (words of hex) that they are encrypted with besides
	forceRecovery *bool, // bring Jetsons into recovery mode by the command of board.yml
	config *string, // a bf.cfg for the installer in a BlueField's boot stream; bfb:config makes one
	raw *bool, // write an image that has no partition table, or one that does not fit, as it is
	dryRun *bool, // compare with what is there, write nothing
	json *bool, // print the receipts as JSON
) error {
	return runFor(ctx, board, func(ctx context.Context, spec images.Spec) error {
		return ci.Flash(ctx, os.Stdout, spec, options, splitList(device), flash.Options{
			Image: given(image, ""), BlockMap: given(blockMap, ""), Digest: given(digest, ""), Signers: given(signers, ""),
			Holes: given(holes, ""), Blind: given(blind, false), ForceRecovery: given(forceRecovery, false), Config: given(config, ""),
			PKC: given(pkc, ""), SBK: given(sbk, ""), Raw: given(raw, false),
			Yes: splitList(given(yes, "")), DryRun: given(dryRun, false), Confirm: devices.Ask(os.Stdin, os.Stderr), Out: os.Stderr,
		}, given(json, false))
	})
}

// Suites lists the suites that Slipway brings along, and what a suite can ask a board.
//
// ci/suites.md shows each section with an example.
func Suites() error { return suites.Show(os.Stdout) }

// Smoke runs a board's suites, or those of -suite, on a running board and writes the
// report.
//
// The host is as for deploy. A suite of your own needs no BOARD: "smoke HOST
// -suite=my.yml" runs anywhere, without a build, and writes no file; -as prints its
// report. With a BOARD whose folder build/<board> is here, the report lies in it:
// report.html, report.json and junit.xml. It exits with 3 where the board was not
// reached or lets nobody in, with 4 where a check failed, with 5 where a suite or
// board.yml is wrong, and with 1 after any other failure. The report's "reason" says
// the same.
//
// With -as the report is printed too, for a program: TAP, the lines that LAVA takes
// results from, JUnit, a page or JSON. Progress goes to stderr.
//
// Examples: "smoke virt virt"; "smoke jetson-orin-nano-devkit root@10.0.0.7 -as=tap";
// "smoke root@10.0.0.7 -suite=my.yml".
func Smoke(ctx context.Context, board, host string,
	suite *string, // run these instead of the board's: a goss file or a suite's name, with commas between them
	as *string, // print the report as tap, lava, junit, html or json
	json *bool, // the same as -as=json
	pin *string, // fingerprint of the board's host key, as for deploy
	noReboot *bool, // skip checks that restart the board, and those that follow them
	become *bool, // run programs on the board as root, by sudo (or SLIPWAY_BECOME=sudo)
) error {
	form, wrong := report.FormOf(given(as, ""), given(json, false))
	return runPatiently(asRoot(ctx, become), func(ctx context.Context, now <-chan struct{}) error {
		spec, err := smokeSpec(ctx, board, host, splitList(given(suite, "")))
		return firstError(errors.Join(wrong, err), func() error {
			how := []suites.Option{suites.EndTeardown(now), suites.AllowReboots(!given(noReboot, false))}
			r, err := ci.SmokeOn(ctx, os.Stderr, options, spec, host, given(pin, ""), how...)
			return showReport(r, err, form)
		})
	})
}

// smokeSpec returns the spec of a board with the suites that were named. If suites are
// named, the board may be missing. A virtual board is also found by its host.
func smokeSpec(ctx context.Context, board, host string, suites []string) (spec images.Spec, err error) {
	if board != "" {
		spec, err = loadSpec(ctx, board)
	} else if virtual, unknown := images.Load(host); unknown == nil && virtual.Machine != nil {
		spec = virtual
	}
	if len(suites) > 0 {
		spec.Suites = suites
	}
	return spec, err
}

// Report shows reports of earlier runs, also of other machines, in another form.
//
// A file is a report.json of smoke, up or fleet. Several, with commas or blanks between
// them, become one report with a table of boards and checks. -as prints tap, lava,
// junit, html or json; -out writes report.html, report.json and junit.xml into a folder.
//
// Examples: "report build/virt/report.json -as=tap"; "report a/report.json
// b/report.json -out=all".
func Report(file string,
	as *string, // print it as tap, lava, junit, html or json
	out *string, // write it into this folder
) error {
	form, err := report.FormOf(given(as, ""), false)
	if err != nil {
		return err
	}
	return report.Convert(os.Stdout, splitList(file), form, given(out, ""))
}

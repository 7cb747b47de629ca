package ci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	_ "slipway/ci/offload" // registers its checks as sections of suites
	"slipway/ci/reach"
	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/flash/device"
	"slipway/flash/fetch"
	"slipway/flash/identity"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/images/builder"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// ListBoards writes a table, or JSON, of the boards that Slipway knows. It leaves out boards that
// cannot be loaded, and joins their errors into its own.
func ListBoards(w io.Writer, asJSON bool) error {
	names, err := images.Boards()
	if err != nil {
		return err
	}
	var specs []images.Spec
	var wrong error
	for _, name := range names {
		spec, err := images.Load(name)
		if err != nil {
			wrong = errors.Join(wrong, err)
			continue
		}
		specs = append(specs, spec)
	}
	if asJSON {
		return errors.Join(plaintext.WriteJSON(w, specs), wrong)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "BOARD\tARCH\tBUILT BY\tFLASHED THROUGH\tWHAT IT IS")
	for _, s := range specs {
		builder := plaintext.Either(s.Debian != nil, "mmdebstrap", "bitbake")
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", s.Board, s.Arch, builder, strings.Join(s.Flash.Kinds, ", "), plaintext.OneLine(s.Description))
	}
	return errors.Join(tw.Flush(), wrong)
}

// Build installs the host packages that a build needs, fixes failed host checks where root can, and
// builds the board. A dry run, or a parse without --install, fails if the host must be changed.
func Build(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options) (images.Artifact, error) {
	b, err := builder.Prepare(ctx, spec, opt, "build")
	if err != nil {
		return images.Artifact{}, err
	}
	install := ctx
	switch {
	case opt.Request.DryRun:
		install = host.Forbid(ctx, "--dry-run")
	case opt.Request.Parse && !opt.Install && os.Getenv(host.InstallVariable) != "yes":
		install = host.Forbid(ctx, "--parse without --install")
	}
	log := images.LogPath(opt.BoardDir(spec), "apt")
	if err := host.Ensure(install, w, log, b.HostPackages()...); err != nil {
		return images.Artifact{}, errors.Join(err, b.MissingBesidePackages(ctx))
	}
	if err := b.FixHost(install, w); err != nil {
		return images.Artifact{}, err
	}
	return b.Build(ctx)
}

// BuildBundle builds only a board's update bundle and moves it to file. The result still lists it.
func BuildBundle(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, file string) (images.Artifact, error) {
	opt.Request.Targets = []string{images.Bundle}
	a, err := Build(ctx, w, spec, opt)
	if err != nil {
		return a, err
	}
	f, err := a.File(images.Bundle)
	if err != nil {
		return a, err
	}
	return a, os.Rename(a.Path(f), file)
}

// ShowArtifact writes the kind, size and path of each file of an artifact, or the artifact as JSON.
// It returns err at once if there is one, and writes nothing for the artifact of a dry run.
func ShowArtifact(w io.Writer, a images.Artifact, err error, asJSON bool) error {
	if err != nil {
		return err
	}
	if asJSON && a.Board != "" { // a dry run makes none
		return plaintext.WriteJSON(w, a)
	}
	for _, f := range a.Files {
		fmt.Fprintf(w, "%-10s %10.1f MiB  %s\n", f.Kind, float64(f.SizeBytes)/(1<<20), a.Path(f))
	}
	return nil
}

// Flash writes the board's last build, or how.Image, to devices. If the build has a data partition,
// Flash also writes a new host key and the client key of the board's images.StateDir to it. With
// asJSON, Flash writes a receipt for each device, also if the flash failed. A receipt with an error
// is of a device that is not completely written. row is a file with the identity of the only
// device, "" for none.
func Flash(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, devices []string, how flash.Options, row string, asJSON bool) error {
	receipts, err := flashAll(ctx, spec, opt, devices, how, row)
	if asJSON {
		if f := (&flash.Failed{}); errors.As(err, &f) {
			receipts = append(receipts, f.Receipts...)
		}
		return errors.Join(err, plaintext.WriteJSON(w, receipts))
	}
	for _, r := range receipts {
		if !r.DryRun { // else how.Out has it
			fmt.Fprintln(w, r)
		}
	}
	return err
}

// flashAll finds the image, refuses a running virtual board's disk, and writes all devices. It
// creates keys for a virtual board or one with a data partition, but not for how.Image.
func flashAll(ctx context.Context, spec images.Spec, opt images.Options, devices []string, how flash.Options, row string) ([]flash.Receipt, error) {
	a, err := artifactFor(spec, opt, &how, devices)
	if err != nil {
		return nil, flash.Fail(spec.Board, devices, report.Because(ctx, flash.ErrImage, err))
	}
	for _, device := range devices {
		if err := refuseDiskInUse(spec, opt, device); err != nil {
			return nil, flash.Fail(spec.Board, devices, report.Because(ctx, flash.ErrRefused, err))
		}
	}
	if _, err := a.Partition("data"); how.Image == "" && (err == nil || spec.Machine != nil) {
		dir, done, err := identityDir(a, how.DryRun)
		if err != nil {
			return nil, flash.Fail(spec.Board, devices, err)
		}
		defer done()
		id, err := flash.NewIdentity(dir)
		if err != nil {
			return nil, flash.Fail(spec.Board, devices, err)
		}
		how.Identity = &id
	}
	if how.Cache == "" && opt.Cache != "" {
		how.Cache = opt.ImageCacheDir()
	}
	if row == "" {
		return flash.WriteAll(ctx, spec, a, devices, how)
	}
	receipts, err := flashOwn(ctx, spec, a, devices, how, row)
	if err != nil {
		err = flash.Fail(spec.Board, devices, err, receipts...)
	}
	return receipts, err
}

// flashOwn writes the image to one disk, with the identity in the file row. It unpacks the image in
// a temporary folder in that of fetched images. A dry run finds the partition, too.
func flashOwn(ctx context.Context, spec images.Spec, a images.Artifact, devices []string, how flash.Options, row string) ([]flash.Receipt, error) {
	plan, values, err := identity.ReadOne(row)
	if err != nil {
		return nil, report.Because(ctx, report.ErrWrong, err)
	}
	if kind := device.SpecialKind(devices[0]); len(devices) > 1 || kind == device.Tegra || kind == device.RShim {
		return nil, report.Because(ctx, flash.ErrRefused, errors.New("the identity of a file is for one disk, card or virtual disk\nnext: devices"))
	}
	if how.DryRun && how.Image == fetch.Stdin { // which can be read once
		return flash.WriteAll(ctx, spec, a, devices, how)
	}
	files, err := plan.Files(ctx, values, how.Identity)
	if err != nil {
		return nil, err
	}
	id, dir := how.Identity, cmp.Or(how.Cache, images.ImageCacheBeside(a.Dir()))
	how.Identity = nil
	if err := localfile.MkdirAll(dir); err != nil {
		return nil, err
	}
	if how.Image == fetch.Stdin && len(how.Yes) == 0 {
		return nil, report.Because(ctx, flash.ErrRefused, errors.New("standard input has the image, so no question can be answered there: confirm the device by --yes\nnext: devices --json"))
	}
	image, err := flash.Prepare(ctx, spec, a, dir, how)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	own, err := files.Personal(image)
	if err != nil {
		return nil, err
	}
	if how.DryRun {
		return flash.WriteAll(ctx, spec, a, devices, how)
	}
	receipt, err := image.Write(ctx, devices[0], flash.PreparedOptions{Personal: []flash.Personal{own}, Meant: func(d device.Device) error {
		if how.Out != nil {
			d.Describe(how.Out)
			fmt.Fprintf(how.Out, "Image %s, with the identity of %s.\n", image.Receipt().Image, row)
		}
		return device.Confirm(ctx, []device.Device{d}, how.Yes, how.Confirm)
	}})
	if err != nil {
		return nil, err
	}
	if receipt.HostKey = files.HostKey; id != nil {
		err = id.Pin(spec.Board)
	}
	return []flash.Receipt{receipt}, err
}

// identityDir returns the folder of the board's client key, and a function that cleans up. A dry
// run without a key gets a temporary folder, so that it creates no key.
func identityDir(a images.Artifact, dryRun bool) (_ string, done func(), err error) {
	dir, err := a.StateDir()
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(images.ClientKeyPath(dir)); err == nil || !dryRun {
		return dir, func() {}, nil
	}
	dir, err = os.MkdirTemp("", "slipway-identity-")
	return dir, func() { os.RemoveAll(dir) }, err
}

// artifactFor returns the board's last build, and checks its files. If the user named a deploy
// folder of bitbake as the board, it sets how.Image to that folder's image for devices[0]. Without
// a build, but with how.Image, it returns an artifact without files.
func artifactFor(spec images.Spec, opt images.Options, how *flash.Options, devices []string) (a images.Artifact, err error) {
	dir := opt.BoardDir(spec)
	if how.Image == "" {
		if how.Image, err = spec.DeployedImage(filesFor(devices[0])...); err != nil {
			return a, err
		}
	}
	a, err = images.ArtifactOf(spec, dir)
	if err == nil {
		err = a.Check()
	}
	if how.Image == "" || !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	return images.NoArtifact(spec, dir), nil
}

// filesFor returns the kinds of image files for the device of this name, the preferred kind first.
func filesFor(name string) []string {
	switch device.SpecialKind(name) {
	case device.Tegra:
		return []string{images.Tegraflash}
	case device.RShim:
		return []string{images.BFB}
	}
	return []string{images.DiskImage, images.Tegraflash}
}

// refuseDiskInUse returns an error if a device name is the disk of this virtual board and it runs.
func refuseDiskInUse(spec images.Spec, opt images.Options, name string) error {
	dir := opt.MachineDir(spec)
	disk, err := filepath.Abs(filepath.Join(dir, qemu.DiskName))
	if err != nil {
		return err
	}
	named, err := filepath.Abs(strings.TrimPrefix(name, device.FilePrefix))
	if err != nil || named != disk {
		return err
	}
	if old, err := qemu.Find(dir); err == nil {
		return fmt.Errorf("%s is on (pid %d) with that disk\nnext: virt stop %s", spec.Board, old.PID, plaintext.Quote(spec.TypedName()))
	}
	return nil
}

// Deploy deploys the artifact's files and container to a board, and writes how much was deployed.
func Deploy(ctx context.Context, w io.Writer, c *boardssh.Conn, spec images.Spec, a images.Artifact) error {
	deployed, err := container.DeployArtifact(ctx, c, spec, a)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, summarizeDeploy(deployed))
	return err
}

// summarizeDeploy returns the number and size of the deployed files, and any container, as text.
func summarizeDeploy(d container.Deployed) string {
	var bytes int64
	for _, f := range d.Files {
		bytes += f.SizeBytes
	}
	text := fmt.Sprintf("%d files, %.1f MiB", len(d.Files), float64(bytes)/(1<<20))
	if d.Image != "" {
		text += ", container " + d.Image
	}
	return text
}

// SmokeOn connects to the board at host (pin: its key's fingerprint, or ""), runs its suites, and
// writes the report, also if it cannot connect. It writes no file if the board has no name or no
// build folder, or if the run did not begin.
func SmokeOn(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, host, pin string, how ...suite.Option) (report.Report, error) {
	dir, a, err := artifactOf(opt, spec)
	if err != nil {
		return report.Refused(spec, err)
	}
	r, err := reachAndSmoke(ctx, opt, spec, a, host, pin, how...)
	r.Target = host
	if _, none := os.Stat(dir); none != nil || errors.Is(err, report.ErrNotBegun) {
		return r, err // nothing was built here, or no board was asked
	}
	return r, errors.Join(err, r.WriteAndPrintPath(w, opt.ReportDir(spec)))
}

// artifactOf returns the folder of a board's builds and the last artifact in it, which has no files
// if nothing was built. A spec without a board's name has neither.
func artifactOf(opt images.Options, spec images.Spec) (dir string, a images.Artifact, err error) {
	if spec.Board == "" {
		return "", a, nil
	}
	dir = opt.BoardDir(spec)
	a, err = images.ArtifactOf(spec, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, images.NoArtifact(spec, dir), nil
	}
	return dir, a, err
}

// reachAndSmoke loads the suites, connects to the board, removes the old report, and runs the
// suites. In the report, a failed connection is a failed stage.
func reachAndSmoke(ctx context.Context, opt images.Options, spec images.Spec, a images.Artifact, host, pin string, how ...suite.Option) (report.Report, error) {
	named := spec
	named.Board = cmp.Or(spec.Board, host)
	r := report.New(named)
	r.Source = a.Source
	if _, err := suite.LoadAll(spec); err != nil { // before the board is contacted
		return report.Refused(named, report.NotBegun(report.Because(ctx, report.ErrWrong, err)))
	}
	conn, err := reach.Connect(ctx, opt, spec, host, pin)
	if err == nil {
		defer conn.Close()
	}
	if errors.Is(err, report.ErrNotBegun) {
		return report.Refused(named, err)
	}
	if spec.Board != "" {
		err = cmp.Or(report.Remove(opt.ReportDir(spec)), err) // it is not that of this run
	}
	if err != nil {
		r.AddFailure("connect", err, "correct that, then run smoke again")
		return r, err
	}
	return suite.Run(ctx, conn, named, a, append(how, suite.KeepMetrics(opt, spec))...)
}

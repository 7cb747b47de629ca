package flash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/flash/boardssh"
	"slipway/flash/device"
	"slipway/flash/tegra"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// jetsonJob flashes a tegraflash package onto Jetsons in recovery mode, several at once.
type jetsonJob struct {
	request
	work *workDir
	pkg  *tegra.Package
	sum  string // of the package's file
	keys tegra.Keys
	at   string // when it began: its logs are named by that
}

// jetsonHost is the machine to whose USB bus the boards are connected. Tests replace it.
var jetsonHost = tegra.Here

func newJetsonJob(ctx context.Context, r request) (job, error) {
	j := &jetsonJob{request: r, at: time.Now().UTC().Format("20060102-150405")}
	return j, runSteps(ctx, j.close, j.checkOptions, j.checkSettings, as(ErrRefused, j.checkBoards), j.unpackPackage, j.checkPackage)
}

// checkOptions refuses options that apply only to disk images, checks the keys and sets j.keys.
func (j *jetsonJob) checkOptions(context.Context) error {
	o := j.options
	switch {
	case o.BlockMap != "" || o.Holes != "" || o.Blind:
		return errors.New("a Jetson is written by its package's scripts, which know no block map, no holes and no reading back: leave --block-map, --holes and --blind out")
	case o.Identity != nil:
		return errors.New("an SSH identity is written only into disk images; a Jetson's package has its own keys")
	}
	var err error
	j.keys, err = tegra.OpenKeys(o.PKC, o.SBK)
	return err
}

// checkSettings checks the names in flash.module and, with --force-recovery, the recovery command.
func (j *jetsonJob) checkSettings(context.Context) error {
	for name := range j.spec.Flash.Module {
		if known := tegra.ModuleNames(); !slices.Contains(known, name) {
			return fmt.Errorf("board.yml: flash.module: nothing is named %q (have %v)", name, known)
		}
	}
	if j.options.ForceRecovery {
		_, err := tegra.FillPort(j.spec.Flash.Recovery.Command, "")
		return err
	}
	return nil
}

// checkBoards checks each USB port's name. Without --force-recovery it also checks that each port
// has a board of the right chip in recovery mode.
func (j *jetsonJob) checkBoards(context.Context) error {
	for _, d := range j.devices {
		err := tegra.CheckPort(usbPort(d))
		if err == nil && !j.options.ForceRecovery {
			err = j.checkBoard(usbPort(d))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkBoard returns an error unless a Jetson in recovery mode, of flash.chip if set, is on port.
func (j *jetsonJob) checkBoard(port string) error {
	found, err := tegra.At(jetsonHost.Sys, port)
	if err != nil && len(j.spec.Flash.Recovery.Command) > 0 {
		err = fmt.Errorf("%w; --force-recovery lets board.yml's command do that", err)
	}
	if err != nil {
		return err
	}
	if chip := j.spec.Flash.Chip; chip != "" && found.Chip != chip {
		return fmt.Errorf("the board on USB port %s is a %s (%s), and board %s has chip %s (flash.chip): it is another board", found.Port, found.Module, found.Chip, j.spec.Board, chip)
	}
	return nil
}

func usbPort(d device.Device) string { return strings.TrimPrefix(d.Path, "usb:") }

// unpackPackage makes the work folder, unpacks the package into it, and sets j.pkg and j.sum.
func (j *jetsonJob) unpackPackage(ctx context.Context) (err error) {
	j.work, err = newWorkDir()
	if err == nil {
		j.pkg, j.sum, err = j.work.unpackPackage(ctx, j.request)
	}
	return err
}

// checkChip returns an error if a tegraflash package is for another chip than board.yml's
// flash.chip; nil if one of the two is unset.
func (r request) checkChip(pkg *tegra.Package) error {
	if chip := r.spec.Flash.Chip; chip != "" && pkg.Chip != "" && pkg.Chip != chip {
		return fmt.Errorf("the package is for chip %s, board %s has %s (flash.chip): it is another board's", pkg.Chip, r.spec.Board, chip)
	}
	return nil
}

// checkPackage checks the package's chip, files and keys, that its scripts cannot flash another
// board, and that this machine has the programs and the rights that they need.
func (j *jetsonJob) checkPackage(ctx context.Context) error {
	if err := j.checkChip(j.pkg); err != nil {
		return err
	}
	if err := j.pkg.Check(); err != nil {
		return err
	}
	if err := j.pkg.CheckKeys(j.keys); err != nil {
		return err
	}
	if err := j.checkDistinct(); err != nil {
		return err
	}
	return j.pkg.Ready(ctx)
}

// checkDistinct returns an error if the package's scripts could flash the board on another port.
// With --force-recovery, the boards enter recovery mode one by one, so it checks nothing.
func (j *jetsonJob) checkDistinct() error {
	if j.options.ForceRecovery {
		return nil
	}
	for _, d := range j.devices {
		if err := j.pkg.CheckOthers(jetsonHost, usbPort(d)); err != nil {
			return fmt.Errorf("%s: %w", d.Path, err)
		}
	}
	return nil
}

// close closes the package's file and removes the work folder.
func (j *jetsonJob) close() {
	j.image.close()
	if j.work != nil {
		j.work.close()
	}
}

// show prints the package, and for each port its Jetson in recovery mode, or else the recovery
// command to run, and warnings about the connection.
func (j *jetsonJob) show(w io.Writer) {
	fmt.Fprintf(w, "Package %s of board %s.\n", j.pkg.Describe(), j.spec.Board)
	for _, d := range j.devices {
		if found, err := tegra.At(jetsonHost.Sys, usbPort(d)); err == nil {
			fmt.Fprintf(w, "%s: %s (%s, 0955:%s), all of whose storage that the package names will be replaced.\n", d.Path, found.Module, found.Chip, found.Product)
		} else {
			by, on := j.spec.Flash.Recovery, ""
			if by.SSH != "" {
				on = " on " + by.SSH
			}
			fmt.Fprintf(w, "%s: will be brought into recovery mode%s\n", d.Path, plaintext.OneLine(on+" by: "+strings.Join(by.Command, " ")))
		}
		for _, said := range jetsonHost.Cautions(usbPort(d)) {
			fmt.Fprintf(w, "  note: %s\n", said)
		}
	}
}

// dryRun prints the command that a flash would run for each board, and returns the receipts.
func (j *jetsonJob) dryRun(context.Context) ([]Receipt, error) {
	var receipts []Receipt
	for _, d := range j.devices {
		fmt.Fprintf(j.options.Out, "Dry run: for %s this would be run in a copy of the package: %s. No byte was sent to the board.\n", d.Path, strings.Join(j.pkg.Argv(usbPort(d), j.keys), " "))
		r := j.newReceipt(d)
		r.DryRun = true
		receipts = append(receipts, r)
	}
	return receipts, nil
}

func (j *jetsonJob) newReceipt(d device.Device) Receipt {
	return Receipt{Board: j.artifact.Board, Key: j.artifact.Key, Device: d, Image: j.work.from, Form: "tegraflash " + j.pkg.Release, ImageSHA256: j.sum}
}

// writeDevices flashes all boards in parallel, or one after another if the package's scripts accept
// any board that they find. If one board fails, the others continue. Meanwhile a udev rule keeps
// this machine's desktop from mounting the boards' disks.
func (j *jetsonJob) writeDevices(ctx context.Context) ([]Receipt, error) {
	undo, said := jetsonHost.Quiet(ctx)
	defer undo()
	if said != "" {
		fmt.Fprintln(j.options.Out, "note: "+said)
	}
	receipts, errs := make([]Receipt, len(j.devices)), make([]error, len(j.devices))
	var all sync.WaitGroup
	for i, d := range j.devices {
		all.Go(func() { receipts[i], errs[i] = j.flashBoard(ctx, d) })
		if j.pkg.AcceptsAnyBoard() {
			all.Wait()
		}
	}
	all.Wait()
	return j.splitFailed(receipts, errs)
}

// flashBoard brings one board into recovery mode if the user asked for that, and runs the package's
// scripts on it. With several boards, each gets its own copy of the package. With an error, the
// receipt's Untouched says whether the board is as before.
func (j *jetsonJob) flashBoard(ctx context.Context, d device.Device) (Receipt, error) {
	r := j.newReceipt(d)
	r.Untouched = true
	board := tegra.Board{
		Port: usbPort(d), Dir: j.pkg.Dir, Module: j.spec.Flash.Module, Keys: j.keys,
		Logs: filepath.Join(images.LogDir(j.state), "flash-"+usbPort(d)+"-"+j.at),
	}
	if len(j.devices) > 1 {
		board.Dir = filepath.Join(j.work.dir, "board-"+usbPort(d))
		if err := j.pkg.CopyTo(ctx, board.Dir); err != nil {
			return r, err
		}
	}
	if j.options.ForceRecovery {
		if err := j.forceRecovery(ctx, board.Port); err != nil {
			return r, err
		}
	}
	result, err := j.pkg.Flash(ctx, jetsonHost, board)
	if r.Untouched = !result.Begun; err != nil {
		return r, err
	}
	r.Verdict, r.Logs, r.Seconds, r.Finished = result.Verdict, result.Logs, result.Seconds, time.Now().UTC()
	return r, nil
}

// forceRecovery runs board.yml's recovery command, on this machine or on its relay host, waits for
// the board on the USB port, and checks its chip.
func (j *jetsonJob) forceRecovery(ctx context.Context, port string) error {
	argv, err := tegra.FillPort(j.spec.Flash.Recovery.Command, port)
	if err != nil {
		return err
	}
	err = tegra.Force(ctx, jetsonHost, port, func(ctx context.Context) error {
		if j.spec.Flash.Recovery.SSH == "" {
			return run.Run(ctx, run.Command{Argv: argv})
		}
		return runRemotely(ctx, j.spec.Flash.Recovery.SSH, argv)
	})
	if err != nil {
		return err
	}
	return j.checkBoard(port)
}

// reachRelay opens an SSH connection to the host that runs the recovery command. Tests replace it.
var reachRelay = boardssh.Reach

// runRemotely runs a command on host by SSH. It returns an error if the exit status is not 0.
func runRemotely(ctx context.Context, host string, argv []string) error {
	conn, err := reachRelay(ctx, host)
	if err != nil {
		return err
	}
	defer conn.Close()
	result, err := conn.Run(ctx, argv...)
	if err != nil {
		return err
	}
	if result.Status != 0 {
		return fmt.Errorf("%s on %s: exit status %d: %s", argv[0], conn.Address(), result.Status, plaintext.OneLine(string(result.Stderr)))
	}
	return nil
}

// workDir is a temporary folder in which a package is unpacked and its scripts run. close removes
// it; newWorkDir removes those of killed jobs. Only the user can write in its parent.
type workDir struct {
	dir, from string
	lock      *os.File
}

const workDirPrefix = "unpacked-"

// newWorkDir removes the folders of killed jobs, then makes and locks a new one. NVIDIA's scripts
// fail in a path with a space, so newWorkDir refuses such a state folder.
func newWorkDir() (*workDir, error) {
	home, err := images.StateHome()
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(home, " \t\n") {
		return nil, fmt.Errorf("%q: NVIDIA's scripts do not work in a folder with a space in its name\nnext: export XDG_STATE_HOME=/var/tmp/slipway-state  # then repeat the line", home)
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	sweepWorkDirs(home)
	dir, err := os.MkdirTemp(home, workDirPrefix)
	if err != nil {
		return nil, err
	}
	b := &workDir{dir: dir}
	if b.lock, err = localfile.LockNow(filepath.Join(dir, "lock"), 0o600); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// close removes the folder with all that is in it, and unlocks it.
func (b *workDir) close() {
	_ = os.RemoveAll(b.dir) // what cannot be removed now, the next job removes
	if b.lock != nil {
		b.lock.Close()
	}
}

// sweepWorkDirs removes the work folders in dir that no process has locked. It skips those younger
// than a minute, which their job may be about to lock.
func sweepWorkDirs(dir string) {
	entries, _ := os.ReadDir(dir) // whose name may have what means something in a pattern
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), workDirPrefix) || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		old := filepath.Join(dir, e.Name())
		if held, err := localfile.LockNow(filepath.Join(old, "lock"), 0o600); err == nil {
			_ = os.RemoveAll(old)
			held.Close()
		}
	}
}

// unpackPackage unpacks the tegraflash package that the user names, or else the artifact's, and
// compares its SHA-256. It sets b.from to its path, and returns the package and the digest.
func (b *workDir) unpackPackage(ctx context.Context, r request) (*tegra.Package, string, error) {
	source := tegra.Archive{Path: r.image.path, SHA256: r.image.sha256, File: r.image.file}
	if source.Path == "" {
		file, err := r.artifact.File(images.Tegraflash)
		if err != nil {
			return nil, "", fmt.Errorf("%w; set IMAGE_FSTYPES to have tegraflash in it and build again", err)
		}
		source = tegra.Archive{Path: r.artifact.Path(file), SHA256: file.SHA256, File: r.image.file}
	}
	b.from = source.Path
	dir := filepath.Join(b.dir, "package")
	sum, err := tegra.Unpack(ctx, source, dir)
	if err != nil {
		return nil, "", err
	}
	p, err := tegra.Open(dir)
	return p, sum, err
}

// makeCardImage makes an image of a card from a tegraflash package, if the user names one, or names
// no image and the artifact has one and no disk image. It runs the package's own script, and puts
// the result into j.image in place of the package.
func (j *imageJob) makeCardImage(ctx context.Context) error {
	_, err := j.artifact.File(images.DiskImage)
	if given := j.image.path != ""; given && !isPackage(j.image.name) || !given && err == nil {
		return nil
	}
	if _, err := j.artifact.File(images.Tegraflash); err != nil && j.image.path == "" {
		return nil // opening the image reports the error
	}
	if j.work, err = newWorkDir(); err != nil {
		return err
	}
	pkg, _, err := j.work.unpackPackage(ctx, j.request)
	if err != nil {
		return err
	}
	for _, step := range []func() error{func() error { return j.checkChip(pkg) }, pkg.Check, func() error { return pkg.CardReady(ctx) }} {
		if err := step(); err != nil {
			return err
		}
	}
	card := filepath.Join(j.work.dir, strings.TrimSuffix(filepath.Base(j.work.from), filepath.Ext(j.work.from))+".sdcard")
	logs := filepath.Join(images.LogDir(j.state), "card-"+time.Now().UTC().Format("20060102-150405"))
	if err := pkg.Card(ctx, card, tegra.Board{Dir: pkg.Dir, Logs: logs, Module: j.spec.Flash.Module}); err != nil {
		return err
	}
	j.image.close()
	j.image = provedImage{path: card, name: filepath.Base(card), proof: "the package it was made of"} // which was proved as it was unpacked
	return nil
}

// isPackage reports whether path's base name contains tegraflash and ends in .zst, .gz, .zip or
// .tar. The content would not tell: a tar archive could also be meant for a disk.
func isPackage(path string) bool {
	name := filepath.Base(path)
	return strings.Contains(name, "tegraflash") && slices.ContainsFunc([]string{".zst", ".gz", ".zip", ".tar"}, func(ending string) bool { return strings.HasSuffix(name, ending) })
}

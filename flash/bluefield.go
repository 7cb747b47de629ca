package flash

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/rshim"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// dpuLimits are the time limits for a DPU. Tests set shorter ones.
var dpuLimits = rshim.Patient

// bluefieldJob pushes one boot stream to several DPUs at once.
type bluefieldJob struct {
	request
	stream    *bfb.File
	proved    os.FileInfo // of the stream's file when its images were proved
	sha256    string
	config    []byte // the bf.cfg that goes behind the stream
	configSum string
	dpus      []*dpu
}

// dpu is one BlueField of a bluefieldJob.
type dpu struct {
	device  device.Device
	port    *rshim.Port
	mode    string
	log     string     // file with its console output
	other   otherBoard // signs that the stream is for another card
	receipt Receipt
	err     error
}

func newBlueFieldJob(ctx context.Context, r request) (job, error) {
	j := &bluefieldJob{request: r}
	return j, runSteps(ctx, j.close, j.checkOptions, j.readConfig, as(ErrRefused, j.openPorts), as(ErrImage, j.openStream), as(ErrRefused, j.checkCards))
}

// close closes the boot stream, the connections to the DPUs and their locks.
func (j *bluefieldJob) close() {
	j.image.close()
	for _, d := range j.dpus {
		d.port.Close()
	}
}

// checkOptions refuses disk images' options, an SSH identity, and a flash without a boot stream.
func (j *bluefieldJob) checkOptions(ctx context.Context) error {
	o := j.options
	switch {
	case o.BlockMap != "" || o.Holes != "" || o.Blind:
		return errors.New("a DPU gets a boot stream, which has no block map and no holes, and cannot be read back: leave --block-map, --holes and --blind out")
	case o.Identity != nil:
		return errors.New("a boot stream has no place for an SSH identity; give the DPU's system its keys by a bf.cfg, with --config")
	}
	_, _, err := j.streamPath()
	return withKind(ctx, ErrImage, err)
}

// readConfig reads and checks the bf.cfg that --config names, if any, and keeps its content and
// SHA-256. The installer in the stream reads the bf.cfg on the DPU.
func (j *bluefieldJob) readConfig(context.Context) (err error) {
	path := j.options.Config
	if path == "" {
		return nil
	}
	if j.config, err = localfile.Read(path, bfb.MaxConfigBytes); err != nil {
		return localfile.ExplainUnreadable(path, err)
	}
	if err := bfb.CheckConfig(j.config); err != nil {
		return fmt.Errorf("%s:%w", path, err)
	}
	sum := sha256.Sum256(j.config)
	j.configSum = hex.EncodeToString(sum[:])
	return nil
}

// streamPath returns the path of the user's boot stream, or else the artifact's and, as built, the
// SHA-256 that the artifact states. built is "" for the user's.
func (j *bluefieldJob) streamPath() (path, built string, err error) {
	if j.image.path != "" {
		return j.image.path, "", nil
	}
	file, err := j.artifact.File(images.BFB)
	if err != nil {
		return "", "", fmt.Errorf("%w; a build makes one only where SLIPWAY_BOOTIMAGES names NVIDIA's firmware; or name a boot stream: --image=FILE.bfb", err)
	}
	return j.artifact.Path(file), file.SHA256, nil
}

// openStream opens the boot stream that the user names, or else the artifact's, and compares that
// one's SHA-256. It checks all images and trailing data: a DPU cannot undo an installation.
func (j *bluefieldJob) openStream(ctx context.Context) error {
	path, built, err := j.streamPath()
	if err != nil {
		return err
	}
	f, err := j.image.open(path)
	if err != nil {
		return err
	}
	step := progress.Start(ctx, "digest "+filepath.Base(path), f.SizeBytes(), progress.Bytes)
	j.sha256, err = f.Seal(ctx, step.Add)
	if err == nil && built != "" && j.sha256 != built {
		err = fmt.Errorf("%s: sha256 %s, the artifact says %s; %s", path, j.sha256, built, rebuildHint(j.artifact))
	}
	step.End("sha256 "+j.sha256, err)
	if err != nil {
		return err
	}
	if j.stream, err = bfb.ReadFile(f); err != nil { // from the sealed file
		return err
	}
	if j.proved, err = j.stream.Stat(); err != nil {
		return err
	}
	if err := j.stream.Verify(ctx); err != nil {
		return err
	}
	return j.checkTrailingData(path)
}

// checkTrailingData refuses trailing data of the stream if --config names a bf.cfg too, because the
// DPU would not read the second one. Else it checks that the data, if a bf.cfg, has no plain
// password. It skips data that is too long for a bf.cfg or has a zero byte.
func (j *bluefieldJob) checkTrailingData(path string) error {
	n := j.stream.TrailingBytes
	if n == 0 {
		return nil
	}
	if j.config != nil {
		return fmt.Errorf("%s: it has %d bytes of trailing data, so that %s would not be read; extract its images (bfb extract) and make a stream without them (bfb make)", path, n, j.options.Config)
	}
	if n > bfb.MaxConfigBytes {
		return nil // a root file system
	}
	text := make([]byte, n)
	if _, err := j.stream.ReadAt(text, j.stream.StreamBytes); err != nil {
		return err
	}
	if slices.Contains(text, 0) {
		return nil
	}
	if err := bfb.CheckConfig(text); err != nil {
		return fmt.Errorf("%s: the bf.cfg in its trailing data, line %w", path, err)
	}
	return nil
}

// openPorts runs openPort for each DPU, up to the first error.
func (j *bluefieldJob) openPorts(ctx context.Context) error {
	for i := range j.devices {
		if err := j.openPort(ctx, &j.devices[i]); err != nil {
			return nameDevice(j.devicePaths(), j.devices[i].Path, err)
		}
	}
	return nil
}

// openPort opens and locks a DPU's rshim device, reads its name and model into d, and adds a new
// dpu to j.dpus. It refuses a DPU that is not ready or of another model; j.close closes that too.
func (j *bluefieldJob) openPort(ctx context.Context, d *device.Device) error {
	port, err := openRShim(ctx, d.Path)
	if err != nil {
		return err
	}
	one := &dpu{port: port, log: filepath.Join(j.state, logName(d.Path)), other: otherBoard{board: j.other.board, allowed: j.other.allowed}}
	j.dpus = append(j.dpus, one)
	if err := port.Hold(); err != nil {
		return err
	}
	m, err := port.CheckReady(ctx)
	if err != nil {
		return err
	}
	d.Port, d.Chip, d.Model = m.Name, m.Info, m.Part
	d.Bus, _, _ = strings.Cut(m.Name, "-")
	if want := j.spec.Flash.DPU; want != "" && !isDPU(m.Info, want) {
		return fmt.Errorf("it is a %s, and board %s is a %s", m.Info, j.spec.Board, want)
	}
	one.device, one.mode = *d, m.Mode
	return nil
}

// checkCards compares the stream's boot loader with each DPU's model, and fills in the receipts. It
// refuses a stream for another model, unless --other-board is given.
func (j *bluefieldJob) checkCards(context.Context) error {
	for _, d := range j.dpus {
		if err := d.other.refuseOrRecord(compareCard(j.stream.Stream, d.device.Chip)); err != nil {
			return nameDevice(j.devicePaths(), d.device.Path, err)
		}
		d.receipt = Receipt{
			Board: j.artifact.Board, Key: j.artifact.Key, Device: d.device, Image: filepath.Base(j.stream.Name()), Form: "bfb",
			ImageSHA256: j.sha256, ImageBytes: j.pushedBytes(), Config: j.configSum, DryRun: j.options.DryRun,
			OtherBoard: d.other.said,
		}
	}
	return nil
}

// rshimDir is the folder of this machine's rshim devices. Tests use another one.
var rshimDir = "/dev"

// openRShim opens the rshim device at path: /dev/NAME on this machine, else one on a remote host.
func openRShim(ctx context.Context, path string) (*rshim.Port, error) {
	if name, local := strings.CutPrefix(path, "/dev/"); local {
		return rshim.At(filepath.Join(rshimDir, name)), nil
	}
	return rshim.Open(ctx, path)
}

// isDPU reports whether info, as BlueField-2(Rev 1), names the model want, in any case of letters.
func isDPU(info, want string) bool {
	name, _, _ := strings.Cut(info, "(")
	return strings.EqualFold(strings.TrimSpace(name), want)
}

var notInLogName = plaintext.Regexp(`[^A-Za-z0-9.@]+`)

// logName returns a DPU's console log: rshim0.log, root@10.0.0.7-22-dev-rshim0.log.
func logName(path string) string {
	return notInLogName().ReplaceAllString(strings.Trim(strings.TrimPrefix(path, "/dev"), "/"), "-") + ".log"
}

// pushedBytes counts the bytes of the stream and of the bf.cfg.
func (j *bluefieldJob) pushedBytes() int64 {
	return j.stream.StreamBytes + j.stream.TrailingBytes + int64(len(j.config))
}

// show prints the DPUs, the boot stream and what a push does to a DPU.
func (j *bluefieldJob) show(w io.Writer) {
	for _, d := range j.dpus {
		d.device.Describe(w)
		if d.mode != "" {
			fmt.Fprintf(w, "  in %s\n", d.mode)
		}
		d.other.show(w)
	}
	fmt.Fprintf(w, "Boot stream %s for board %s: %d images, %s.\n", filepath.Base(j.stream.Name()), j.artifact.Board, len(j.stream.Images), plaintext.SizeText(j.pushedBytes()))
	for _, n := range j.stream.Notes {
		fmt.Fprintf(w, "  note: %s\n", n)
	}
	switch {
	case j.config != nil:
		fmt.Fprintf(w, "  with %s behind it\n", j.options.Config)
	case j.stream.TrailingBytes > 0:
		fmt.Fprintf(w, "  with %s of trailing data (a bf.cfg or a root file system)\n", plaintext.SizeText(j.stream.TrailingBytes))
	}
	fmt.Fprintln(w, "A DPU is reset at once: what runs on it ends, its network ports go down, and the stream decides what becomes of its disk.")
}

// dryRun prints what a flash would push to each DPU, and returns the receipts. It pushes nothing.
func (j *bluefieldJob) dryRun(context.Context) ([]Receipt, error) {
	var receipts []Receipt
	for _, d := range j.dpus {
		fmt.Fprintf(j.options.Out, "Dry run: %s would be reset, get %s and be followed until it reports the result. No byte was pushed.\n", d.device.Path, plaintext.SizeText(j.pushedBytes()))
		receipts = append(receipts, d.receipt)
	}
	return receipts, nil
}

// writeDevices pushes the stream to all DPUs at once. If one DPU fails, the others continue. It
// returns the receipts of those that succeed, and a *Failed for the others.
func (j *bluefieldJob) writeDevices(ctx context.Context) ([]Receipt, error) {
	if err := checkUnchanged(j.stream.File, j.proved); err != nil {
		return nil, fmt.Errorf("nothing was pushed: %w", err)
	}
	var wg sync.WaitGroup
	for _, d := range j.dpus {
		wg.Go(func() { d.err = j.pushStream(ctx, d) })
	}
	wg.Wait()
	var receipts []Receipt
	var errs []error
	for _, d := range j.dpus {
		receipts, errs = append(receipts, d.receipt), append(errs, d.err)
	}
	return j.splitFailed(receipts, errs)
}

// pushStream pushes the stream to one DPU, follows its boot and writes its messages to d.log.
// If that succeeds, it fills the DPU's receipt, and prints errors after which the installer
// continued, and that the host needs a power cycle.
func (j *bluefieldJob) pushStream(ctx context.Context, d *dpu) error {
	began := time.Now()
	log, err := os.Create(d.log)
	if err != nil {
		d.receipt.Untouched = true
		return err
	}
	fmt.Fprintf(log, "%s %s to %s\n", began.UTC().Format(time.RFC3339), j.stream.Name(), d.device.Path)
	verdict, err := d.port.Push(ctx, j.streamParts(), dpuLimits, log)
	if err == nil && len(verdict.Errors) > 0 {
		fmt.Fprintf(j.options.Out, "%s reported errors, and continued: %s\n", d.device.Path, strings.Join(verdict.Errors, "; "))
	}
	if err == nil && verdict.PowerCycle {
		fmt.Fprintf(j.options.Out, "%s: its NIC's new firmware works once the host was switched off and on.\n", d.device.Path)
	}
	if err := errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("%w\n  all that it said: %s", err, d.log)
	}
	r := &d.receipt
	r.DPU, r.Verdict, r.Logs, r.WrittenBytes = &verdict, verdict.Line, d.log, j.pushedBytes()
	r.Seconds, r.Finished = time.Since(began).Seconds(), time.Now().UTC()
	return nil
}

// streamParts returns the parts to push to a DPU: the boot stream, then the bf.cfg if one is given.
func (j *bluefieldJob) streamParts() []rshim.Part {
	parts := []rshim.Part{{Name: j.stream.Name(), Data: j.stream, SizeBytes: j.stream.StreamBytes + j.stream.TrailingBytes}}
	if j.config != nil {
		parts = append(parts, rshim.Part{Name: j.options.Config, Data: strings.NewReader(string(j.config)), SizeBytes: int64(len(j.config))})
	}
	return parts
}

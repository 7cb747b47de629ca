// Package flash writes an artifact's image to a card, a disk, a virtual disk, a Jetson or a
// BlueField, and reads it back. It never writes to a device that nobody confirmed; see
// flash/device. Package boardssh works on the running board.
package flash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"slipway/flash/device"
	"slipway/flash/fetch"
	"slipway/flash/rshim"
	"slipway/images"
	"slipway/layers/plaintext"
)

// Options are the user's options of a flash.
type Options struct {
	Identity      *Identity                   // written into the data partition; nil leaves that as the image has it
	Yes           []string                    // confirm without a question, one entry for each device: its serial; its port if another device has the same serial; its path for files, loop devices, and removable devices without a serial
	Confirm       func([]device.Device) error // asks a person if Yes is empty; see device.Ask
	Image         string                      // replaces the artifact's image: a path, or a reference as fetch reads it
	BlockMap      string                      // the image's block map, named the same way; "" looks beside the image
	Digest        string                      // of the image's file: sha256:HEX, or a reference to a list such as SHA256SUMS
	Signers       string                      // a file of allowed signers, or a keyring of GPG; "" is SLIPWAY_SIGNERS: nothing else than what they signed is written
	Cache         string                      // folder of fetched files; "" is cache/images beside the artifact's folder
	Holes         string                      // how to treat the parts that the block map skips: zero (also "") or keep
	Blind         bool                        // do not read back
	ForceRecovery bool                        // bring Jetsons into recovery mode by the board's command
	PKC, SBK      string                      // files with keys that a Jetson's boot files are signed and encrypted with
	Config        string                      // a bf.cfg for the installer in a BlueField's boot stream
	OtherBoard    bool                        // write also files that are made for another board
	Raw           bool                        // write also an image that probe.CheckImage refuses
	Grow          bool                        // the last partition, and an ext4 in it, grow to the device's end
	DryRun        bool                        // stop before the first write
	Out           io.Writer                   // shows the device and the planned steps; nil shows nothing

	unpack   bool                      // into a file for a Prepared
	prepared *Prepared                 // the image; nil: resolveImage finds it
	meant    func(device.Device) error // confirms the one device, in place of Yes and Confirm
	personal []Personal                // what only this device gets
	stamp    string                    // for ReadStamp; "" writes none
	complete func() error              // called before the device becomes whole; nil: nothing to do
}

// Receipt records which image was written to which device, and how it was verified.
type Receipt struct {
	Board          string        `json:"board"`
	Key            string        `json:"key"` // the artifact's
	Device         device.Device `json:"device"`
	Image          string        `json:"image,omitempty"`          // the name of its file
	Origin         string        `json:"origin,omitempty"`         // URL that the image was fetched from
	SignedBy       []string      `json:"signedBy,omitempty"`       // who signed the image, or the artifact
	Form           string        `json:"form,omitempty"`           // how the image is packed
	ImageSHA256    string        `json:"imageSha256"`              // of the file, as the artifact has it
	MapSHA256      string        `json:"mapSha256"`                // of the block map
	UnpackedSHA256 string        `json:"unpackedSha256,omitempty"` // of the image that was written, if it has no block map
	Ranges         int64         `json:"ranges,omitempty"`         // of the block map, whose digests the image was proved by
	ImageBytes     int64         `json:"imageBytes"`               // unpacked
	WrittenBytes   int64         `json:"writtenBytes"`             // of data
	LeftBytes      int64         `json:"leftBytes"`                // of data that the device had already, by a comparison
	ZeroedBytes    int64         `json:"zeroedBytes"`              // of ranges without data
	Holes          string        `json:"holes,omitempty"`          // what was done with ranges without data: zero or keep
	ReadBack       bool          `json:"readBack"`                 // all written data was read back
	VerifiedBytes  int64         `json:"verifiedBytes"`            // that were read back and compared
	HostKey        string        `json:"hostKey,omitempty"`        // fingerprint
	Verdict        string        `json:"verdict,omitempty"`        // the result that the board itself reports, if it does
	Logs           string        `json:"logs,omitempty"`           // a folder or a file with the output during the flash
	Saved          []string      `json:"saved,omitempty"`          // files with the first and last bytes of the device, saved before the flash
	Config         string        `json:"configSha256,omitempty"`   // of the bf.cfg that a DPU was given
	Seconds        float64       `json:"seconds"`
	BytesPerSecond int64         `json:"bytesPerSecond,omitempty"` // of data
	Finished       time.Time     `json:"finished"`                 // or when it failed
	DryRun         bool          `json:"dryRun,omitempty"`
	Raw            bool          `json:"raw,omitempty"`        // the partition table was not checked
	Grown          string        `json:"grown,omitempty"`      // what Options.Grow did, or would do
	OtherBoard     []string      `json:"otherBoard,omitempty"` // signs of another board that --other-board allowed

	Error  string `json:"error,omitempty"`  // why the device is not complete; "" if it is
	Reason string `json:"reason,omitempty"` // the kind of Error: refused, image, device; "" for any other

	DPU *rshim.Verdict `json:"dpu,omitempty"` // the result that a BlueField reported

	Untouched bool `json:"-"` // the failed device is as it was before
}

// String returns the device's path with the board's own verdict, or else with whether it was read
// back, and a line for each path in Saved. The step of the flash has said how much was written.
func (r Receipt) String() string {
	return r.Device.Path + ": " + cmp.Or(r.Verdict, plaintext.Either(r.ReadBack, "whole", "written, and not read back")) + savedText(r.Saved)
}

// savedText returns a line for each path, of a file with what the ends of a device held before.
func savedText(paths []string) (text string) {
	for _, path := range paths {
		text += "\n  what it held before: " + path
	}
	return text
}

// request is the input of a flasher: one artifact, the devices of one kind, and the user's options.
type request struct {
	spec     images.Spec
	artifact images.Artifact
	devices  []device.Device
	options  Options
	image    provedImage
	other    *otherBoard
	state    string // folder of receipts, logs and replaced content
}

func (request) prepare(context.Context) error { return nil }

func (r request) devicePaths() []string {
	paths := make([]string, len(r.devices))
	for i, d := range r.devices {
		paths[i] = d.Path
	}
	return paths
}

// runSteps runs the steps that prepare a job. If one fails, it returns the error, after closeJob.
func runSteps(ctx context.Context, closeJob func(), steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			closeJob()
			return err
		}
	}
	return nil
}

// job is one flash. Its constructor checks as much as possible and writes nothing. Then WriteAll
// shows the job, has the user confirm it, and calls prepare and writeDevices.
type job interface {
	show(w io.Writer)
	// prepare runs the checks that take long. It writes nothing to a device.
	prepare(ctx context.Context) error
	// dryRun prints what writeDevices would do. It opens no device for writing.
	dryRun(ctx context.Context) ([]Receipt, error)
	// writeDevices returns a receipt for each complete device, even if others failed. The error is
	// a *Failed, with receipts of all that failed, unless nothing was written.
	writeDevices(ctx context.Context) ([]Receipt, error)
	// close is called once, whether the job was run or not.
	close()
}

// flashers has the constructor of the job that writes each kind of device.
var flashers = map[string]func(context.Context, request) (job, error){
	device.File:  newImageJob,
	device.Block: newImageJob,
	device.Tegra: newJetsonJob,
	device.RShim: newBlueFieldJob,
}

// Write writes the artifact to one device, as WriteAll does.
func Write(ctx context.Context, spec images.Spec, artifact images.Artifact, device string, o Options) (Receipt, error) {
	receipts, err := WriteAll(ctx, spec, artifact, []string{device}, o)
	if err != nil {
		return Receipt{}, err
	}
	return receipts[0], nil
}

// WriteAll asks for a confirmation and writes the artifact to devices of one kind. It reads disks
// back. A virtual disk appears complete or not at all. An incomplete block device has zeros instead
// of its partition table; call WriteAll again to resume. If a device fails, WriteAll still finishes
// the others: it returns receipts of the complete ones, and a *Failed with those of the others.
func WriteAll(ctx context.Context, spec images.Spec, artifact images.Artifact, devices []string, o Options) ([]Receipt, error) {
	var receipts []Receipt
	chosen, err := chooseDevices(spec, artifact, devices)
	if err != nil {
		err = withKind(ctx, ErrRefused, err)
	} else {
		receipts, err = writeAll(ctx, spec, artifact, chosen, o)
	}
	if err != nil {
		if text, _, _ := strings.Cut(err.Error(), "\nnext: "); o.Image == fetch.Stdin && strings.Contains(text, "standard input: ") {
			err = kindError{err, errors.New(text + fetch.StdinAdvice)} // another step would name a file
		}
		err = fmt.Errorf("flash %s to %s: %w", spec.Board, strings.Join(devices, ", "), err)
		if !strings.Contains(err.Error(), "\nnext: ") && (errors.Is(err, ErrRefused) || errors.Is(err, ErrDevice)) {
			err = fmt.Errorf("%w\nnext: devices", err)
		}
		err = failDevices(spec.Board, chosen, err, receipts...)
	}
	return receipts, err
}

// writeAll verifies the image, makes the job and shows it. Then it asks for a confirmation, records
// the build for a policy, writes, and records the receipts. A dry run ends before the confirmation.
func writeAll(ctx context.Context, spec images.Spec, artifact images.Artifact, chosen []device.Device, o Options) (_ []Receipt, err error) {
	if o.Out == nil {
		o.Out = io.Discard
	}
	err = o.checkKind(chosen[0].Kind)
	if err == nil && o.Image == fetch.Stdin && !o.DryRun {
		if err = device.Confirm(ctx, chosen, o.Yes, nil); err != nil {
			err = fmt.Errorf("standard input has the image, so no question can be answered there: %w", err)
		}
	}
	if err != nil {
		return nil, withKind(ctx, ErrRefused, err)
	}
	r := request{spec: spec, artifact: artifact, devices: chosen, options: o, other: &otherBoard{board: spec.Board, allowed: o.OtherBoard}}
	j, err := r.openJob(ctx)
	if err != nil {
		return nil, err
	}
	defer j.close()
	j.show(o.Out)
	r.image.showOrigin(o.Out)
	r.other.show(o.Out)
	if o.DryRun {
		if err := j.prepare(ctx); err != nil {
			return nil, err
		}
		return r.other.addTo(r.image.addOrigin(j.dryRun(ctx)))
	}
	if o.meant != nil {
		err = o.meant(chosen[0])
	} else {
		err = device.Confirm(ctx, chosen, o.Yes, o.Confirm)
	}
	if err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(o.Out) // ends the line of the question
		}
		return nil, withKind(ctx, ErrRefused, err)
	}
	if err := j.prepare(ctx); err != nil {
		return nil, err
	}
	if err := r.image.admitted.Record(); err != nil {
		return nil, withKind(ctx, ErrImage, err)
	}
	return r.recordReceipts(func() ([]Receipt, error) { return r.other.addTo(r.image.addOrigin(j.writeDevices(ctx))) })
}

// openJob verifies the image, unless it is prepared, and makes the job for the devices' kind. It sets
// r's folder of receipts and image.
func (r *request) openJob(ctx context.Context) (_ job, err error) {
	if r.options.Image == "" {
		if err := r.other.refuseOrRecord(compareBoard(r.spec, r.artifact, images.ArtifactPath(r.artifact.Dir()))); err != nil {
			return nil, withKind(ctx, ErrImage, err)
		}
	}
	if r.state, err = r.artifact.StateDir(); err != nil {
		return nil, err
	}
	if p := r.options.prepared; p != nil {
		r.image = p.image
	} else if r.image, err = resolveImage(ctx, *r); err != nil {
		return nil, withKind(ctx, ErrImage, err)
	}
	r.options.Image, r.options.BlockMap = r.image.path, r.image.mapPath
	return flashers[r.devices[0].Kind](ctx, *r)
}

// checkKind refuses options that affect only another kind of device.
func (o Options) checkKind(kind string) error {
	switch {
	case o.ForceRecovery && kind != device.Tegra:
		return errors.New("only Jetsons, as usb:1-2, are brought into recovery mode: leave --force-recovery out")
	case (o.PKC != "" || o.SBK != "") && kind != device.Tegra:
		return errors.New("only the packages of Jetsons, as usb:1-2, are signed as they are flashed: leave --pkc and --sbk out")
	case o.Raw && kind != device.File && kind != device.Block:
		return errors.New("only disks, cards and files take an image without a partition table: leave --raw out")
	case o.Image == fetch.Stdin && kind != device.File && kind != device.Block:
		return errors.New("only disks, cards and files take an image from standard input\nnext: repeat the line with --image=FILE for --image=-")
	case o.Grow && kind != device.Block:
		return errors.New("only disks and cards are larger than their image: leave --grow out\nnext: repeat the line without --grow")
	case o.Config != "" && kind != device.RShim:
		return errors.New("only the installer of a BlueField, as /dev/rshim0, reads a bf.cfg: leave --config out")
	}
	return nil
}

// chooseDevices examines the named devices by chooseDevice. It fails unless there is at least one,
// and all differ and are of one kind. It returns all devices, even after an error, as far as known.
func chooseDevices(spec images.Spec, artifact images.Artifact, devices []string) (chosen []device.Device, err error) {
	if len(devices) == 0 {
		return nil, errors.New("no device is named\nnext: devices")
	}
	for _, name := range devices {
		chosen = append(chosen, device.Device{Path: name})
	}
	for n, name := range devices {
		d, err := chooseDevice(spec, artifact, name)
		if d.Path != "" {
			chosen[n] = d
		}
		if err != nil {
			return chosen, nameDevice(devices, name, err)
		}
		if i := slices.IndexFunc(chosen[:n], d.SameAs); i >= 0 {
			return chosen, fmt.Errorf("%s and %s are the same device\nnext: repeat the line with %s for %s", devices[i], name, plaintext.Quote(devices[i]), plaintext.Quote(devices[i]+","+name))
		}
		if first := chosen[0]; first.Kind != d.Kind {
			return chosen, fmt.Errorf("%s is a device of kind %s, %s of kind %s; flash them one after another\nnext: repeat the line with %s for %s", devices[0], first.Kind, name, d.Kind, plaintext.Quote(devices[0]), plaintext.Quote(strings.Join(devices, ",")))
		}
	}
	return chosen, nil
}

// nameDevice marks err, never nil, as that of one of several devices, and prefixes it with the
// device's name. With one device it returns err.
func nameDevice(devices []string, name string, err error) error {
	if len(devices) < 2 {
		return err
	}
	return deviceError{name, fmt.Errorf("%s: %w", name, err)}
}

// chooseDevice examines the device called name. It refuses one that must not be written, with a
// next step, and an artifact of another board than spec's. It returns a refused device too.
func chooseDevice(spec images.Spec, artifact images.Artifact, name string) (device.Device, error) {
	if artifact.Board != spec.Board {
		return device.Device{}, fmt.Errorf("%s is an artifact for board %s", artifact.Dir(), artifact.Board)
	}
	d, err := device.Examine(name)
	if err != nil {
		return device.Device{}, err
	}
	if err = checkDevice(spec, d); err == nil && d.Kind == device.File && !d.Exists() {
		err = checkFolder(artifact, strings.TrimPrefix(name, device.FilePrefix), d)
	}
	if err != nil && !strings.Contains(err.Error(), "\nnext: ") {
		err = fmt.Errorf("%w\nnext: %s", err, refusedStep(name, d.Refused))
	}
	return d, err
}

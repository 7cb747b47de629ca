// Package flash puts an artifact's disk image onto a device, a card, a disk or a
// virtual disk, and proves that it is there. It never writes to a device that it
// was not clearly told to. What then runs on the board is target's.
package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

// ReceiptName is the file beside an artifact that says where it went last.
const ReceiptName = "flash.json"

// Options is what a flash may be told.
type Options struct {
	Identity *Identity          // written into the data partition; nil leaves that as the image has it
	Yes      string             // confirms without asking: the device's serial; the path for files, loop devices, and what is removable and has no serial
	Confirm  func(Device) error // asks a person where Yes is empty; see Ask
	DryRun   bool               // stop before the first write
	Out      io.Writer          // where the device and what will be done is shown; nil shows nothing
}

// Receipt says what was written where, and that it was read back.
type Receipt struct {
	Board         string    `json:"board"`
	Key           string    `json:"key"` // the artifact's
	Device        Device    `json:"device"`
	ImageSHA256   string    `json:"imageSha256"` // as the artifact has it
	MapSHA256     string    `json:"mapSha256"`   // of the block map, whose digests the image was proved by
	ImageBytes    int64     `json:"imageBytes"`
	WrittenBytes  int64     `json:"writtenBytes"`
	VerifiedBytes int64     `json:"verifiedBytes"`
	HostKey       string    `json:"hostKey,omitempty"` // fingerprint
	Seconds       float64   `json:"seconds"`
	Finished      time.Time `json:"finished"`
	DryRun        bool      `json:"dryRun,omitempty"`
}

// flashers is how each kind of device is written.
var flashers = map[string]func(context.Context, *job) error{File: toFile, Block: toBlock}

// job is one flash.
type job struct {
	artifact images.Artifact
	image    images.File
	source   *os.File
	blocks   bmap.Map
	device   Device
	place    images.Partition // where the identity goes, if there is one
	seed     *seed            // nil: the data partition stays as the image has it
	step     *progress.Step
	receipt  Receipt
}

// Write puts the artifact's disk image onto device and reads it back. A virtual
// disk appears whole or not at all. A block device that was not finished holds
// zeros where its partition table belongs, so that nothing takes it for whole;
// Write can simply be called again.
func Write(ctx context.Context, spec images.Spec, artifact images.Artifact, device string, o Options) (Receipt, error) {
	receipt, err := write(ctx, spec, artifact, device, o)
	if err != nil {
		return Receipt{}, fmt.Errorf("flash %s to %s: %w", spec.Board, device, err)
	}
	return receipt, nil
}

func write(ctx context.Context, spec images.Spec, artifact images.Artifact, device string, o Options) (Receipt, error) {
	d, err := choose(spec, artifact, device)
	if err != nil {
		return Receipt{}, err
	}
	j, err := prepare(artifact, d, o.Identity != nil)
	if err != nil {
		return Receipt{}, err
	}
	defer j.source.Close()
	j.show(o)
	if o.DryRun {
		j.receipt.DryRun = true
		return j.receipt, nil
	}
	if err := o.agree(ctx, d); err != nil {
		return Receipt{}, err
	}
	return j.run(ctx, o)
}

// choose finds out what device is and refuses what must not be written.
func choose(spec images.Spec, artifact images.Artifact, device string) (Device, error) {
	if artifact.Board != spec.Board {
		return Device{}, fmt.Errorf("%s is an artifact for board %s", artifact.Dir(), artifact.Board)
	}
	d, err := here.examine(device)
	if err != nil {
		return Device{}, err
	}
	if !slices.Contains(spec.Flash.Kinds, d.Kind) {
		return Device{}, fmt.Errorf("it is a device of kind %s; board.yml names for this board: %s (flash.kinds)", d.Kind, strings.Join(spec.Flash.Kinds, ", "))
	}
	if flashers[d.Kind] == nil {
		return Device{}, fmt.Errorf("this version has no flasher for devices of kind %s (it has: %s)", d.Kind, strings.Join(slices.Sorted(maps.Keys(flashers)), ", "))
	}
	if d.Refused != "" {
		return Device{}, fmt.Errorf("refused: %s", d.Refused)
	}
	return d, nil
}

var packed = []string{".zst", ".gz", ".xz", ".bz2"}

// prepare reads all that there is to know before anything is written.
func prepare(artifact images.Artifact, d Device, withIdentity bool) (*job, error) {
	image, err := artifact.File(images.DiskImage)
	if err != nil {
		return nil, err
	}
	if ending := filepath.Ext(image.Name); slices.Contains(packed, ending) {
		return nil, fmt.Errorf("%s is packed (%s), and this version writes plain disks; for a board built by bitbake, set IMAGE_FSTYPES = \"wic wic.bmap\" and build again", artifact.Path(image), ending)
	}
	blocks, mapSum, err := readMap(artifact)
	if err != nil {
		return nil, err
	}
	if blocks.ImageSize != image.SizeBytes {
		return nil, fmt.Errorf("the block map is of another image: of %d bytes, %s has %d; %s", blocks.ImageSize, image.Name, image.SizeBytes, remake(artifact))
	}
	if d.Kind == Block && d.SizeBytes < image.SizeBytes {
		return nil, fmt.Errorf("it has %s, the image needs %s", sizeText(d.SizeBytes), sizeText(image.SizeBytes))
	}
	var place images.Partition
	if withIdentity {
		if place, err = identityPlace(artifact, image); err != nil {
			return nil, err
		}
	}
	source, err := os.Open(artifact.Path(image))
	if err != nil {
		return nil, err
	}
	return &job{
		artifact: artifact, image: image, source: source, blocks: blocks, device: d, place: place,
		receipt: Receipt{
			Board: artifact.Board, Key: artifact.Key, Device: d,
			ImageSHA256: image.SHA256, MapSHA256: mapSum, ImageBytes: image.SizeBytes,
		},
	}, nil
}

// readMap reads the block map and proves it by the artifact's digest; the map's
// own digests then prove the image, piece by piece while it is written.
func readMap(artifact images.Artifact) (bmap.Map, string, error) {
	file, err := artifact.File(images.BlockMap)
	if err != nil {
		return bmap.Map{}, "", fmt.Errorf("%w; for a board built by bitbake, add wic.bmap to IMAGE_FSTYPES; then %s", err, remake(artifact))
	}
	data, err := readLimited(artifact.Path(file))
	if err != nil {
		return bmap.Map{}, "", err
	}
	sum := sha256.Sum256(data)
	if got := hex.EncodeToString(sum[:]); got != file.SHA256 {
		return bmap.Map{}, "", fmt.Errorf("%s: sha256 %s, the artifact says %s; %s", artifact.Path(file), got, file.SHA256, remake(artifact))
	}
	m, err := bmap.Read(bytes.NewReader(data))
	if err != nil {
		return bmap.Map{}, "", fmt.Errorf("%s: %w", artifact.Path(file), err)
	}
	return m, file.SHA256, nil
}

// mapLimit is more than any block map that bmap.Read takes.
const mapLimit = 64 << 20

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, mapLimit+1))
	if err == nil && len(data) > mapLimit {
		err = fmt.Errorf("%s: more than %d MiB, which no block map has", path, mapLimit>>20)
	}
	return data, err
}

// remake is what to do where a file is not what the artifact says. A build alone
// would find that nothing changed: it looks at the files' sizes only.
func remake(artifact images.Artifact) string {
	return fmt.Sprintf("remove %s and build again", filepath.Join(artifact.Dir(), images.ArtifactName))
}

// identityPlace is the partition that carries the identity.
func identityPlace(artifact images.Artifact, image images.File) (images.Partition, error) {
	part, err := artifact.Partition("data")
	if err != nil {
		return part, fmt.Errorf("the image has no place for an SSH identity: %w", err)
	}
	if part.OffsetBytes < headBytes || part.OffsetBytes%alignment != 0 || part.SizeBytes < 0 || part.SizeBytes > image.SizeBytes-part.OffsetBytes {
		return part, fmt.Errorf("partition %s of %d bytes at %d does not lie inside the image of %d bytes", part.Name, part.SizeBytes, part.OffsetBytes, image.SizeBytes)
	}
	return part, nil
}

func (j *job) show(o Options) {
	if o.Out == nil {
		return
	}
	j.device.describe(o.Out)
	fmt.Fprintf(o.Out, "Image %s of board %s, key %.12s: %s, of which %s hold data.\n", j.image.Name, j.artifact.Board, j.artifact.Key, sizeText(j.image.SizeBytes), sizeText(j.blocks.Mapped()))
	if o.DryRun {
		fmt.Fprintf(o.Out, "Dry run: all of %s would be replaced, read back and compared. Nothing was written.\n", j.device.Path)
	}
}

// agree makes sure that the user means this very device.
func (o Options) agree(ctx context.Context, d Device) error {
	name, what := d.Path, "its path"
	if d.Kind == Block && d.Bus != "loop" && (d.Serial != "" || d.fixed()) {
		name, what = d.Serial, "its serial"
	}
	switch {
	case o.Yes != "" && o.Yes == name, o.Yes != "" && d.Kind == File && samePath(o.Yes, d.Path):
		return nil
	case o.Yes != "":
		return fmt.Errorf("confirmed as %q, but %s is %q; nothing was written", o.Yes, what, name)
	case !d.exists:
		return nil
	case d.fixed():
		return fmt.Errorf("not removable, so it is written only when confirmed by its serial, %q; nothing was written", d.Serial)
	case o.Confirm == nil:
		return fmt.Errorf("not confirmed: confirm it by %s, %q; nothing was written", what, name)
	}
	return ask(ctx, o.Confirm, d)
}

func samePath(a, b string) bool {
	if real, err := filepath.EvalSymlinks(a); err == nil {
		a = real
	}
	a, err := filepath.Abs(a)
	return err == nil && a == b
}

// ask does not wait for an answer any longer once the context has ended.
func ask(ctx context.Context, confirm func(Device) error, d Device) error {
	answer := make(chan error, 1)
	go func() { answer <- confirm(d) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run writes, proves, pins the board's new host key, and leaves a receipt.
func (j *job) run(ctx context.Context, o Options) (Receipt, error) {
	began := time.Now()
	if o.Identity != nil {
		if err := j.plant(ctx, *o.Identity); err != nil {
			return Receipt{}, err
		}
		defer j.seed.close()
	}
	// From here on, an earlier receipt may no longer be true.
	receipt := filepath.Join(j.artifact.Dir(), ReceiptName)
	if err := os.Remove(receipt); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Receipt{}, err
	}
	j.step = progress.Start(ctx, "flash", 2*j.blocks.Mapped(), progress.Bytes)
	err := flashers[j.device.Kind](ctx, j)
	took := time.Since(began)
	j.step.End(fmt.Sprintf("%s written to %s and read back in %.1f s", sizeText(j.receipt.WrittenBytes), j.device.Path, took.Seconds()), err)
	if err != nil {
		return Receipt{}, err
	}
	if o.Identity != nil {
		if err := o.Identity.pin(j.artifact.Board); err != nil {
			return Receipt{}, fmt.Errorf("pin the host key: %w", err)
		}
	}
	j.receipt.Seconds, j.receipt.Finished = took.Seconds(), time.Now().UTC()
	return j.receipt, j.receipt.save(receipt)
}

// plant makes the file system that carries the identity.
func (j *job) plant(ctx context.Context, id Identity) (err error) {
	j.receipt.HostKey = id.Fingerprint()
	j.seed, err = newSeed(ctx, j.place, id)
	return err
}

// transfer is the image's way onto d. Its first head bytes are kept back.
func (j *job) transfer(d *disk, head int64) *transfer {
	return &transfer{
		name: j.source.Name(), remedy: remake(j.artifact), source: j.source, blocks: j.blocks,
		to: d, head: alignedBuffer(int(head)), count: j.step.Add,
	}
}

// fill writes the image, reads it back, and does the same with the identity.
func (j *job) fill(ctx context.Context, t *transfer) error {
	j.step.Detail("writing")
	if err := t.write(ctx); err != nil {
		return err
	}
	if err := t.to.sync(); err != nil {
		return err
	}
	j.receipt.WrittenBytes = j.blocks.Mapped()
	j.step.Detail("reading back")
	if err := t.verify(ctx); err != nil {
		return err
	}
	j.receipt.VerifiedBytes = j.blocks.Mapped()
	if j.seed == nil {
		return nil
	}
	if err := j.seed.apply(ctx, t.to); err != nil {
		return err
	}
	j.receipt.WrittenBytes += j.seed.blocks.Mapped()
	j.receipt.VerifiedBytes += j.seed.blocks.Mapped()
	return nil
}

func (r Receipt) save(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(data, '\n'), 0o644)
}

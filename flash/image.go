package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/progress"
)

// imageJob writes one disk image onto files or block devices.
type imageJob struct {
	options Options
	copies  []*imageCopy
}

// imageCopy is the image's way onto one device.
type imageCopy struct {
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

func newImageJob(_ context.Context, r request) (job, error) {
	if r.options.Identity != nil && len(r.devices) > 1 {
		return nil, errors.New("the SSH identity is one board's, and several devices are named; flash them one after another")
	}
	j := &imageJob{options: r.options}
	for _, d := range r.devices {
		c, err := prepare(r.artifact, d, r.options.Identity != nil)
		if err != nil {
			j.close()
			return nil, err
		}
		j.copies = append(j.copies, c)
	}
	return j, nil
}

func (j *imageJob) close() {
	for _, c := range j.copies {
		c.source.Close()
	}
}

func (j *imageJob) show(w io.Writer) {
	for _, c := range j.copies {
		c.show(w, j.options.DryRun)
	}
}

func (j *imageJob) plan(context.Context) ([]Receipt, error) {
	var receipts []Receipt
	for _, c := range j.copies {
		c.receipt.DryRun = true
		receipts = append(receipts, c.receipt)
	}
	return receipts, nil
}

func (j *imageJob) run(ctx context.Context) ([]Receipt, error) {
	var receipts []Receipt
	var failed []error
	for _, c := range j.copies {
		if receipt, err := c.run(ctx, j.options); err != nil {
			failed = append(failed, err)
		} else {
			receipts = append(receipts, receipt)
		}
	}
	return receipts, errors.Join(failed...)
}

var packed = []string{".zst", ".gz", ".xz", ".bz2"}

// prepare reads all that there is to know before anything is written.
func prepare(artifact images.Artifact, d Device, withIdentity bool) (*imageCopy, error) {
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
	return &imageCopy{
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

func (c *imageCopy) show(w io.Writer, dry bool) {
	c.device.describe(w)
	fmt.Fprintf(w, "Image %s of board %s, key %.12s: %s, of which %s hold data.\n", c.image.Name, c.artifact.Board, c.artifact.Key, sizeText(c.image.SizeBytes), sizeText(c.blocks.Mapped()))
	if dry {
		fmt.Fprintf(w, "Dry run: all of %s would be replaced, read back and compared. Nothing was written.\n", c.device.Path)
	}
}

// run writes, proves, and pins the board's new host key.
func (c *imageCopy) run(ctx context.Context, o Options) (Receipt, error) {
	began := time.Now()
	if o.Identity != nil {
		if err := c.plant(ctx, *o.Identity); err != nil {
			return Receipt{}, err
		}
		defer c.seed.close()
	}
	c.step = progress.Start(ctx, "flash", 2*c.blocks.Mapped(), progress.Bytes)
	write := c.toBlock
	if c.device.Kind == File {
		write = c.toFile
	}
	err := write(ctx)
	took := time.Since(began)
	c.step.End(fmt.Sprintf("%s written to %s and read back in %.1f s", sizeText(c.receipt.WrittenBytes), c.device.Path, took.Seconds()), err)
	if err != nil {
		return Receipt{}, err
	}
	if o.Identity != nil {
		if err := o.Identity.pin(c.artifact.Board); err != nil {
			return Receipt{}, fmt.Errorf("pin the host key: %w", err)
		}
	}
	c.receipt.Seconds, c.receipt.Finished = took.Seconds(), time.Now().UTC()
	return c.receipt, nil
}

// plant makes the file system that carries the identity.
func (c *imageCopy) plant(ctx context.Context, id Identity) (err error) {
	c.receipt.HostKey = id.Fingerprint()
	c.seed, err = newSeed(ctx, c.place, id)
	return err
}

// transfer is the image's way onto d. Its first head bytes are kept back.
func (c *imageCopy) transfer(d *disk, head int64) *transfer {
	return &transfer{
		name: c.source.Name(), remedy: remake(c.artifact), source: c.source, blocks: c.blocks,
		to: d, head: alignedBuffer(int(head)), count: c.step.Add,
	}
}

// fill writes the image, reads it back, and does the same with the identity.
func (c *imageCopy) fill(ctx context.Context, t *transfer) error {
	c.step.Detail("writing")
	if err := t.write(ctx); err != nil {
		return err
	}
	if err := t.to.sync(); err != nil {
		return err
	}
	c.receipt.WrittenBytes = c.blocks.Mapped()
	c.step.Detail("reading back")
	if err := t.verify(ctx); err != nil {
		return err
	}
	c.receipt.VerifiedBytes = c.blocks.Mapped()
	if c.seed == nil {
		return nil
	}
	if err := c.seed.apply(ctx, t.to); err != nil {
		return err
	}
	c.receipt.WrittenBytes += c.seed.blocks.Mapped()
	c.receipt.VerifiedBytes += c.seed.blocks.Mapped()
	return nil
}

package flash

import (
	"bytes"
	"cmp"
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
	"time"

	"golang.org/x/sync/errgroup"

	"slipway/flash/device"
	"slipway/flash/probe"
	"slipway/flash/sealed"
	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// imageJob writes one disk image, decoded once, to files or block devices.
type imageJob struct {
	request
	file    *sealed.File
	info    os.FileInfo // of it, as it was when it was proved
	source  *source.Image
	head    *source.Head // nil: not unpacked yet, or not needed any more
	sha256  string       // of the file, as the artifact has it
	blocks  *bmap.Map
	mapSum  string
	size    int64              // unpacked; unknown until only unpacking told it
	machine string             // the architectures that its content is for
	places  []images.Partition // that get other content than the image's
	seeds   []*seed            // this content
	work    *workDir           // nil: the image is not made for this job
	writers []*deviceWriter

	entries []source.Span // of the GPT's two copies
}

// newImageJob opens and checks the image, its block map and the devices' sizes, and makes a
// deviceWriter for each device, without writing. A tegraflash package becomes an image first.
func newImageJob(ctx context.Context, r request) (job, error) {
	j := &imageJob{request: r}
	err := runSteps(ctx, j.close, j.checkOptions, j.makeCardImage, as(ErrImage, j.openImage), as(ErrRefused, j.refuseOwnImage), as(ErrImage, j.openMap), as(ErrImage, j.proveFile), as(ErrImage, j.setSize),
		as(ErrImage, j.checkImage), as(ErrImage, j.checkMachine), as(ErrRefused, j.checkFit), as(ErrImage, j.checkMapSample))
	if err != nil {
		return nil, err
	}
	for _, d := range r.devices {
		j.writers = append(j.writers, &deviceWriter{job: j, device: d, receipt: j.newReceipt(d)})
	}
	if err := withKind(ctx, ErrImage, j.checkGrow(ctx)); err != nil {
		j.close()
		return nil, err
	}
	j.closeHead()
	return j, nil
}

// Holes are the values of Options.Holes: how to treat the ranges that a block map leaves out.
var Holes = []string{write.Zero, write.Keep}

// checkOptions refuses an unknown value of --holes, and one SSH identity for several devices.
func (j *imageJob) checkOptions(context.Context) error {
	o := j.options
	if o.Holes != "" && !slices.Contains(Holes, o.Holes) {
		return fmt.Errorf("unknown --holes=%s (have %s)", o.Holes, strings.Join(Holes, ", "))
	}
	if o.Identity != nil && len(j.devices) > 1 {
		return errors.New("the SSH identity is one board's, and several devices are named\nnext: devices  # then flash them one after another")
	}
	return nil
}

// openHead returns the Head of a packed image's first maxCheckedBytes: always the same one until
// closeHead, so that all checks of the image share one decode.
func (j *imageJob) openHead(ctx context.Context) *source.Head {
	if j.head == nil {
		j.head = j.source.Head(ctx, maxCheckedBytes)
	}
	return j.head
}

func (j *imageJob) closeHead() {
	if j.head != nil {
		j.head.Close()
		j.head = nil
	}
}

// close closes image and seed, and removes the work folder. closeWriters closes the devices.
func (j *imageJob) close() {
	j.closeHead()
	j.image.close()
	for _, s := range j.seeds {
		s.close()
	}
	if j.work != nil {
		j.work.close()
	}
}

// openImage opens the image that the user names, or else the artifact's, and finds out how it is
// packed. It refuses a file that changed after its verification.
func (j *imageJob) openImage(context.Context) error {
	path := j.image.path
	j.sha256 = j.image.sha256
	if path == "" {
		image, err := j.artifact.File(images.DiskImage)
		if err != nil {
			return err
		}
		path, j.sha256 = j.artifact.Path(image), image.SHA256
	}
	var err error
	if j.file, err = j.image.open(path); err != nil {
		return err
	}
	if j.info = j.image.info; j.info == nil {
		if j.info, err = j.file.Stat(); err != nil {
			return err
		}
	}
	if err := checkUnchanged(j.file, j.info); err != nil {
		return err
	}
	j.source, err = source.Open(j.file, path)
	return nameImage(path, err)
}

// refuseOwnImage refuses a device that is the image's own file, or a loop device over it.
func (j *imageJob) refuseOwnImage(context.Context) error {
	for _, d := range j.devices {
		path := d.Path
		if d.Bus == "loop" {
			path = d.Model // the file behind it
		}
		if info, err := os.Stat(path); err == nil && os.SameFile(info, j.info) {
			return deviceError{d.Path, fmt.Errorf("refused: %s holds the image itself; nothing was written\nnext: ls -l %s  # then name another device or file", d.Path, plaintext.Quote(filepath.Dir(path)))}
		}
	}
	return nil
}

// nameImage puts the image's path in place of IMAGE in err's next step. A changed error wraps none.
func nameImage(path string, err error) error {
	if err == nil || !strings.Contains(err.Error(), " IMAGE") {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), " IMAGE", " "+plaintext.Quote(path)))
}

// checkUnchanged returns an error if inode, size or time of the file differ from was, its state
// when it was verified. A new build may have begun while Slipway asked the user.
func checkUnchanged(f *sealed.File, was os.FileInfo) error {
	now, err := f.Stat()
	if err == nil && (!os.SameFile(now, was) || now.Size() != was.Size() || !now.ModTime().Equal(was.ModTime())) {
		err = fmt.Errorf("%s changed since it was proved; flash again", f.Name())
	}
	return err
}

// openMap parses into j.blocks the block map that the user named or that lies beside the image of
// --image. Without --image, it reads the artifact's. Without a map, all of the image is data.
func (j *imageJob) openMap(context.Context) error {
	var err error
	switch {
	case j.image.blocks != nil:
		j.blocks, j.mapSum = j.image.blocks, j.image.mapSum
	case j.image.mapPath != "":
		j.blocks, j.mapSum, err = parseMap(j.image.mapPath, j.image.mapFile)
	case j.image.path == "":
		j.blocks, j.mapSum, err = artifactMap(j.artifact)
	}
	return err
}

// artifactMap reads the artifact's block map, and returns it with its SHA-256, which must be the
// artifact's; nil and "" without a map. Its digests verify the image while that is written.
func artifactMap(a images.Artifact) (*bmap.Map, string, error) {
	file, err := a.File(images.BlockMap)
	if err != nil {
		return nil, "", nil // an artifact without one
	}
	data, err := localfile.Read(a.Path(file), mapLimit)
	if err != nil {
		return nil, "", err
	}
	m, sum, err := parseMap(a.Path(file), data)
	if sum != "" && sum != file.SHA256 {
		return nil, "", fmt.Errorf("%s: sha256 %s, the artifact says %s; %s", a.Path(file), sum, file.SHA256, rebuildHint(a))
	}
	return m, sum, err
}

// parseMap parses a block map. It returns the SHA-256 of data, its file, even for an invalid map.
func parseMap(path string, data []byte) (*bmap.Map, string, error) {
	sum := sha256.Sum256(data)
	m, err := bmap.Read(bytes.NewReader(data))
	if err != nil {
		return nil, hex.EncodeToString(sum[:]), fmt.Errorf("%s: %w", path, err)
	}
	return &m, hex.EncodeToString(sum[:]), nil
}

// mapLimit is the size limit for a block map's file, larger than any map that bmap.Read accepts.
const mapLimit = 64 << 20

// rebuildHint returns advice for a file whose digest is not the artifact's. A build compares only
// sizes, so it would not replace the file unless the user removes artifact.json.
func rebuildHint(artifact images.Artifact) string {
	return fmt.Sprintf("pull or copy it again, or remove %s and build again", images.ArtifactPath(artifact.Dir()))
}

// fixHint returns advice for an image or block map whose digest or size is wrong.
func (j *imageJob) fixHint() string {
	if j.options.Image != "" {
		return "fetch it again, and give the block map that was made of it"
	}
	return rebuildHint(j.artifact)
}

// proveFile compares the image file's SHA-256 with the artifact's, and seals the file against
// changes. It skips the image of --image, which resolveImage verifies. Except in a dry run, it
// skips a plain image and an image with a map, which are verified while they are written.
func (j *imageJob) proveFile(ctx context.Context) error {
	whileWritten := !j.options.DryRun && (j.source.Form() == "raw" || j.blocks != nil)
	if j.sha256 == "" || j.image.path != "" || whileWritten {
		return nil
	}
	step := progress.Start(ctx, "prove "+filepath.Base(j.file.Name()), j.file.SizeBytes(), progress.Bytes)
	got, err := j.file.Seal(ctx, step.Add)
	if err == nil {
		err = j.sameDigest(got)
	}
	step.End("sha256 "+got, err)
	return err
}

// unknown is the size of an image if neither its file nor a map has it.
const unknown = -1

// setSize sets j.size from the file or the block map, or to unknown; an error if the two differ.
func (j *imageJob) setSize(context.Context) error {
	j.size = j.source.SizeBytes()
	if j.blocks != nil {
		if j.size >= 0 && j.size != j.blocks.ImageSize {
			return fmt.Errorf("the block map is of another image: of %d bytes, %s has %d; %s", j.blocks.ImageSize, filepath.Base(j.file.Name()), j.size, j.fixHint())
		}
		j.size = j.blocks.ImageSize
	}
	return nil
}

// prepare unpacks an image of unknown size once to measure it, and then checks the image and the
// devices' sizes, because Slipway must refuse a device that is too small before it writes. It runs
// after the confirmation, because unpacking takes long.
func (j *imageJob) prepare(ctx context.Context) error {
	if j.size != unknown {
		return nil
	}
	step := progress.Start(ctx, "measure "+filepath.Base(j.file.Name()), 0, progress.Bytes)
	err := j.measureImage(ctx, step.Set)
	step.End(plaintext.SizeText(j.size), err)
	if err == nil {
		err = j.checkImage(ctx)
		j.closeHead()
	}
	if err != nil {
		return withKind(ctx, ErrImage, err)
	}
	for _, w := range j.writers {
		w.receipt.ImageBytes = j.size
	}
	return withKind(ctx, ErrRefused, j.checkFit(ctx))
}

// measureImage decodes and discards the image, sets j.size, and calls count with the size so far.
func (j *imageJob) measureImage(ctx context.Context, count func(int64)) error {
	size := int64(0)
	for i := range j.source.Sections() {
		err := j.source.Decode(ctx, i, nil, func(p source.Piece) error {
			size = p.Off + p.Len
			p.Free()
			count(size)
			return nil
		})
		if err != nil {
			return err
		}
	}
	j.size = size
	return j.source.CheckUnchanged()
}

// sameDigest returns an error unless got is the image file's expected SHA-256.
func (j *imageJob) sameDigest(got string) error {
	if got != j.sha256 {
		return fmt.Errorf("%s: sha256 %s, the artifact says %s; %s", j.file.Name(), got, j.sha256, j.fixHint())
	}
	return nil
}

const (
	// checkedBytes is how much of a packed image is unpacked to check it: more than lies before the
	// first partition. If a GPT's entries are further back, the limit is maxCheckedBytes.
	checkedBytes    = 4 << 20
	maxCheckedBytes = 256 << 20
)

// checkImage refuses a file that is no image of a whole disk, such as a server's error page, a root
// file system, or a truncated image. It also refuses a block map that leaves out the partition
// table, and records where the GPT's entries are. With --raw it refuses only an empty image.
func (j *imageJob) checkImage(ctx context.Context) (err error) {
	if j.options.Raw && j.size != 0 {
		return nil
	}
	var image io.ReaderAt = j.file
	size := j.size
	if j.source.Form() != "raw" {
		head := j.openHead(ctx)
		end := int64(checkedBytes)
		if offset, length, _ := probe.FindGPTEntries(head); offset+length <= maxCheckedBytes {
			end = max(end, offset+length)
		}
		image = io.NewSectionReader(head, 0, end)
		if n, _ := head.ReadAt(make([]byte, 1), 0); n == 0 {
			size = 0
		}
		defer func() { err = cmp.Or(head.Err(), err) }()
	}
	if offset, length, second := probe.FindGPTEntries(image); length > 0 {
		j.entries = []source.Span{{Off: offset, Len: length}, {Off: max(second, offset+length), Len: length}}
	}
	for _, d := range j.devices {
		if err := probe.CheckImage(image, size, d.SectorBytes); err != nil {
			cause, next, _ := strings.Cut(nameDevice(j.devicePaths(), d.Path, err).Error(), "\nnext: ")
			if size != 0 {
				cause += "; --raw writes it as it is"
			}
			return nameImage(j.file.Name(), fmt.Errorf("%s: %s\nnext: %s", j.file.Name(), cause, next))
		}
		if j.blocks == nil {
			continue
		}
		if err := probe.CheckImage(mappedImage{image, j.blocks}, size, d.SectorBytes); err != nil {
			return fmt.Errorf("the block map leaves out the partition table of %s, or a part of it; --raw writes the image by the map\nnext: ls -ls %s  # then make the map again by bmap", j.file.Name(), plaintext.Quote(j.file.Name()))
		}
	}
	return nil
}

// mappedImage reads an image as it will be on the device: with zeros in the holes of the block map.
type mappedImage struct {
	io.ReaderAt
	blocks *bmap.Map
}

// ReadAt reads from the image, and puts zeros in the place of bytes that the map leaves out.
func (m mappedImage) ReadAt(p []byte, off int64) (int, error) {
	n, err := m.ReaderAt.ReadAt(p, off)
	for at, length := range m.blocks.Holes {
		if from, to := max(at, off), min(at+length, off+int64(n)); from < to {
			clear(p[from-off : to-off])
		}
	}
	return n, err
}

// checkFit returns an error if a block device is smaller than the image. If the size is unknown and
// one may be, it calls prepare. Once the size is known, it sets j.places, and returns an error if
// one is missing, unaligned, or not inside the image.
func (j *imageJob) checkFit(ctx context.Context) error {
	least := max(j.size, j.source.LeastBytes())
	for _, d := range j.devices {
		if d.Kind == device.Block && d.SizeBytes < least {
			if j.size == unknown {
				return j.prepare(ctx) // the last bytes of a gzip file that is cut off are no size
			}
			return deviceError{d.Path, fmt.Errorf("%s has %s, the image needs %s\nnext: devices", d.Path, device.ExactSize(d.SizeBytes), device.ExactSize(least))}
		}
	}
	if j.size == unknown {
		return nil
	}
	if j.options.Identity != nil {
		part, err := j.artifact.Partition("data")
		if err != nil {
			return kindError{ErrImage, fmt.Errorf("the image has no place for an SSH identity: %w", err)}
		}
		j.places = []images.Partition{part}
	}
	for _, p := range j.options.personal {
		j.places = append(j.places, p.part)
	}
	for _, part := range j.places {
		if part.OffsetBytes < headBytes || part.OffsetBytes%alignment != 0 || part.SizeBytes < 0 || part.SizeBytes > j.size-part.OffsetBytes {
			return kindError{ErrImage, fmt.Errorf("partition %s of %d bytes at %d does not lie inside the image of %d bytes", part.Name, part.SizeBytes, part.OffsetBytes, j.size)}
		}
	}
	return nil
}

// checkMapSample compares up to three ranges of the image with the block map's digests, if there is
// a map, so that a map of another image is refused before anything is written. A prepared image's
// map is of it.
func (j *imageJob) checkMapSample(ctx context.Context) error {
	if j.options.prepared != nil {
		return nil
	}
	if err := write.Sample(ctx, j.source, j.writeOptions()); err != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	return nil
}

const (
	headBytes = 1 << 20 // that no partition begins in
	alignment = 4096    // of partitions, so that they are written as blocks
)

// show prints the devices, the image and its size, and how much of it is data or, without a block
// map, what verifies it.
func (j *imageJob) show(w io.Writer) {
	for i, d := range j.devices {
		d.Describe(w)
		if j.options.Grow {
			fmt.Fprintf(w, "  --grow: %s\n", j.writers[i].receipt.Grown)
		}
	}
	fmt.Fprintf(w, "Image %s (%s) of board %s", filepath.Base(j.file.Name()), j.source.Form(), j.artifact.Board)
	if j.options.Image == "" {
		fmt.Fprintf(w, ", key %.12s", j.artifact.Key)
	}
	if j.machine != "" {
		fmt.Fprintf(w, ", for %s", j.machine)
	}
	fmt.Fprintf(w, ": %s", j.sizeText())
	if j.blocks == nil {
		fmt.Fprintf(w, "; without a block map, so that all of it is written, and %s.\n", j.proofText())
		return
	}
	fmt.Fprintf(w, ", of which %s hold data.\n", plaintext.SizeText(j.blocks.Mapped()))
}

// sizeText returns the unpacked size of the image, or what is known of it.
func (j *imageJob) sizeText() string {
	switch least := j.source.LeastBytes(); {
	case j.size != unknown:
		return plaintext.SizeText(j.size)
	case least > 0:
		return "at least " + plaintext.SizeText(least)
	}
	return "of a size that is known once it is unpacked"
}

// proofText says what verifies an image that has no block map.
func (j *imageJob) proofText() string {
	switch {
	case j.image.proof != "":
		return j.image.proof + " proves it"
	case j.image.path == "" && j.sha256 != "":
		return "its digest proves it"
	case j.source.Form() != "raw":
		return "only its packing proves it"
	}
	return "nothing proves it: --digest or --signers would"
}

// writeOptions returns the options of write.Run. They leave out the partitions of j.places.
func (j *imageJob) writeOptions() write.Options {
	o := write.Options{
		Name: j.file.Name(), Remedy: j.fixHint(), Blocks: j.blocks, Size: j.size,
		Holes: j.options.Holes, Blind: j.options.Blind, Content: j.entries, Proved: j.options.prepared != nil,
	}
	if o.Proved {
		o.Sums = j.options.prepared.sums
	}
	for _, part := range j.places {
		o.Except = append(o.Except, source.Span{Off: part.OffsetBytes, Len: part.SizeBytes})
	}
	slices.SortFunc(o.Except, func(a, b source.Span) int { return cmp.Compare(a.Off, b.Off) })
	return o
}

// dryRun prints how much each device would get at most. It returns receipts, and opens no device.
func (j *imageJob) dryRun(context.Context) ([]Receipt, error) {
	var receipts []Receipt
	for _, w := range j.writers {
		w.receipt.WrittenBytes = j.writeOptions().DataBytes()
		receipts = append(receipts, w.receipt)
		fmt.Fprintf(j.options.Out, "Dry run: at most %s would be written to %s. No byte was written.\n", plaintext.SizeText(w.receipt.WrittenBytes), w.device.Path)
	}
	return receipts, nil
}

// writeDevices writes the image to all devices, reads it back, and adds the host key of an identity
// to known_hosts. It returns the receipts of the complete devices, and a *Failed for the others. An
// error of the image or of ctx ends the flash of all devices.
func (j *imageJob) writeDevices(ctx context.Context) ([]Receipt, error) {
	began := time.Now()
	if err := checkUnchanged(j.file, j.info); err != nil {
		return nil, withKind(ctx, ErrImage, err)
	}
	if err := j.makeSeeds(ctx); err != nil {
		return nil, err
	}
	defer j.closeWriters()
	if err := j.openAll(ctx, began); err != nil {
		return nil, err
	}
	proof, err := j.writeImage(ctx, began)
	if err != nil {
		f := &Failed{}
		if _, all := j.collectReceipts(); errors.As(all, &f) {
			return nil, &Failed{f.Receipts, j.withUnfinished(err)}
		}
		return nil, j.withUnfinished(err)
	}
	j.completeDevices(ctx, proof, began)
	receipts, err := j.collectReceipts()
	if len(receipts) > 0 && j.options.Identity != nil {
		if pinErr := j.options.Identity.Pin(j.artifact.Board); pinErr != nil {
			err = errors.Join(err, fmt.Errorf("pin the host key: %w", pinErr))
		}
	}
	return receipts, err
}

// openAll opens each device. It records the error of a device that fails and continues
// with the next. It returns an error only if all fail or ctx ends.
func (j *imageJob) openAll(ctx context.Context, began time.Time) error {
	for _, w := range j.writers {
		if err := w.openDevice(ctx); err != nil {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			w.endFailed(began, withKind(ctx, ErrDevice, err))
		}
	}
	if len(j.remainingWriters()) == 0 {
		_, err := j.collectReceipts()
		return err
	}
	return nil
}

// remainingWriters returns the writers that have not failed.
func (j *imageJob) remainingWriters() (remaining []*deviceWriter) {
	for _, w := range j.writers {
		if w.err == nil {
			remaining = append(remaining, w)
		}
	}
	return remaining
}

// writeImage writes the image and the seeds to all remaining devices, and compares
// a plain image's SHA-256 with the expected one. It records its error for each of these devices.
func (j *imageJob) writeImage(ctx context.Context, began time.Time) (write.Proof, error) {
	var copies []*write.Copy
	remaining := j.remainingWriters()
	for _, w := range remaining {
		w.startProgress(ctx)
		copies = append(copies, w.copy)
	}
	proof, err := write.Run(ctx, j.source, copies, j.writeOptions())
	if err == nil && j.sha256 != "" && j.source.Form() == "raw" && proof.SHA256 != "" {
		err = j.sameDigest(proof.SHA256)
	}
	if err == nil {
		err = checkUnchanged(j.file, j.info)
	}
	err = withKind(ctx, ErrImage, err)
	for _, s := range j.seeds {
		if err == nil {
			err = s.writeTo(ctx, copies)
		}
	}
	for _, w := range remaining {
		if err != nil {
			w.finishReceipt(began, err)
		}
	}
	return proof, err
}

// completeDevices runs completeDevice on all remaining devices in parallel, and fills their
// receipts. Each deviceWriter keeps its own error.
func (j *imageJob) completeDevices(ctx context.Context, proof write.Proof, began time.Time) {
	var g errgroup.Group
	for _, w := range j.remainingWriters() {
		g.Go(func() error {
			w.finishReceipt(began, w.completeDevice(ctx))
			w.receipt.UnpackedSHA256, w.receipt.Ranges, w.receipt.ReadBack = cmp.Or(proof.SHA256, w.receipt.UnpackedSHA256), proof.Ranges, !j.options.Blind
			return nil
		})
	}
	_ = g.Wait() // each writer keeps its own error
}

// closeWriters closes all devices; the files of incomplete virtual disks disappear.
func (j *imageJob) closeWriters() {
	for _, w := range j.writers {
		w.close()
	}
}

// withUnfinished appends to err, never nil, the state in which each device was left.
func (j *imageJob) withUnfinished(err error) error {
	var b strings.Builder
	for _, w := range j.writers {
		if state := w.unfinishedState(err); state != "" {
			b.WriteString("\n  " + state)
		}
	}
	return fmt.Errorf("%w%s", err, b.String())
}

// collectReceipts sets Untouched, and returns complete devices' receipts, and a *Failed of others.
func (j *imageJob) collectReceipts() ([]Receipt, error) {
	var receipts []Receipt
	var errs []error
	for _, w := range j.writers {
		w.receipt.Untouched = w.err != nil && (w.claimed == nil || w.copy == nil || !w.copy.Touched()) // a virtual disk appears only if it is whole
		receipts, errs = append(receipts, w.receipt), append(errs, w.err)
	}
	return j.splitFailed(receipts, errs)
}

package flash

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/flash/device"
	"slipway/flash/write"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// deviceWriter writes an imageJob's image to one device or virtual disk.
type deviceWriter struct {
	job     *imageJob
	device  device.Device
	claimed *device.Claimed // the block device
	pending *device.Pending // what will be the virtual disk
	disk    *write.Disk
	copy    *write.Copy
	step    *progress.Step
	saved   []string // what the device began and ended with
	receipt Receipt
	err     error
}

// newReceipt returns the receipt of a device, with what is known of the image before the flash.
func (j *imageJob) newReceipt(d device.Device) Receipt {
	r := Receipt{
		Board: j.artifact.Board, Key: j.artifact.Key, Device: d,
		Image: filepath.Base(j.file.Name()), Form: j.source.Form(),
		ImageSHA256: j.sha256, MapSHA256: j.mapSum, ImageBytes: j.size,
		Holes: cmp.Or(j.options.Holes, write.Zero), DryRun: j.options.DryRun, Raw: j.options.Raw,
	}
	if j.image.path != "" {
		r.Image, r.Key = j.image.name, "" // the key identifies the inputs of the artifact
	}
	if j.options.Identity != nil {
		r.HostKey = j.options.Identity.Fingerprint()
	}
	if p := j.options.prepared; p != nil {
		r.Image, r.Key, r.Form, r.ImageSHA256, r.UnpackedSHA256 = p.receipt.Image, p.receipt.Key, p.receipt.Form, p.receipt.ImageSHA256, p.receipt.UnpackedSHA256
	}
	return r
}

// openDevice opens the block device exclusively, or creates the pending file of a virtual disk at
// its full size. It writes no image data.
func (w *deviceWriter) openDevice(ctx context.Context) (err error) {
	o := write.CopyOptions{Count: w.countBytes, Phase: w.beginPhase}
	if w.device.Kind == device.File {
		if w.pending, err = newDisk(w.job, w.device); err != nil {
			return withKind(ctx, ErrRefused, err) // nothing was written
		}
		o.Fresh = true
		return w.openCopy(w.pending.File, o)
	}
	if w.claimed, err = device.Claim(ctx, w.device); err != nil {
		return err
	}
	o.Marked, o.Save = true, w.saveReplaced
	if w.job.options.prepared != nil {
		o.ProbeFrom = (w.job.size + headBytes) / headBytes * headBytes
	}
	return w.openCopy(w.claimed.File, o)
}

// openCopy sets w.disk and w.copy, which write to f. It writes no image data.
func (w *deviceWriter) openCopy(f *os.File, o write.CopyOptions) (err error) {
	if w.disk, err = write.OpenDisk(f); err != nil {
		return err
	}
	w.copy, err = write.NewCopy(w.disk, o)
	return err
}

// close closes the device, and removes the pending file of a virtual disk that is not complete.
func (w *deviceWriter) close() {
	if w.disk != nil {
		w.disk.Close()
	}
	if w.claimed != nil {
		w.claimed.Close()
	}
	if w.pending != nil {
		w.pending.Close()
	}
}

// startProgress starts the progress step, which names the device if there are several.
func (w *deviceWriter) startProgress(ctx context.Context) {
	name := plaintext.Either(w.job.options.unpack, "unpack", "flash")
	if len(w.job.writers) > 1 {
		name += " " + filepath.Base(w.device.Path)
	}
	w.step = progress.Start(ctx, name, w.job.writeOptions().DataBytes(), progress.Bytes)
}

func (w *deviceWriter) countBytes(n int64)              { w.step.Add(n) }
func (w *deviceWriter) beginPhase(what string, n int64) { w.step.Phase(what, n) }

// endFailed sets w.err to err, puts duration and end into the receipt, and closes only this device.
func (w *deviceWriter) endFailed(began time.Time, err error) {
	w.err, w.receipt.Seconds, w.receipt.Finished = err, time.Since(began).Seconds(), time.Now().UTC()
	w.close()
	w.disk, w.claimed, w.pending, w.copy = nil, nil, nil, nil
}

// finishReceipt sets w.err, ends the progress bar, and adds amounts, duration and saved paths.
func (w *deviceWriter) finishReceipt(began time.Time, err error) {
	took, done := time.Since(began), w.copy.Result()
	w.err = err
	r := &w.receipt
	r.WrittenBytes, r.LeftBytes, r.VerifiedBytes, r.ZeroedBytes = done.Written, done.Left, done.Verified, done.Zeroed
	r.Seconds, r.Finished = took.Seconds(), time.Now().UTC()
	if r.Seconds > 0 {
		r.BytesPerSecond = int64(float64(done.Written+done.Left) / r.Seconds)
	}
	r.Saved = w.saved
	w.step.End(fmt.Sprintf("%s in %.1f s", w.resultText(done), r.Seconds), err)
}

// resultText returns a sentence on how much was written, compared and read back.
func (w *deviceWriter) resultText(r write.Result) string {
	if w.job.options.unpack {
		return plaintext.SizeText(r.Written) + " unpacked"
	}
	what := fmt.Sprintf("%s written to %s%s", plaintext.SizeText(r.Written), w.device.Path, plaintext.Either(w.job.options.Blind, ", and not read back", " and read back"))
	if r.Left > 0 {
		what += fmt.Sprintf(", %s were there already", plaintext.SizeText(r.Left))
	}
	return what
}

// completeDevice grows the last partition for Options.Grow, calls Options.complete, and writes the first and last MiB with the partition table.
// Then it renames a virtual disk, or has the kernel read the block device's table. A write error
// states the device's state.
func (w *deviceWriter) completeDevice(ctx context.Context) error {
	o, err := w.job.options, w.copy.Err()
	if err == nil && o.Grow {
		err = w.grow(ctx)
	}
	if err == nil && o.complete != nil {
		if err = w.copy.Stamp(o.stamp); err == nil {
			err = o.complete()
		}
	}
	if err == nil {
		err = w.copy.Complete(ctx)
	}
	err = withKind(ctx, ErrDevice, err)
	if err == nil && w.pending != nil {
		err = w.pending.Replace()
	}
	if state := w.unfinishedState(err); err != nil && state != "" {
		err = fmt.Errorf("%w\n  %s", err, state)
	}
	if err == nil && w.claimed != nil {
		err = w.claimed.RereadTable(ctx)
	}
	return err
}

// unfinishedState returns a sentence about the state in which err leaves the block device, and
// what to do; "" for a virtual disk or a device that was not opened.
func (w *deviceWriter) unfinishedState(err error) string {
	if w.claimed == nil || w.copy == nil {
		return ""
	}
	if !w.copy.Touched() {
		return w.device.Path + " is as it was: nothing was written to it"
	}
	what := plaintext.Either(errors.Is(err, ErrDevice), "it is faulty, or smaller than it says, so take another one", "flash it again; Slipway resumes")
	return w.device.Path + " is not whole: its first and last MiB, with the partition table, are zeroed; " + what + savedText(w.saved)
}

// keepSaved is for how many flashes Slipway keeps the replaced partition tables. A prepared image is
// written to up to keepSavedPrepared devices at once, by flashes of one device.
const keepSaved, keepSavedPrepared = 8, 64

// saveReplaced writes old, the device's bytes at off, to a file in the state folder, adds its path
// to w.saved, and removes the oldest such files. A user can restore the bytes with dd.
func (w *deviceWriter) saveReplaced(old []byte, off int64) error {
	dir := images.ReplacedDir(w.job.state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-at-%d.bin", time.Now().UTC().Format("20060102T150405Z"), filepath.Base(w.device.Path), off)
	path := filepath.Join(dir, name)
	if err := renameio.WriteFile(path, old, 0o600); err != nil {
		return err
	}
	w.saved = append(w.saved, path)
	keep := max(keepSaved, len(w.job.writers))
	if w.job.options.prepared != nil {
		keep = keepSavedPrepared
	}
	return pruneOldest(dir, 2*keep)
}

// pruneOldest removes files, whose names begin with the time, until the newest keep are left. A
// pending file, with a dot before that, may be another flash's, and has its age like the others. A
// missing file is no error, because another device's flash may prune the folder too.
func pruneOldest(dir string, keep int) error {
	entries, err := os.ReadDir(dir)
	slices.SortFunc(entries, func(a, b os.DirEntry) int {
		return strings.Compare(strings.TrimPrefix(a.Name(), "."), strings.TrimPrefix(b.Name(), "."))
	})
	for i := 0; err == nil && i < len(entries)-keep; i++ {
		if err = os.Remove(filepath.Join(dir, entries[i].Name())); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// newDisk creates the pending file of a virtual disk, sparse and as large as the image, and its
// folder if that is missing. It returns an error if the file system has too little free space.
func newDisk(j *imageJob, d device.Device) (*device.Pending, error) {
	f, err := device.NewPending(d)
	if err != nil {
		return nil, err
	}
	if err = j.checkSpace(filepath.Dir(d.Path)); err == nil { // what a killed flash left is gone by now
		err = f.Truncate(j.size)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkSpace returns an error if dir has less free space than the data of image and seed needs.
func (j *imageJob) checkSpace(dir string) error {
	free, err := localfile.FreeBytes(dir)
	if err != nil {
		return err
	}
	need := j.size // at most, without a map
	if j.blocks != nil {
		need = j.blocks.Mapped()
	}
	for _, s := range j.seeds {
		need += s.blocks.Mapped()
	}
	if free < need {
		return fmt.Errorf("%s has room for %s, the image needs %s\nnext: df -h %[1]s  # make room there, or name a file in another folder", dir, device.ExactSize(free), device.ExactSize(need))
	}
	return nil
}

package flash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"slipway/flash/device"
	"slipway/flash/write"
	"slipway/images"
	"slipway/layers/progress"
)

// goal is one device or virtual disk of an imageJob.
type goal struct {
	job     *imageJob
	device  device.Device
	claimed *device.Claimed // the block device
	looked  *os.File        // the device of a dry run
	pending *device.Pending // what will be the virtual disk
	disk    *write.Disk
	copy    *write.Copy
	step    *progress.Step
	saved   []string // what the device began and ended with
	receipt Receipt
	err     error
}

func (j *imageJob) receipt(d device.Device) Receipt {
	r := Receipt{
		Board: j.artifact.Board, Key: j.artifact.Key, Device: d,
		Image: filepath.Base(j.file.Name()), Form: j.source.Form(),
		ImageSHA256: j.sha256, MapSHA256: j.mapSum, ImageBytes: j.size,
		Holes: j.options.Holes, DryRun: j.options.DryRun, Raw: j.options.Raw,
	}
	if j.image.path != "" {
		r.Image, r.Key = j.image.name, "" // the key is of what the artifact was made of
	}
	if r.Holes == "" {
		r.Holes = write.Zero
	}
	if j.options.Identity != nil {
		r.HostKey = j.options.Identity.Fingerprint()
	}
	return r
}

// open takes the device for this flash alone. Nothing is written yet, but that a new
// virtual disk gets its size.
func (g *goal) open(ctx context.Context) (err error) {
	o := write.CopyOptions{Count: g.count, Detail: g.detail}
	if g.device.Kind == device.File {
		if g.pending, err = newDisk(g.job, g.device); err != nil {
			return because(ctx, ErrRefused, err) // nothing was written
		}
		o.Fresh = true
		return g.copyTo(g.pending.File, o)
	}
	if g.claimed, err = device.Claim(ctx, g.device); err != nil {
		return err
	}
	o.Marked, o.Save = true, g.save
	return g.copyTo(g.claimed.File, o)
}

// look opens the device for a comparison. A virtual disk is made anew, so that there is
// nothing to compare.
func (g *goal) look(context.Context) (err error) {
	path, o := g.device.Path, write.CopyOptions{Dry: true, Marked: true, Count: g.count, Detail: g.detail}
	if g.device.Kind == device.File {
		path, o = os.DevNull, write.CopyOptions{Dry: true, Fresh: true, Count: g.count, Detail: g.detail}
	}
	if g.looked, err = os.Open(path); err != nil {
		return err
	}
	return g.copyTo(g.looked, o)
}

func (g *goal) copyTo(f *os.File, o write.CopyOptions) (err error) {
	if g.disk, err = write.OpenDisk(f); err != nil {
		return err
	}
	g.copy, err = write.NewCopy(g.disk, o)
	return err
}

func (g *goal) close() {
	if g.disk != nil {
		g.disk.Close()
	}
	if g.claimed != nil {
		g.claimed.Close()
	}
	if g.looked != nil {
		g.looked.Close()
	}
	if g.pending != nil {
		g.pending.Close()
	}
}

func (g *goal) start(ctx context.Context, o write.Options) {
	name := "flash"
	if len(g.job.goals) > 1 {
		name += " " + filepath.Base(g.device.Path)
	}
	g.step = progress.Start(ctx, name, o.Work(), progress.Bytes)
}

func (g *goal) count(n int64)      { g.step.Add(n) }
func (g *goal) detail(what string) { g.step.Detail(what) }

// fail keeps the goal out of a flash that goes on without it.
func (g *goal) fail(began time.Time, err error) {
	g.err, g.receipt.Seconds, g.receipt.Finished = err, time.Since(began).Seconds(), time.Now().UTC()
	g.close()
	g.disk, g.claimed, g.looked, g.pending, g.copy = nil, nil, nil, nil, nil
}

// end closes the goal's bar and its receipt.
func (g *goal) end(began time.Time, err error) {
	took, done := time.Since(began), g.copy.Result()
	g.err = err
	r := &g.receipt
	r.WrittenBytes, r.LeftBytes, r.VerifiedBytes, r.ZeroedBytes = done.Written, done.Left, done.Verified, done.Zeroed
	r.Seconds, r.Finished = took.Seconds(), time.Now().UTC()
	if r.Seconds > 0 {
		r.BytesPerSecond = int64(float64(done.Written+done.Left) / r.Seconds)
	}
	r.Saved = g.saved
	g.step.End(fmt.Sprintf("%s in %.1f s", g.did(done), r.Seconds), err)
}

func (g *goal) did(r write.Result) string {
	what := fmt.Sprintf("%s written to %s and read back", device.SizeText(r.Written), g.device.Path)
	switch {
	case g.job.options.DryRun:
		what = fmt.Sprintf("%s on %s differ", device.SizeText(r.Written), g.device.Path)
	case g.job.options.Blind:
		what = fmt.Sprintf("%s written to %s, and not read back", device.SizeText(r.Written), g.device.Path)
	}
	if r.Left > 0 {
		what += fmt.Sprintf(", %s were there already", device.SizeText(r.Left))
	}
	return what
}

// complete makes the device whole.
func (g *goal) complete(ctx context.Context) error {
	err := because(ctx, ErrDevice, g.copy.Complete(ctx))
	if err == nil && g.pending != nil {
		err = g.pending.Replace()
	}
	if left := g.left(); err != nil && left != "" {
		err = fmt.Errorf("%w\n  %s", err, left)
	}
	if err == nil && g.claimed != nil {
		err = g.claimed.RereadTable(ctx)
	}
	return err
}

// left says in what state an unfinished flash leaves the device.
func (g *goal) left() string {
	if g.claimed == nil || g.copy == nil {
		return ""
	}
	if !g.copy.Touched() {
		return g.device.Path + " is as it was: nothing was written to it"
	}
	return g.device.Path + " is not whole: its first and last MiB, with the partition table, are zeroed; flash it again, which goes on where this ended"
}

func (g *goal) prove(p write.Proof) {
	r := &g.receipt
	if p.SHA256 != "" {
		r.UnpackedSHA256 = p.SHA256
	}
	r.Ranges, r.ReadBack = p.Ranges, !g.job.options.Blind && !g.job.options.DryRun
}

// keepSaved is how many flashes' partition tables are kept beside an artifact.
const keepSaved = 8

// save keeps an end of the device beside the artifact: dd puts it back.
func (g *goal) save(old []byte, off int64) error {
	dir := images.ReplacedDir(g.job.artifact.Dir())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-at-%d.bin", time.Now().UTC().Format("20060102T150405Z"), filepath.Base(g.device.Path), off)
	path := filepath.Join(dir, name)
	if err := writeSynced(path, old); err != nil {
		return err
	}
	g.saved = append(g.saved, path)
	return prune(dir, 2*max(keepSaved, len(g.job.goals)))
}

// writeSynced leaves nothing where it fails, as on a full disk.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// prune removes the oldest files of a folder; their names begin with their time. Another
// device that is flashed at the same time may do that too.
func prune(dir string, keep int) error {
	entries, err := os.ReadDir(dir)
	for i := 0; err == nil && i < len(entries)-keep; i++ {
		if err = os.Remove(filepath.Join(dir, entries[i].Name())); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

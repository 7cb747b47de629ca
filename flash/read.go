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
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"slipway/flash/device"
	"slipway/flash/diskend"
	"slipway/flash/dump"
	"slipway/flash/probe"
	"slipway/flash/write"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Taken is the result of Read.
type Taken struct {
	Device     device.Device `json:"device"`
	Image      string        `json:"image"`
	Map        string        `json:"map"`
	ImageBytes int64         `json:"imageBytes"` // unpacked
	UsedBytes  int64         `json:"usedBytes"`  // of these, not zero
	FileBytes  int64         `json:"fileBytes"`
	SHA256     string        `json:"sha256"` // of the file
	Seconds    float64       `json:"seconds"`
	Partitions []dump.Part   `json:"partitions"`
}

// Show prints the result as text.
func (t Taken) Show(w io.Writer) error {
	for _, p := range t.Partitions {
		fmt.Fprintf(w, "%s %s: %s\n", plaintext.Either(p.Number == 0, "disk", fmt.Sprintf("partition %d", p.Number)), p.Type, p.By)
	}
	_, err := fmt.Fprintf(w, "%s: %s, of which %s are used, in a file of %s, in %.1f s\nsha256:%s\n%s\n", t.Image,
		plaintext.SizeText(t.ImageBytes), plaintext.SizeText(t.UsedBytes), plaintext.SizeText(t.FileBytes), t.Seconds, t.SHA256, t.Map)
	return err
}

// Read makes an image of the disk or virtual disk called name, and the image's block map beside it.
// With shrink, the image ends after the last partition, with an ext4 file system of the smallest
// size there. Read writes nothing to the disk. The files appear only if both are whole.
func Read(ctx context.Context, name, image string, shrink bool) (Taken, error) {
	began := time.Now()
	t, err := readDevice(ctx, name, image, shrink)
	t.Seconds = time.Since(began).Seconds()
	if errors.As(err, new(dump.ReadError)) {
		err = kindError{ErrDevice, fmt.Errorf("%w; no image was made\nnext: ddrescue %s disk.img disk.map  # Debian package gddrescue: it copies what can still be read", err, plaintext.Quote(name))}
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", name, err)
	}
	return t, err
}

func readDevice(ctx context.Context, name, image string, shrink bool) (t Taken, err error) {
	to, err := newImageFile(image)
	if err != nil {
		return t, err
	}
	defer to.Close()
	d, err := device.ExamineToRead(name)
	switch {
	case err != nil:
	case d.Kind != device.Block && d.Kind != device.File || !d.Exists():
		err = errors.New("it is no disk, card or virtual disk here\nnext: devices")
	case d.Refused != "":
		err = fmt.Errorf("refused: %s\nnext: %s", d.Refused, refusedStep(name, d.Refused))
	}
	if err != nil {
		return t, withKind(ctx, ErrRefused, err)
	}
	f, err := device.ClaimToRead(ctx, d)
	if err != nil {
		return t, withKind(ctx, ErrDevice, err)
	}
	defer f.Close()
	disk, err := write.OpenDisk(f)
	if err != nil {
		return t, err
	}
	defer disk.Close()
	from := dump.Disk{Pieces: []dump.Piece{{ReaderAt: write.WithoutStamp(disk), End: d.SizeBytes, File: f}}, SectorBytes: max(512, d.SectorBytes)}
	if shrink {
		copied, err := os.CreateTemp(filepath.Dir(image), ".shrink-")
		if err != nil {
			return t, err
		}
		defer copied.Close()
		if err := os.Remove(copied.Name()); err != nil {
			return t, err
		}
		if from, err = shrinkDisk(ctx, from, copied); err != nil {
			return t, err
		}
	}
	sum := sha256.New()
	made, err := dumpTo(ctx, "read "+filepath.Base(d.Path), from, to.File, sum, strings.HasSuffix(image, ".zst"))
	if err == nil && strings.HasSuffix(image, ".img") {
		err = to.Truncate(from.SizeBytes())
	}
	if err != nil {
		return t, err
	}
	info, err := to.Stat()
	var blocks bytes.Buffer
	if _, wrong := made.Map.WriteTo(&blocks); errors.Join(err, wrong) != nil {
		return t, errors.Join(err, wrong)
	}
	t = Taken{Device: d, Image: image, Map: image + ".bmap", ImageBytes: from.SizeBytes(), UsedBytes: made.Map.Mapped(), FileBytes: info.Size(), SHA256: hex.EncodeToString(sum.Sum(nil)), Partitions: made.Parts}
	if err := renameio.WriteFile(t.Map, blocks.Bytes(), 0o644); err != nil {
		return t, err
	}
	if err := to.Replace(); err != nil {
		return t, errors.Join(err, os.Remove(t.Map))
	}
	return t, nil
}

// newImageFile opens the hidden file that becomes the image. It refuses a name that does not end in
// .img or .zst, a missing folder, and an image or block map that exists.
func newImageFile(image string) (*device.Pending, error) {
	if end := filepath.Ext(image); end != ".img" && end != ".zst" {
		return nil, fmt.Errorf("%s: the name of an image ends in .zst (packed) or .img\nnext: repeat the line with %s for %s", image, plaintext.Quote(image+".zst"), plaintext.Quote(image))
	}
	if dir := filepath.Dir(image); !localfile.Exists(dir) {
		return nil, fmt.Errorf("there is no folder %s\nnext: mkdir -p %s", dir, plaintext.Quote(dir))
	}
	for _, file := range []string{image, image + ".bmap"} {
		if localfile.Exists(file) {
			return nil, fmt.Errorf("%s exists already\nnext: mv %s %s", file, plaintext.Quote(file), plaintext.Quote(file+".old"))
		}
	}
	d, err := device.Examine(device.FilePrefix + image)
	if err != nil {
		return nil, err
	}
	return device.NewPending(d)
}

// dumpTo runs dump.Write as a step.
func dumpTo(ctx context.Context, name string, from dump.Disk, to *os.File, sum io.Writer, pack bool) (made dump.Image, err error) {
	step := progress.Start(ctx, name, from.SizeBytes(), progress.Bytes)
	made, err = dump.Write(ctx, from, to, sum, pack, step.Add)
	step.End(plaintext.SizeText(made.Map.Mapped())+" used", err)
	return made, err
}

// shrinkDisk returns the disk from, which has one piece, as one that ends after its last partition,
// or as it is if that is not smaller. An ext4 there is shrunk in the empty file copied.
func shrinkDisk(ctx context.Context, from dump.Disk, copied *os.File) (dump.Disk, error) {
	before := from.Pieces[0]
	holds, err := probe.Read(from, before.End, int(from.SectorBytes))
	if err != nil {
		return from, dump.ReadError{Err: err}
	}
	last, err := diskend.Last(holds.Table)
	if err != nil {
		return from, fmt.Errorf("%w, so it cannot be shrunk\nnext: repeat the line without --shrink", err)
	}
	inside := before
	inside.End = min(before.End, last.OffsetBytes+last.SizeBytes)
	if strings.HasPrefix(last.Type, "ext") {
		if inside, err = shrinkExt4(ctx, inside, last, from.SectorBytes, copied); err != nil {
			return from, err
		}
	}
	e, err := diskend.NewEnds(from, diskend.RoundUp(last.OffsetBytes+diskend.RoundUp(inside.End-last.OffsetBytes))+diskend.Mark, from.SectorBytes)
	if err != nil {
		return from, dump.ReadError{Err: err}
	}
	if e.SizeBytes >= before.End {
		return from, nil
	}
	_, _, err = e.Fit(true)
	before.End = last.OffsetBytes
	from.Pieces = []dump.Piece{{ReaderAt: e, End: diskend.Mark, File: before.File}, before, inside, {ReaderAt: e, End: e.SizeBytes}}
	return from, err
}

// shrinkExt4 copies the last partition to the empty file copied, shrinks the file system there, and
// returns it in the partition's place. resize2fs needs a file of its own.
func shrinkExt4(ctx context.Context, inside dump.Piece, last probe.Partition, sectorBytes int64, copied *os.File) (dump.Piece, error) {
	inside.Off, inside.End = -last.OffsetBytes, inside.End-last.OffsetBytes
	was := inside.End
	_, err := dumpTo(ctx, fmt.Sprintf("copy partition %d", last.Number), dump.Disk{Pieces: []dump.Piece{inside}, SectorBytes: sectorBytes}, copied, io.Discard, false)
	if err == nil {
		err = copied.Truncate(was)
	}
	if err != nil {
		return inside, err
	}
	inside = dump.Piece{ReaderAt: copied, Off: last.OffsetBytes, File: copied}
	err = progress.Run(ctx, fmt.Sprintf("shrink partition %d", last.Number), func(*progress.Step) (string, error) {
		size, err := diskend.Ext4(ctx, copied, 0, 0)
		inside.End = last.OffsetBytes + size
		return fmt.Sprintf("%s to %s", plaintext.SizeText(was), plaintext.SizeText(size)), err
	})
	if err != nil {
		err = fmt.Errorf("shrink the %s of partition %d: %w\nnext: repeat the line without --shrink", last.Type, last.Number, err)
	}
	return inside, err
}

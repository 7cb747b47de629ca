package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"slipway/flash/device"
	"slipway/images"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

const (
	oursCommand     = "time -a -o {program}.peaks -f %M {program} flash {board} {device} --yes={device} --raw"
	bmaptoolCommand = "bmaptool copy --bmap {map} {image} {device}"
)

// flashVariants write a form of the image to a used loop device, and find it in the page
// cache. With --blind Slipway reads nothing back, as the peers do. The limits are the device
// alone and zstd without a write.
var flashVariants = []struct{ name, form, command string }{
	{"ours raw", "raw", oursCommand + " --blind"},
	{"ours raw, read back", "raw", oursCommand},
	{"ours zst", "zst", oursCommand + " --blind"},
	{"ours zst, read back", "zst", oursCommand},
	{"bmaptool raw", "raw", bmaptoolCommand},
	{"bmaptool zst", "zst", bmaptoolCommand},
	{"dd raw", "raw", "dd if={image} of={device} bs=4M conv=fsync"},
	{"zstd into dd", "zst", `sh -c "zstd -dcq {image} | dd of={device} bs=4M conv=fsync status=none"`},
	{"zstd alone", "zst", "zstd -tq {image}"},
	{"device alone", "raw", "{limit} {device} {map}"},
}

var flashRatios = []ratio{
	{name: "raw", over: "bmaptool raw", under: "ours raw"},
	{name: "zst", over: "bmaptool zst", under: "ours zst"},
	{name: "raw_readback", over: "bmaptool raw", under: "ours raw, read back"},
	{name: "zst_readback", over: "bmaptool zst", under: "ours zst, read back"},
	{name: "dd", over: "dd raw", under: "ours raw"},
	{name: "zstd_into_dd", over: "zstd into dd", under: "ours zst"},
	{name: "zst_over_zstd", over: "ours zst", under: "zstd alone"},
	{name: "raw_over_device", over: "ours raw", under: "device alone"},
}

func flashNames() (names []string) {
	for _, v := range flashVariants {
		names = append(names, v.name)
	}
	return names
}

// imageScript makes an image, and a file with other data in the same places.
//
//go:embed image.sh
var imageScript string

// flashBench is one image in two forms, raw and zst. Each lies in a folder in which the command
// flash can be run, with an artifact in build/<board>. It is written to a loop device.
type flashBench struct{ dir, board, device string }

func (b flashBench) formDir(form string) string { return filepath.Join(b.dir, form) }
func (b flashBench) artifact(form string) string {
	return filepath.Join(b.formDir(form), "build", b.board)
}
func (b flashBench) mapPath() string { return filepath.Join(b.artifact("raw"), "disk.bmap") }

func (b flashBench) imagePath(form string) string {
	return filepath.Join(b.artifact(form), map[string]string{"raw": "disk.img", "zst": "disk.img.zst"}[form])
}

// usedPath is the file whose data the device has before each flash.
func (b flashBench) usedPath() string { return filepath.Join(b.dir, "used.img") }

// measureFlash measures how long it takes to write an image, a third of it mapped.
func measureFlash(ctx context.Context, s *session) (err error) {
	if err := s.buildProgram(ctx, ".", "./magefiles/slipway"); err != nil {
		return err
	}
	limit := filepath.Join(s.dir, "limit")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", limit, "./ci/dev/bench/device"}}); err != nil {
		return err
	}
	spec, err := images.First("is flashed by a card, and as a file", func(spec images.Spec) bool {
		kinds := spec.Flash.Kinds
		return spec.Machine == nil && spec.Arch == runtime.GOARCH && slices.Contains(kinds, device.Block) && slices.Contains(kinds, device.File)
	})
	if err != nil {
		return err
	}
	b := flashBench{dir: s.dir, board: spec.Board}
	if err := b.makeInputs(ctx, int64(s.MiB)<<20); err != nil {
		return err
	}
	detach, err := b.attachLoop(ctx, int64(s.MiB)<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach()) }()
	var variants []variant
	for _, v := range flashVariants {
		image := b.imagePath(v.form)
		values := []string{"{limit}", limit, "{board}", b.board, "{device}", b.device, "{map}", b.mapPath(), "{image}", image}
		for i := 1; i < len(values); i += 2 {
			values[i] = plaintext.Quote(values[i])
		}
		timed := variant{
			name: v.name, command: strings.NewReplacer(values...).Replace(v.command), dir: b.formDir(v.form),
			prepare: func(ctx context.Context, _ variant) error { return b.makeUsed(ctx, image) },
		}
		if !strings.HasSuffix(v.name, " alone") {
			timed.check = b.checkImage
		}
		variants = append(variants, timed)
	}
	rows, err := s.measure(ctx, variants)
	if err != nil {
		return err
	}
	peak, err := readPeak(s.program + ".peaks")
	if err != nil {
		return err
	}
	return s.print(rows, flashRatios, peak...)
}

// readPeak returns the peak memory of all flashes by Slipway, if GNU time wrote any.
func readPeak(file string) ([]figure, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	peakKiB := 0
	for line := range strings.Lines(string(text)) {
		kib, scanned := strconv.Atoi(strings.TrimSpace(line))
		if scanned != nil {
			err = fmt.Errorf("%s: %w", file, scanned)
		}
		peakKiB = max(peakKiB, kib)
	}
	return []figure{{"peak_rss_mb", float64(peakKiB<<10) / 1e6}}, err
}

// makeInputs makes the image, its map and its packed form.
func (b flashBench) makeInputs(ctx context.Context, sizeBytes int64) error {
	image, packed := b.imagePath("raw"), b.imagePath("zst")
	err := errors.Join(os.MkdirAll(b.artifact("raw"), 0o755), os.MkdirAll(b.artifact("zst"), 0o755))
	for _, argv := range [][]string{
		{"sh", "-euc", imageScript, "sh", image, strconv.FormatInt(sizeBytes, 10), b.usedPath()},
		{"bmaptool", "create", "-o", b.mapPath(), image},
		{"bmaptool", "create", "-o", b.usedPath() + ".bmap", b.usedPath()},
		{"cp", b.mapPath(), filepath.Join(b.artifact("zst"), "disk.bmap")},
		{"zstd", "-3", "-T0", "-q", "-o", packed, image}, // Yocto's settings
	} {
		if err == nil {
			err = run.Run(ctx, run.Command{Argv: argv})
		}
	}
	for _, file := range []string{image, packed} {
		if err == nil {
			err = saveArtifact(ctx, images.Artifact{Board: b.board}, filepath.Dir(file),
				images.File{Kind: images.DiskImage, Name: filepath.Base(file)}, images.File{Kind: images.BlockMap, Name: "disk.bmap"})
		}
	}
	return err
}

// saveArtifact writes an artifact of files in dir.
func saveArtifact(ctx context.Context, a images.Artifact, dir string, files ...images.File) error {
	for _, file := range files {
		f, err := os.Open(filepath.Join(dir, file.Name))
		if err != nil {
			return err
		}
		file.SHA256, err = localfile.Digest(ctx, f, func(n int64) { file.SizeBytes += n })
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		a.Files = append(a.Files, file)
	}
	return a.Save(dir)
}

// attachLoop makes a loop device. Direct I/O to its file keeps this machine's memory from
// serving as the disk. Detaching also works after the context has ended.
func (b *flashBench) attachLoop(ctx context.Context, sizeBytes int64) (detach func() error, err error) {
	file := filepath.Join(b.dir, "device")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, sizeBytes)); err != nil {
		return nil, err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	b.device = strings.TrimSpace(string(out))
	return func() error {
		return run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", b.device}})
	}, err
}

// makeUsed makes the device look used: other data in the places of the image's data, nothing elsewhere,
// and all of that on the disk. So no variant finds the data of the one before it, and the file's
// blocks are allocated, as those of a real device are. Then it loads the image into the page
// cache, as if it had just been made or fetched.
func (b flashBench) makeUsed(ctx context.Context, image string) error {
	script := `blkdiscard -f "$1" && bmaptool -q copy --bmap "$2.bmap" "$2" "$1" && sync && cat "$3" >/dev/null`
	return run.Run(ctx, run.Command{Argv: []string{"sh", "-euc", script, "sh", b.device, b.usedPath(), image}})
}

// checkImage compares a program's result with the image, so that no program is fast because it
// does not do its work. It leaves nothing of it in the page cache.
func (b flashBench) checkImage(ctx context.Context) error {
	return run.Run(ctx, run.Command{Argv: []string{"sh", "-euc", `cmp "$1" "$2" && blockdev --flushbufs "$2"`, "sh", b.imagePath("raw"), b.device}})
}

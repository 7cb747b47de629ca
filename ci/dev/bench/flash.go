package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/images/bmap"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

const (
	oursCommand     = "time -a -o {program}.peaks -f %M {program} flash {board} {device} --yes={device} --raw"
	bmaptoolCommand = "bmaptool copy --bmap {map} {image} {device}"
)

// flashVariants write a form of the image to a used loop device, and find it in the page
// cache. With --blind Slipway reads nothing back, as the peers do. The limits are the device
// alone and zstd alone.
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
	{"device alone", "raw", ""},
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

// measureFlash measures how long it takes to write an image, a third of it mapped.
func measureFlash(ctx context.Context, s *session) (err error) {
	if err := s.buildProgram(ctx, ".", "./magefiles/slipway"); err != nil {
		return err
	}
	in, err := makeInputs(ctx, s.dir, int64(s.MiB)<<20)
	if err != nil {
		return err
	}
	device, err := attachLoop(ctx, filepath.Join(s.dir, "device"), in.blocks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.detach()) }()
	var variants []variant
	for _, v := range flashVariants {
		image := in.imagePath(v.form)
		values := []string{"{board}", in.board, "{device}", device.path, "{map}", in.mapPath(), "{image}", image}
		for i := 1; i < len(values); i += 2 {
			values[i] = plaintext.Quote(values[i])
		}
		timed := variant{
			name: v.name, command: strings.NewReplacer(values...).Replace(v.command), dir: in.formDir(v.form),
			prepare: func(context.Context) error { return errors.Join(device.makeUsed(), cacheFile(image)) },
		}
		if v.command == "" {
			timed.work = func(context.Context) error { return device.writeUsedData() }
		}
		if !strings.HasSuffix(v.name, " alone") {
			timed.check = func(ctx context.Context) error { return device.checkImage(ctx, in.imagePath("raw")) }
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

// readPeak returns the peak memory of all of Slipway's flashes, which GNU time wrote, if there
// were any.
func readPeak(file string) ([]figure, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var peakKiB int64
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, scanned := fmt.Sscan(line, &kib); scanned != nil {
			err = fmt.Errorf("%s: %q: %w", file, line, scanned)
		}
		peakKiB = max(peakKiB, kib)
	}
	return []figure{{"peak_rss_mb", float64(peakKiB<<10) / 1e6}}, err
}

// loop is a loop device with its backing file.
type loop struct {
	path, file string
	blocks     bmap.Map // of the image that is written to it
}

// attachLoop makes a loop device. Direct I/O to its file keeps this machine's memory from
// serving as the disk.
func attachLoop(ctx context.Context, file string, blocks bmap.Map) (*loop, error) {
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, blocks.ImageSize)); err != nil {
		return nil, err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	return &loop{strings.TrimSpace(string(out)), file, blocks}, err
}

// detach also works after the context has ended, so that nothing is left behind.
func (l *loop) detach() error {
	err := run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", l.path}})
	return errors.Join(err, os.Remove(l.file))
}

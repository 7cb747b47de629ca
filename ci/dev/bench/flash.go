package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/layers/host"
	"slipway/layers/lock"
	"slipway/layers/progress"
	"slipway/layers/run"
)

const (
	flashMiB    = 4 << 10
	flashRounds = 5
)

// Flash measures how long it takes to write a 4 GiB image, a third of it mapped, in each
// form to a used loop device and to a file. Slipway is measured as a process of its own,
// with and without reading everything back. It is compared with bmaptool, dd, and zstd
// piped into dd, which read nothing back, and with the device alone and zstd alone, which
// are the lower limits. All find the image in the page cache. If SLIPWAY_BMAPTOOL names a
// checkout of bmaptool's, that is measured too.
func Flash(ctx context.Context, w io.Writer, o Options) (err error) {
	b, err := newFlashBench(ctx, w, o.withDefaults(flashRounds, flashMiB))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	cases, err := b.prepareInputs(ctx, b.flashCases())
	if err != nil {
		return err
	}
	rows, err := b.measureCases(ctx, cases)
	if err != nil {
		return err
	}
	return PrintTable(w, rows, append(ratiosOfPairs(rows, flashRatios), peakRatio(rows, cases)...)...)
}

// flashRatios are ratios of a peer's time to Slipway's, by the names of their rows.
var flashRatios = []ratioPair{
	{"raw", "bmaptool raw", "ours raw"},
	{"zst", "bmaptool zst", "ours zst"},
	{"gz", "bmaptool gz", "ours gz"},
	{"xz", "bmaptool xz", "ours xz"},
	{"raw_readback", "bmaptool raw", "ours raw, read back"},
	{"zst_readback", "bmaptool zst", "ours zst, read back"},
	{"gz_readback", "bmaptool gz", "ours gz, read back"},
	{"xz_readback", "bmaptool xz", "ours xz, read back"},
	{"raw_newer", "newer bmaptool raw", "ours raw"},
	{"zst_newer", "newer bmaptool zst", "ours zst"},
	{"gz_newer", "newer bmaptool gz", "ours gz"},
	{"xz_newer", "newer bmaptool xz", "ours xz"},
	{"raw_file", "bmaptool raw to a file", "ours raw to a file"},
	{"zst_file", "bmaptool zst to a file", "ours zst to a file"},
	{"dd", "dd raw", "ours raw"},
	{"zstd_into_dd", "zstd into dd", "ours zst"},
	{"zst_over_zstd", "ours zst", "zstd alone"},
	{"raw_over_device", "ours raw", "device alone"},
	{"raw_readback_over_device", "ours raw, read back", "device alone, read back"},
	{"two_over_one", "ours zst to two", "ours zst"},
	{"two_over_one_raw", "ours raw to two", "ours raw"},
	{"two_over_one_gz", "ours gz to two", "ours gz"},
}

// flashBench holds the image in its forms, the devices that it is written to, and the
// programs that write it.
type flashBench struct {
	dir      string // with the files that are kept from run to run
	programs programs
	newer    string // a checkout of bmaptool's, or ""
	options  Options
	in       inputs
	devices  []*loop
	lock     *os.File  // held, as two benches at once would disturb each other
	slow     *throttle // nil: the devices are not slowed down
}

func newFlashBench(ctx context.Context, w io.Writer, o Options) (*flashBench, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("it needs root, for loop devices")
	}
	if err := host.Ensure(ctx, w, "build/bench/apt.log", "bmap-tools", "mount", "zstd", "xz-utils"); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs("build/bench/flash")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	b := &flashBench{dir: dir, options: o, newer: os.Getenv("SLIPWAY_BMAPTOOL")}
	if b.newer != "" {
		if b.newer, err = filepath.Abs(b.newer); err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(b.newer, "src/bmaptool/__main__.py")); err != nil {
			return nil, fmt.Errorf("SLIPWAY_BMAPTOOL is no checkout of bmaptool's: %w", err)
		}
	}
	if b.lock, err = os.Create(filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	if err = lock.Wait(ctx, b.lock); err == nil {
		b.programs, err = buildPrograms(ctx, dir)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// selectCases returns the cases that the user selects.
func (b *flashBench) selectCases(cases []flashCase) ([]flashCase, error) {
	names := make([]string, len(cases))
	for i, w := range cases {
		names[i] = w.name
	}
	only, err := compileOnly(b.options.Only, names)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(cases), func(w flashCase) bool { return !only.MatchString(w.name) }), nil
}

// prepareInputs makes two devices, and the inputs of the selected cases.
func (b *flashBench) prepareInputs(ctx context.Context, all []flashCase) ([]flashCase, error) {
	cases, err := b.selectCases(all)
	if err != nil {
		return nil, err
	}
	needed := func(key string) bool {
		return slices.ContainsFunc(cases, func(w flashCase) bool { return w.form == key })
	}
	if b.in, err = makeInputs(ctx, b.dir, int64(b.options.MiB)<<20, needed); err != nil {
		return nil, err
	}
	for i := range 2 {
		l, err := attachLoop(ctx, filepath.Join(b.dir, fmt.Sprintf("device%d", i)), b.in.sizeBytes)
		if err != nil {
			return nil, err
		}
		b.devices = append(b.devices, l)
	}
	return cases, nil
}

func (b *flashBench) close() error {
	var errs []error
	for _, l := range b.devices {
		if b.slow != nil {
			errs = append(errs, b.slow.set(l.number, speed{}))
		}
		errs = append(errs, l.detach())
	}
	if b.slow != nil {
		errs = append(errs, b.slow.undo())
	}
	errs = append(errs, os.RemoveAll(b.outFile()), b.lock.Close())
	return errors.Join(errs...)
}

func (b *flashBench) outFile() string { return filepath.Join(b.dir, "file.img") }

// measureCases measures the cases. In the round that is not counted it checks what each one
// wrote.
func (b *flashBench) measureCases(ctx context.Context, cases []flashCase) ([]Row, error) {
	step := progress.Start(ctx, "measure", int64(len(cases)*(b.options.Rounds+1)), progress.Tasks)
	variants := make([]Variant, len(cases))
	for i, w := range cases {
		if err := os.RemoveAll(b.stopwatchFile(i)); err != nil {
			return nil, err
		}
		to, proved := b.targetPaths(w), w.part
		variants[i] = Variant{w.name, func(context.Context) error {
			step.Detail(w.name)
			return b.prepareDevices(ctx, w)
		}, func(ctx context.Context) error {
			defer step.Add(1)
			if err := b.runVariant(ctx, w, b.stopwatchFile(i), to); err != nil || proved {
				return err
			}
			proved = true
			return b.checkImages(ctx, w, to)
		}}
	}
	rows, err := MeasureShuffled(ctx, b.options.Rounds, variants...)
	step.End("", err)
	for i := range rows {
		err = errors.Join(err, b.readPeak(&rows[i], b.stopwatchFile(i)))
	}
	return rows, err
}

func (b *flashBench) targetPaths(w flashCase) []string {
	if w.devices == 0 {
		return []string{b.outFile()}
	}
	var paths []string
	for _, l := range b.devices[:w.devices] {
		paths = append(paths, l.path)
	}
	return paths
}

// prepareDevices brings the devices into the same state before each run of a case.
func (b *flashBench) prepareDevices(ctx context.Context, w flashCase) error {
	err := errors.Join(os.RemoveAll(b.outFile()), b.limitSpeed(w, speed{}))
	for _, l := range b.devices[:w.devices] {
		err = errors.Join(err, l.makeUsed(b.in.blocks[w.form]))
		if w.holds != "" && err == nil {
			err = l.copyImage(ctx, b.in.imagePath(w.holds), b.in.blocks[w.holds])
		}
	}
	return errors.Join(err, cacheFile(b.in.imagePath(w.form)), b.limitSpeed(w, card))
}

// limitSpeed sets the speed of the devices, in a bench of slow ones.
func (b *flashBench) limitSpeed(w flashCase, s speed) error {
	var err error
	for _, l := range b.devices[:w.devices] {
		if b.slow != nil {
			err = errors.Join(err, b.slow.set(l.number, s))
		}
	}
	return err
}

func (b *flashBench) checkImages(ctx context.Context, w flashCase, paths []string) error {
	if err := b.limitSpeed(w, speed{}); err != nil {
		return err
	}
	for _, path := range paths {
		if err := checkImage(ctx, path, b.in.blocks[w.form]); err != nil {
			return err
		}
	}
	return nil
}

// runVariant runs one flash, under the stopwatch.
func (b *flashBench) runVariant(ctx context.Context, w flashCase, watched string, to []string) error {
	image := b.in.imagePath(w.form)
	if w.alone != nil {
		return w.alone(b.devices[0], b.in.blocks[w.form])
	}
	if w.pipe {
		return zstdIntoDD(ctx, image, to[0])
	}
	c := run.Command{Dir: b.in.formDir(w.form)}
	if w.argv != nil {
		c.Argv = w.argv(image, to[0])
	} else {
		devices := strings.Join(to, ",")
		c.Argv = append([]string{b.programs.slipway, "flash", b.in.board, devices, "--yes=" + devices, "--raw"}, w.ours...)
	}
	c.Argv = append([]string{b.programs.stopwatch, watched}, c.Argv...)
	return run.Run(ctx, c)
}

// stopwatchFile returns the stopwatch's file of case number i.
func (b *flashBench) stopwatchFile(i int) string {
	return filepath.Join(b.dir, "stopwatch-"+strconv.Itoa(i))
}

// readPeak reads the peak memory of the program or its children. The peers unpack in child
// processes.
func (b *flashBench) readPeak(r *Row, watched string) error {
	text, err := os.ReadFile(watched)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the pipe has no stopwatch
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		var took, cpu time.Duration
		var kib int64
		if _, err := fmt.Sscan(line, &took, &cpu, &kib); err != nil {
			return fmt.Errorf("%s: %w", watched, err)
		}
		r.PeakBytes = max(r.PeakBytes, kib<<10)
	}
	return nil
}

// peakRatio returns the peak memory of all of Slipway's flashes.
func peakRatio(rows []Row, cases []flashCase) []Ratio {
	var most int64
	for i, w := range cases {
		if w.isOurs() {
			most = max(most, rows[i].PeakBytes)
		}
	}
	if most == 0 {
		return nil
	}
	return []Ratio{{"peak_rss_mb", float64(most) / 1e6}}
}

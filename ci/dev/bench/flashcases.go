package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"slipway/images/bmap"
	"slipway/layers/run"
)

// flashCase is one method to write one form of the image to something.
type flashCase struct {
	name    string
	form    string
	devices int                             // how many at once; 0: into a file
	holds   string                          // the form that is on the devices before; "": none
	argv    func(image, to string) []string // of a program under the stopwatch
	ours    []string                        // flags of ours, where argv is nil
	pipe    bool                            // zstd piped into dd, where both are nil
	alone   func(*loop, bmap.Map) error     // the device without an image, where argv is nil
	part    bool                            // only a part of the work, so there is no image to check
}

// blind flashes as the peers do, which read nothing back.
var blind = []string{"--blind"}

// isOurs reports whether Slipway flashes the image.
func (w flashCase) isOurs() bool { return w.argv == nil && !w.pipe && !w.part }

// flashCases returns all cases. The names of new versions differ from those of Debian's.
func (b *flashBench) flashCases() []flashCase {
	var all []flashCase
	for _, f := range []string{"raw", "zst", "gz", "xz"} {
		all = append(all, flashCase{name: "ours " + f, form: f, devices: 1, ours: blind},
			flashCase{name: "ours " + f + ", read back", form: f, devices: 1})
	}
	for _, f := range []string{"raw", "zst", "gz"} {
		all = append(all, flashCase{name: "ours " + f + " to two", form: f, devices: 2, ours: blind})
	}
	for _, f := range []string{"raw", "zst"} {
		all = append(all, flashCase{name: "ours " + f + " to a file", form: f, ours: blind},
			flashCase{name: "bmaptool " + f + " to a file", form: f, argv: b.bmaptoolCommand})
	}
	for _, f := range []string{"raw", "zst", "gz", "xz"} {
		all = append(all, flashCase{name: "bmaptool " + f, form: f, devices: 1, argv: b.bmaptoolCommand})
		if b.newer != "" {
			all = append(all, flashCase{name: "newer bmaptool " + f, form: f, devices: 1, argv: b.newerBmaptoolCommand})
		}
	}
	return append(all,
		flashCase{name: "device alone", form: "raw", devices: 1, part: true, alone: func(l *loop, m bmap.Map) error { return l.writeAlone(m, false) }},
		flashCase{name: "device alone, read back", form: "raw", devices: 1, part: true, alone: func(l *loop, m bmap.Map) error { return l.writeAlone(m, true) }},
		flashCase{name: "zstd alone", form: "zst", part: true, argv: func(image, _ string) []string { return []string{"zstd", "-tq", image} }},
		flashCase{name: "dd raw", form: "raw", devices: 1, argv: ddCommand},
		flashCase{name: "zstd into dd", form: "zst", devices: 1, pipe: true})
}

func (b *flashBench) bmaptoolCommand(image, to string) []string {
	return []string{"bmaptool", "copy", "--bmap", b.in.mapPath("raw"), image, to}
}

// newerBmaptoolCommand runs from a checkout, which python3 finds by the environment.
func (b *flashBench) newerBmaptoolCommand(image, to string) []string {
	return append([]string{"env", "PYTHONPATH=" + filepath.Join(b.newer, "src"), "python3", "-m"}, b.bmaptoolCommand(image, to)...)
}

func ddCommand(image, to string) []string {
	return []string{"dd", "if=" + image, "of=" + to, "bs=4M", "conv=fsync"}
}

// zstdIntoDD runs the pipe that people type: zstd -dc IMAGE | dd of=DEVICE bs=4M
// conv=fsync.
func zstdIntoDD(ctx context.Context, image, to string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	unpack := run.Prepare(ctx, run.Command{Argv: []string{"zstd", "-dcq", image}})
	write := run.Prepare(ctx, run.Command{Argv: []string{"dd", "of=" + to, "bs=4M", "conv=fsync", "status=none"}})
	unpack.Stdout, write.Stdin = w, r
	unpack.Stderr, write.Stderr = os.Stderr, os.Stderr
	err = errors.Join(unpack.Start(), write.Start())
	err = errors.Join(err, w.Close(), r.Close()) // theirs are open
	if unpack.Process != nil {
		err = errors.Join(err, nameError("zstd", unpack.Wait()))
	}
	if write.Process != nil {
		err = errors.Join(err, nameError("dd", write.Wait()))
	}
	return err
}

func nameError(program string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", program, err)
}

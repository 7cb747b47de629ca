package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	slowMiB    = 1640 // of which 513 are mapped
	slowRounds = 5
)

// FlashSlow measures flashes to devices that are as slow as a card: the first flash, again
// with the same image, and with an image of which a twentieth differs. It compares them
// with the limits of the device and with bmaptool.
func FlashSlow(ctx context.Context, w io.Writer, o Options) (err error) {
	b, err := newFlashBench(ctx, w, o.withDefaults(slowRounds, slowMiB))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.slow, err = newThrottle(); err != nil {
		return err
	}
	cases, err := b.prepareInputs(ctx, b.slowCases())
	if err != nil {
		return err
	}
	rows, err := b.measureCases(ctx, cases)
	if err != nil {
		return err
	}
	mapped := b.in.blocks["raw"].Mapped()
	limits := []Row{atSpeed("limit of writing", mapped, card.write), atSpeed("limit of reading", mapped, card.read)}
	fmt.Fprintf(w, "device: %d MB/s written, %d MB/s read; %d MB mapped\n", card.write/1e6, card.read/1e6, mapped/1e6)
	rows = append(rows, limits...)
	return PrintTable(w, rows, append(ratiosOfPairs(rows, slowRatios), peakRatio(rows, cases)...)...)
}

// slowCases returns the cases on slow devices. Most leave unmapped blocks unchanged, as
// bmaptool does. The kernel's limit counts a request to zero by all the bytes that it
// zeroes, though no byte goes to the device. It counts a discard by one sector. Cards
// differ in that too.
func (b *flashBench) slowCases() []flashCase {
	keep, blind := []string{"--holes=keep"}, []string{"--holes=keep", "--blind"}
	return []flashCase{
		{name: "ours, first", form: "raw", devices: 1, ours: blind},
		{name: "ours, first, read back", form: "raw", devices: 1, ours: keep},
		{name: "ours, first, holes zeroed, read back", form: "raw", devices: 1},
		{name: "ours, first, holes discarded, read back", form: "raw", devices: 1, ours: []string{"--holes=discard"}},
		{name: "ours, first, to two", form: "raw", devices: 2, ours: blind},
		{name: "ours, again", form: "raw", devices: 1, holds: "raw", ours: blind},
		{name: "ours, again, read back", form: "raw", devices: 1, holds: "raw", ours: keep},
		{name: "ours, 5 % changed", form: "changed", devices: 1, holds: "raw", ours: blind},
		{name: "ours, 5 % changed, read back", form: "changed", devices: 1, holds: "raw", ours: keep},
		{name: "bmaptool, first", form: "raw", devices: 1, argv: b.bmaptoolCommand},
		{name: "bmaptool, again", form: "raw", devices: 1, holds: "raw", argv: b.bmaptoolCommand},
	}
}

var slowRatios = []ratioPair{
	{"first_over_limit", "ours, first", "limit of writing"},
	{"two_over_one", "ours, first, to two", "ours, first"},
	{"again_over_limit", "ours, again", "limit of reading"},
	{"changed_over_again", "ours, 5 % changed", "ours, again"},
	{"changed_over_again_readback", "ours, 5 % changed, read back", "ours, again, read back"},
	{"readback_over_first", "ours, first, read back", "ours, first"},
	{"bmaptool_over_limit", "bmaptool, first", "limit of writing"},
	{"bmaptool_over_ours", "bmaptool, first", "ours, first"},
	{"bmaptool_over_ours_again", "bmaptool, again", "ours, again"},
}

func atSpeed(name string, bytes, perSecond int64) Row {
	return Row{Name: name, Times: []time.Duration{time.Duration(float64(bytes) / float64(perSecond) * float64(time.Second))}}
}

package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/ci/dev/tinyboard"
)

const aloneRounds = 100

// hookProcess holds the figures of our hook's process, as runc starts it: its times from
// exec to exit and on a processor, and its peak memory.
type hookProcess struct {
	row     Row
	peakKiB int64
}

// measureAlone measures the hook's process in containers that are not measured themselves.
// The files that the hook keeps between calls exist already.
func (b *hookBench) measureAlone(ctx context.Context, m *medium) (hookProcess, error) {
	file := filepath.Join(b.board.Dir, "stopwatch")
	timed := hookMethod{name: "slipway-hook alone", runtime: []string{"runc"}, edit: func(c *tinyboard.Container) error {
		c.RequestDevices()
		c.CreateRuntime(b.stopwatch, file, b.ours, "hook")
		return nil
	}}
	lives := b.newVariant(m, timed)
	if _, err := Measure(ctx, aloneRounds, lives); err != nil {
		return hookProcess{}, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return hookProcess{}, err
	}
	p := hookProcess{row: Row{Name: lives.Name}}
	for line := range strings.Lines(string(text)) {
		var took, cpu time.Duration
		var peakKiB int64
		if _, err := fmt.Sscan(line, &took, &cpu, &peakKiB); err != nil {
			return hookProcess{}, fmt.Errorf("%s: %w", file, err)
		}
		p.row.Times, p.row.CPU = append(p.row.Times, took), append(p.row.CPU, cpu)
		p.peakKiB = max(p.peakKiB, peakKiB)
	}
	p.row.Times, p.row.CPU = p.row.Times[1:], p.row.CPU[1:] // the first round is not counted
	return p, nil
}

func (p hookProcess) listRatios(program string) ([]Ratio, error) {
	info, err := os.Stat(program)
	if err != nil {
		return nil, err
	}
	const mb = 1e6
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return []Ratio{
		{"hook_ms", milliseconds(p.row.Median())},
		{"hook_cpu_ms", milliseconds(median(p.row.CPU))},
		{"rss_mb", float64(p.peakKiB) * 1024 / mb},
		{"binary_mb", float64(info.Size()) / mb},
	}, nil
}

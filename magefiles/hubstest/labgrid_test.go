package hubstest

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/layers/run"
)

// labgridScript measures in Debian testing's Python.
//
//go:embed labgrid.py
var labgridScript string

// labgrid measures how labgrid gives out places and takes them back, one after the other, beside jobs
// that a hub adds and a station claims and ends. A hub syncs each to its disk, and labgrid none.
func (b *hubBench) labgrid(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const address = "127.0.0.1:20408"
	coordinator := run.Prepare(ctx, run.Command{Argv: []string{"chroot", b.Labgrid, "labgrid-coordinator", "-l", address}})
	if err := coordinator.Start(); err != nil {
		return err
	}
	defer func() { cancel(); _ = coordinator.Wait() }()
	script := filepath.Join(b.Labgrid, "measure.py")
	if err := os.WriteFile(script, []byte(labgridScript), 0o600); err != nil {
		return err
	}
	if err := waitForPort(ctx, address); err != nil {
		return err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"chroot", b.Labgrid, "python3", "/measure.py", address}})
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		var places int
		var theirs float64
		if _, err := fmt.Sscan(line, &places, &theirs); err != nil {
			return fmt.Errorf("labgrid.py printed %q: %w", line, err)
		}
		var took time.Duration
		err := b.withLab(ctx, labOptions{Stations: 1, Boards: places, Parallel: 1, Quick: true}, func(l *Lab) (err error) {
			took, err = writeThrough(ctx, l, 1)
			return err
		})
		if err != nil {
			return err
		}
		ours := engineJobs / took.Seconds()
		b.figure(fmt.Sprintf("labgrid_pairs_per_s_%d", places), theirs, fmt.Sprintf("acquire and release a second: labgrid, %d places", places))
		b.figure(fmt.Sprintf("hub_boards_jobs_per_s_%d", places), ours, "add, claim and end a second: a hub, as many boards")
		b.figure(fmt.Sprintf("hub_over_labgrid_%d", places), ours/theirs, "times as fast is the hub")
	}
	return nil
}

// waitForPort waits until a server accepts connections.
func waitForPort(ctx context.Context, address string) error {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		if err := run.Sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

package bench

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"slipway/ci"
	"slipway/images"
)

const upRuns = 3

// Up measures the whole flow on the virtual board: once cold, without userland and image
// but with host packages and Slipway itself, then warm. It has no peer, so the ratio is
// that of cold to warm.
func Up(ctx context.Context, w io.Writer) error {
	spec, err := images.Default()
	if err != nil {
		return err
	}
	return keepOnFailure(ctx, "bench-up-", func(dir string) error { return measureUp(ctx, w, spec, dir) })
}

func measureUp(ctx context.Context, w io.Writer, spec images.Spec, dir string) error {
	opt := ci.UpOptions{Build: images.Options{Dir: dir}, Out: io.Discard}
	rows := []Row{{Name: "up, cold"}, {Name: "up, warm"}, {Name: "warm: power-on to ssh"}, {Name: "warm: smoke"}}
	for i := range 1 + upRuns {
		began := time.Now()
		report, err := ci.Up(ctx, spec, opt)
		if err != nil {
			return fmt.Errorf("%w (report: %s)", err, filepath.Join(dir, spec.Board))
		}
		took := time.Since(began)
		if i == 0 {
			rows[0].Times = append(rows[0].Times, took)
			continue
		}
		rows[1].Times = append(rows[1].Times, took)
		for _, s := range report.Stages {
			switch s.Name {
			case "boot":
				rows[2].Times = append(rows[2].Times, time.Duration(s.ElapsedMS)*time.Millisecond)
			case "smoke":
				rows[3].Times = append(rows[3].Times, time.Duration(s.ElapsedMS)*time.Millisecond)
			}
		}
	}
	seconds := func(name string, r Row) Ratio { return Ratio{name, r.Median().Seconds()} }
	return PrintTable(w, rows, TimeRatio("cold_over_warm", rows[0], rows[1]), seconds("cold_s", rows[0]), seconds("warm_s", rows[1]),
		seconds("ssh_s", rows[2]), seconds("smoke_s", rows[3]))
}

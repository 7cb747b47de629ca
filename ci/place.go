package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"slipway/ci/report"
	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/place"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Place runs a flashing place with the file config for a board until ctx ends, and shows it on
// stdout, or as lines of JSON on w. At the end it prints the counts. A dry run only says what it
// would do.
func Place(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, config string, p place.Options, dryRun, asJSON bool) error {
	c, err := place.Load(config)
	if err != nil {
		return report.Because(ctx, report.ErrWrong, err)
	}
	how := flash.Options{Image: c.Image}
	a, err := artifactFor(spec, opt, &how, []string{"/dev/disk"})
	if err != nil {
		return err
	}
	device.LockPatience = time.Minute // a busy machine's udev looks at 8 new cards for more than 3 seconds
	c.Image = how.Image
	if _, err := a.Partition("data"); err == nil && c.Image == "" {
		dir, err := a.StateDir()
		if err != nil {
			return err
		}
		p.Identity = func() (*flash.Identity, error) {
			id, err := flash.NewIdentity(dir)
			return &id, err
		}
	}
	if dryRun {
		return place.DryRun(ctx, w, spec, a, c, p)
	}
	defer progress.Release(ctx)() // the screen has the terminal
	screen := place.NewScreen(os.Stdout, c.Bell)
	if p.Show = screen.Show; asJSON {
		p.Show = place.JSONLines(w)
	}
	if strings.HasPrefix(os.Getenv("SLIPWAY_PROGRESS"), "json") {
		show, events := p.Show, place.Events(func(e progress.Event) { progress.Relay(ctx, e) })
		p.Show = func(ports []place.Port, t place.Totals) { show(ports, t); events(ports, t) }
	}
	t, err := place.Run(ctx, spec, a, c, p)
	screen.Close()
	if !asJSON && (err == nil || t.Good+t.Bad+t.Refused > 0) {
		fmt.Fprintf(w, "%s. The record: %s\n", t, c.Record)
	}
	return err
}

// WritePlaceReport prints the report of a place, or of several. With html it writes a page too.
func WritePlaceReport(w io.Writer, r place.Report, html string, asJSON bool) error {
	if html != "" {
		data, err := r.Page()
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(html), 0o755), os.WriteFile(html, data, 0o644))
		}
		if err != nil {
			return err
		}
	}
	if asJSON {
		return plaintext.WriteJSON(w, r)
	}
	return r.Print(w)
}

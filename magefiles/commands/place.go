package commands

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"slipway/ci"
	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/flash"
	flashplace "slipway/flash/place"
	"slipway/images"
)

// placeGroup returns the command place, which flashes what is plugged into named ports.
func placeGroup() *Command {
	c := New("place BOARD [FILE]", "Flash cards, sticks and boards as they are plugged in, at named ports")
	c.Long = `FILE is place.yml if not given. It names the ports, never "any removable drive". What is plugged into
one of them is proved, written, read back, recorded and ejected, and the next one begins by itself.
What is plugged into any other port is never touched. flash/place.md explains the file.

The image is read and unpacked once for all ports. The first Ctrl-C waits for what is being
written, the second one ends that too: such a card is not whole, and is written when it comes again.

With --hub, FILE is the name of a place on the hub. Its station runs it until "job stop".`
	c.Example = `slipway place BOARD --ports
slipway place BOARD --dry-run
slipway place BOARD line2.yml --count=200
slipway place BOARD --json
slipway place BOARD line-1 --hub --detach
slipway place report record --html=today.html`
	count := c.Number("count", 0, 1, "end when so many good ones are made today")
	ports := c.Switch("ports", "print what is plugged in now as lines of a place.yml, and end")
	otherBoard := c.otherBoard()
	dryRun := c.Switch("dry-run", "check all that a run checks, show what it would do at each port, and write no card")
	asJSON := c.Switch("json", "print each new state of a port as a line of JSON")
	c.runPatientlyOn(images.LoadBuilt, func(ctx context.Context, spec images.Spec, words []string, now <-chan struct{}) error {
		if *ports {
			return flashplace.Ports(stdout)
		}
		o := flashplace.Options{Count: *count, Now: now, Flash: flash.Options{OtherBoard: *otherBoard}}
		return ci.Place(ctx, stdout, spec, options, cmp.Or(words[1], "place.yml"), o, *dryRun, *asJSON)
	})
	c.viaHub(nil, func(images.Spec, []string, job.HubBoard) ([]job.Step, error) {
		return []job.Step{{Do: job.Place, Count: *count}}, nil
	}, "count")
	return c.with(placeReportCommand())
}

func placeReportCommand() *Command {
	c := New("report [FOLDER]", "Show what a flashing place has written")
	c.Long = `FOLDER is the record of the place, record here if not given. Days are those of UTC.
With --hub it shows what all places of the hub's stations have written. FOLDER is then a station, if given.`
	c.Example = `slipway place report
slipway place report record --day=2026-11-29 --html=day.html
slipway place report --json
slipway place report --hub --day=2026-11-29`
	day := c.Text("day=DAY", "", "only this day, such as 2026-11-29; all days if not given")
	html := c.Text("html=FILE", "", "write a page, which opens without a network")
	asJSON := c.Switch("json", "print all entries as JSON")
	hub := c.hubFlag("show what all stations of a hub have written; --hub=ADDRESS if several hubs were joined")
	c.RunSignalled(func(ctx context.Context, words []string) (err error) {
		var r flashplace.Report
		if c.given("hub") {
			r, err = reportOfHub(ctx, *hub, words[0], *day)
		} else {
			r, err = flashplace.ReadReport(cmp.Or(words[0], "record"), *day)
		}
		if err == nil {
			err = ci.WritePlaceReport(stdout, r, *html, *asJSON)
		}
		if errors.Is(err, flashplace.ErrNoDay) {
			return wrongUse{err}
		}
		return err
	})
	return c
}

// reportOfHub returns the report of a day over the places of a station, or of all stations.
func reportOfHub(ctx context.Context, hub, station, day string) (flashplace.Report, error) {
	return flashplace.ReportOf(day, func(add func(flashplace.Entry)) error {
		var all []flashplace.Entry
		err := onHub(ctx, hub, func(client *access.Client) error {
			for n := uint64(1); n != 0; {
				some, err := access.Ask[job.Cards](ctx, client, job.VerbCards, job.CardsWish{Day: day, Station: station, N: n})
				if err != nil {
					return err
				}
				for _, c := range some.Cards {
					e, err := flashplace.ParseEntry(c.Entry)
					if err != nil {
						return err
					}
					of := c.Station + "/" + c.Place + " " // two stations may have a port of one name
					e.Port, e.Label = of+e.Port, of+e.Label
					all = append(all, e)
				}
				n = some.N
			}
			return nil
		})
		slices.SortStableFunc(all, func(a, b flashplace.Entry) int { return a.Began.Compare(b.Began) })
		for _, e := range all {
			add(e)
		}
		return err
	})
}

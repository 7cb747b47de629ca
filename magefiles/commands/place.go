package commands

import (
	"cmp"
	"context"
	"errors"

	"slipway/ci"
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
written, the second one ends that too: such a card is not whole, and is written when it comes again.`
	c.Example = `slipway place BOARD --ports
slipway place BOARD --dry-run
slipway place BOARD line2.yml --count=200
slipway place BOARD --json
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
	return c.with(placeReportCommand())
}

func placeReportCommand() *Command {
	c := New("report [FOLDER]", "Show what a flashing place has written")
	c.Long = `FOLDER is the record of the place, record here if not given. Days are those of UTC.`
	c.Example = `slipway place report
slipway place report record --day=2026-11-29 --html=day.html
slipway place report --json`
	day := c.Text("day=DAY", "", "only this day, such as 2026-11-29; all days if not given")
	html := c.Text("html=FILE", "", "write a page, which opens without a network")
	asJSON := c.Switch("json", "print all entries as JSON")
	c.RunSignalled(func(_ context.Context, words []string) error {
		err := ci.PlaceReport(stdout, cmp.Or(words[0], "record"), *day, *html, *asJSON)
		if errors.Is(err, flashplace.ErrNoDay) {
			return wrongUse{err}
		}
		return err
	})
	return c
}

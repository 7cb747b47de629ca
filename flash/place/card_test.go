package place

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/flash/device"
	"slipway/flash/write"
)

// What is at another port, or another card at the named one, is not what was meant.
func TestMeant(t *testing.T) {
	seen := device.Device{Path: "/dev/sdb", Kind: device.Block, Port: "usb:1-2", Serial: "1", Number: "8:16"}
	for _, test := range []struct {
		change func(*device.Device)
		want   string // "" is meant
	}{
		{func(*device.Device) {}, ""},
		{func(d *device.Device) { d.Port = "usb:1-3" }, `is at port "usb:1-3" by now`},
		{func(d *device.Device) { d.Port = "" }, `is at port "" by now`},
		{func(d *device.Device) { d.Serial = "2" }, "another card is at port"},
		{func(d *device.Device) { d.Number = "8:32" }, "another card is at port"},
		{func(d *device.Device) { d.Guarded = "a part of a RAID" }, "a part of a RAID"},
	} {
		now := seen
		test.change(&now)
		err := meant("usb:1-2", seen, now)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("meant(%+v) = %v; want %q", now, err, test.want)
		}
	}
}

// Each kind of fault has a cause of its own, also below other errors.
func TestCauses(t *testing.T) {
	for want, err := range map[string]error{
		"lies about its size":                    write.ErrSmaller,
		"worn out: it reads back something else": write.ErrLost,
		"pulled out":                             unix.ENODEV,
		"input/output error":                     unix.EIO,
		"write-protected":                        unix.EROFS,
		"the record cannot be written":           (&Place{}).endIf(unix.ENOSPC),
		"":                                       errors.New("something else"),
	} {
		if got := causeOf(fmt.Errorf("flash: %w", err), "/dev/sdb"); got != want {
			t.Errorf("causeOf(%v) = %q; want %q", err, got, want)
		}
	}
	if got := causeOf(fmt.Errorf("%w; %w", unix.EIO, write.ErrRemoved), "/dev/sdb"); got != "pulled out" {
		t.Errorf("causeOf a card that fails because it is gone = %q", got)
	}
	gone := &fs.PathError{Op: "open", Path: "/dev/sdb", Err: unix.ENOENT}
	if got := causeOf(gone, "/dev/sdb"); got != "pulled out" {
		t.Errorf("causeOf(%v) = %q; want pulled out", gone, got)
	}
	if got := causeOf(gone, "/dev/sdc"); got != "" {
		t.Errorf("causeOf(%v) of another device = %q", gone, got)
	}
}

// A port that is less than half as fast as the median of the others is called slow.
func TestSlow(t *testing.T) {
	slow := &Port{speed: 9e6}
	p := &Place{ports: []*Port{slow, {speed: 20e6}, {speed: 21e6}, {speed: 80e6}, {}}}
	if text := p.slowText(slow); !strings.HasPrefix(text, "SLOW: ") {
		t.Errorf("a slow port shows %q", text)
	}
	slow.speed = 15e6
	if text := p.slowText(slow); text != "" {
		t.Errorf("a port of usual speed shows %q", text)
	}
}

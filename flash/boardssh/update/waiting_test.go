package update

import (
	"strings"
	"testing"
	"time"
)

// A system that waits for a restart is taken for a bundle's only if each image has a slot in
// it, with a whole checksum that is equal, and nobody chose the slot again later.
func TestCompareWaiting(t *testing.T) {
	sum := func(c string) string { return strings.Repeat(c, 64) }
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	stamp := func(d time.Duration) string { return at.Add(d).Format(time.RFC3339) }
	root, app := Image{"rootfs", sum("a")}, Image{"appfs", sum("b")}
	for _, tt := range []struct {
		name   string
		change func(s *Status, root, app *Slot)
		images []Image
		want   string // part of the error; "" for none
	}{
		{name: "equal", images: []Image{root}},
		{name: "a slot of the group too", images: []Image{root, app}},
		{name: "only a slot of the group", images: []Image{app}, want: "was not chosen"},
		{name: "no image", want: "was not chosen"},
		{name: "another image", images: []Image{{"rootfs", sum("c")}}, want: "rootfs.1 has the checksum"},
		{name: "another image in the group", images: []Image{root, {"appfs", sum("a")}}, want: "appfs.1 has the checksum"},
		{name: "what runs is equal", images: []Image{{"rootfs", sum("0")}}, want: "rootfs.1 has the checksum"},
		{name: "another class", images: []Image{root, {"bootloader", sum("d")}}, want: `an image for "bootloader"`},
		{name: "a variant that was not installed", images: []Image{root, {"rootfs", sum("c")}}, want: "rootfs.1 has the checksum"},
		{name: "no checksum of the image", images: []Image{{"rootfs", ""}}, change: func(_ *Status, r, _ *Slot) { r.SHA256 = "" }, want: "checksum"},
		{name: "a part of a checksum", images: []Image{{"rootfs", "aa"}}, change: func(_ *Status, r, _ *Slot) { r.SHA256 = "aa" }, want: "checksum"},
		{name: "installation failed", images: []Image{root}, change: func(_ *Status, r, _ *Slot) { r.Failed = true }, want: "checksum"},
		{name: "of the other group", images: []Image{root, app}, change: func(_ *Status, _, a *Slot) { a.Parent = "rootfs.0" }, want: `an image for "appfs"`},
		{name: "of no group", images: []Image{root, app}, change: func(_ *Status, _, a *Slot) { a.Parent = "" }, want: `an image for "appfs"`},
		{name: "nothing waits", images: []Image{root}, change: func(s *Status, _, _ *Slot) { s.Primary = "" }, want: `an image for "rootfs"`},
		{name: "what runs stays", images: []Image{{"rootfs", sum("0")}}, change: func(s *Status, _, _ *Slot) { s.Primary = "rootfs.0" }, want: `an image for "rootfs"`},
		{name: "chosen again", images: []Image{root}, change: func(_ *Status, r, _ *Slot) { r.Activated = stamp(time.Hour) }, want: "was not chosen"},
		{name: "chosen before", images: []Image{root}, change: func(_ *Status, r, _ *Slot) { r.Activated = stamp(-time.Hour) }, want: "was not chosen"},
		{name: "never chosen", images: []Image{root}, change: func(_ *Status, r, _ *Slot) { r.Activated = "" }, want: "was not chosen"},
		{name: "no times", images: []Image{root}, change: func(_ *Status, r, _ *Slot) { r.Activated, r.Installation = "", "" }, want: "was not chosen"},
		{name: "a slow image after it", images: []Image{root, app}, change: func(_ *Status, r, a *Slot) { a.Installation, r.Activated = stamp(time.Hour), stamp(time.Hour) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Status{Primary: "rootfs.1", Slots: []Slot{
				{Name: "rootfs.0", Class: "rootfs", SHA256: sum("0"), Booted: true, Installation: stamp(0), Activated: stamp(0)},
				{Name: "rootfs.1", Class: "rootfs", SHA256: sum("a"), Installation: stamp(0) + " " + sum("a"), Activated: stamp(2 * time.Second)},
				{Name: "appfs.1", Class: "appfs", SHA256: sum("b"), Parent: "rootfs.1", Installation: stamp(time.Second) + " " + sum("b")},
				{Name: "bootloader.0", Class: "bootloader", SHA256: sum("d"), Installation: stamp(0)},
			}}
			if tt.change != nil {
				tt.change(&s, &s.Slots[1], &s.Slots[2])
			}
			err := s.compareWaiting(tt.images)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("compareWaiting() = %v; want %q", err, tt.want)
			}
		})
	}
}

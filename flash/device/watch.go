package device

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"slipway/layers/run"
)

// Change is one event of a watch: a device was present, added, removed or changed.
type Change struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"` // present (when the watch began), added, removed or changed
	Device Device    `json:"device"`
}

// Watch calls each for all devices and existing files, then for each change. It polls once a
// second. It returns nil once ctx ends, or the first error of each or of a poll.
func Watch(ctx context.Context, files []string, each func(Change) error) error {
	m := here
	m.cache = &sync.Map{}
	return m.watchDevices(ctx, files, each, func() { _ = run.Sleep(ctx, time.Second) })
}

// watchDevices lists the devices, calls each with the changes, calls wait, and repeats until ctx
// ends, which is no error, or listing or each fails.
func (m machine) watchDevices(ctx context.Context, files []string, each func(Change) error, wait func()) error {
	var known []Device
	for first := true; ctx.Err() == nil; first = false {
		now, err := m.listAll(ctx, files)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return err
		}
		for _, c := range compareLists(known, now) {
			if first {
				c.Action = "present"
			}
			if err := each(c); err != nil {
				return err
			}
		}
		known = now
		wait()
	}
	return nil // the end of a watch is no failure
}

// compareLists returns the changes of a list. Another device at a path is removed, then added.
func compareLists(before, now []Device) []Change {
	var all []Change
	when := time.Now().UTC()
	old := map[string]Device{}
	for _, d := range before {
		old[d.identityKey()] = d
	}
	current := map[string]bool{}
	for _, d := range now {
		current[d.identityKey()] = true
	}
	for _, d := range before {
		if !current[d.identityKey()] {
			all = append(all, Change{when, "removed", d})
		}
	}
	for _, d := range now {
		was, known := old[d.identityKey()]
		switch {
		case !known:
			all = append(all, Change{when, "added", d})
		case was.jsonText() != d.jsonText():
			all = append(all, Change{when, "changed", d})
		}
	}
	return all
}

// identityKey returns a text that changes if another device is at the same path; a file's does not.
func (d Device) identityKey() string {
	if d.Kind == File {
		return d.Path // its time changes with its content
	}
	return fmt.Sprintf("%s %s %s %s", d.Path, d.Number, d.sequence, d.Serial)
}

func (d Device) jsonText() string {
	data, err := json.Marshal(d)
	if err != nil {
		return err.Error() // the same for both that are compared
	}
	return string(data)
}

// Print writes a change as one line for people, marked as in diff.
func (c Change) Print(w io.Writer) error {
	mark := map[string]string{"present": " ", "added": "+", "removed": "-", "changed": "~"}[c.Action]
	d := c.Device
	_, err := fmt.Fprintf(w, "%s %s  %s  %s  %s %s  %s  %s\n", mark, d.Path, d.sizeOrChip(), d.Bus, d.Model, d.Serial, d.ContentSummary(), d.noteText())
	return err
}

// Plugged lists what is plugged into this machine's ports, as List does, but without its content.
func Plugged() ([]Device, error) {
	uses, err := here.findUses()
	if err != nil {
		return nil, err
	}
	disks, err := here.listDisks(uses)
	if err != nil {
		return nil, err
	}
	jetsons, err := here.listJetsons()
	return slices.Concat(disks, jetsons, here.listRShims()), err
}

// Medium returns a text that no other card, stick or board at d's path has while it is plugged in.
func (d Device) Medium() string { return d.identityKey() }

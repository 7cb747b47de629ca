package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"slipway/flash/probe"
	"slipway/flash/uevent"
)

// Change is what became of a device.
type Change struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"` // present (when the watch began), added, removed or changed
	Device Device    `json:"device"`
}

// How often the devices are listed where the kernel says when, and where it does not.
// Nobody says what is mounted, so that it is looked at now and then in any case.
const (
	seldom = 3 * time.Second
	often  = time.Second
	// A disk comes with a dozen events, its partitions last.
	flurry = 300 * time.Millisecond
)

// Watch tells each of the devices and of the files that are there, and then what
// changes, until ctx ends. Where the kernel does not report changes, Watch polls once a
// second and calls refused with the reason.
func Watch(ctx context.Context, files []string, refused func(error), each func(Change) error) error {
	m := here
	m.cache = &contentCache{}
	every := seldom
	events, err := listenForEvents(ctx, m.cache)
	if err != nil {
		every = often
		refused(err)
	}
	return m.watchDevices(ctx, files, each, func() { waitForEvents(ctx, events, every) })
}

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

// listenForEvents receives the kernel's events about devices that can be flashed. Each
// event empties the cache, since a device's content may be another one.
func listenForEvents(ctx context.Context, m *contentCache) (<-chan struct{}, error) {
	l, err := uevent.Listen()
	if err != nil {
		return nil, err
	}
	events := make(chan struct{}, 1)
	go func() {
		defer l.Close()
		for {
			e, err := l.Next(ctx)
			if err != nil && !errors.Is(err, uevent.ErrLost) {
				return
			}
			switch e.Subsystem {
			case "net", "power_supply", "cpu", "workqueue":
				continue
			}
			m.forget()
			select {
			case events <- struct{}{}:
			default:
			}
		}
	}()
	return events, nil
}

// waitForEvents ends once something happened and the flurry of events is over, or after
// the given time.
func waitForEvents(ctx context.Context, events <-chan struct{}, every time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(every):
	case <-events:
		select {
		case <-ctx.Done():
		case <-time.After(flurry):
		}
	}
}

// compareLists says what changed between two lists. A device at the path of another one is
// a new device.
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

func (d Device) identityKey() string {
	if d.Kind == File {
		return d.Path // its time changes with what is in it
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

// Print writes a change as a line for people, in the format of diff.
func (c Change) Print(w io.Writer) error {
	mark := map[string]string{"present": " ", "added": "+", "removed": "-", "changed": "~"}[c.Action]
	d := c.Device
	_, err := fmt.Fprintf(w, "%s %s  %s  %s  %s %s  %s  %s\n", mark, d.Path, d.sizeOrChip(), d.Bus, d.Model, d.Serial, d.contentSummary(), d.noteText())
	return err
}

// contentCache keeps what was read of the devices. A watch that read them each second
// would never let disks come to rest.
type contentCache struct {
	mu   sync.Mutex
	read map[string]answer
}

// answer is what a device said when it was read.
type answer struct {
	disk probe.Disk
	err  error
}

func (m *contentCache) get(key string) (answer, bool) {
	if m == nil {
		return answer{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.read[key]
	return a, ok
}

func (m *contentCache) keep(key string, a answer) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read == nil {
		m.read = map[string]answer{}
	}
	m.read[key] = a
}

func (m *contentCache) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = nil
}

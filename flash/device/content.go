package device

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/probe"
)

// patience is the wait for a device's content. A broken one needs minutes for each of many reads.
const patience = 30 * time.Second

// readContent reads d's partition table, labels and file systems into d. It sets d.Refused if d
// does not answer in time, d.Refused or d.Guarded by the content, and d.Unread after a read error.
func (m machine) readContent(dir string, d *Device) {
	path := filepath.Join(m.nodes, filepath.Base(d.Path))
	if m.nodes == "" || d.SizeBytes == 0 {
		return
	}
	a, ok := m.cachedContent(dir, d, func() (answer, bool) { return m.probeContent(path, d.SizeBytes, int(d.SectorBytes)) })
	if !ok {
		d.Refused = cmp.Or(d.Refused, "does not answer: it could not be read in time")
		return
	}
	d.fillContent(filepath.Base(dir), a.disk)
	m.refuseByContent(d)
	d.Unread = unreadReason(a.err)
}

// answer is the content of a device, or the error of reading it.
type answer struct {
	state string // of the device before that
	disk  probe.Disk
	err   error
}

// cachedContent returns the content of the last read if the device is the same and nobody wrote to
// it since; else read's results. A watch that read all disks each second would never let them spin
// down. It always reads without m.cache, or without a diskseq (before Linux 5.15).
func (m machine) cachedContent(dir string, d *Device, read func() (answer, bool)) (answer, bool) {
	counts := strings.Fields(readAttribute(dir, "stat"))
	if m.cache == nil || d.sequence == "" || len(counts) < 12 {
		return read()
	}
	state := fmt.Sprintln(d.sequence, d.SizeBytes, counts[4], counts[11]) // writes and discards
	if old, ok := m.cache.Load(d.Number); ok && old.(answer).state == state {
		return old.(answer), true
	}
	a, ok := read()
	if ok {
		a.state = state
		m.cache.Store(d.Number, a)
	}
	return a, ok
}

// probeContent reads a device's content. After the limit it returns false; the read continues.
func (m machine) probeContent(path string, sizeBytes int64, sector int) (answer, bool) {
	var a answer
	if !inTime(cmp.Or(m.patience, patience), func() { a.disk, a.err = probeFile(path, sizeBytes, sector) }) {
		return answer{}, false
	}
	return a, true
}

// inTime runs work in a goroutine and reports whether it ended within the limit. Otherwise work
// continues, and the caller must not read its results.
func inTime(limit time.Duration, work func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// probeFile reads the table and file systems of a device or file with sectors of sector bytes.
func probeFile(path string, sizeBytes int64, sector int) (probe.Disk, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return probe.Disk{}, err
	}
	defer f.Close()
	return probe.Read(f, sizeBytes, sector)
}

// unreadReason returns the text of Device.Unread for an error of reading a device; "" for nil.
func unreadReason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, fs.ErrPermission):
		return "what is on it may not be read: run this as root, and outside of a container that withholds the device"
	}
	return printableText(err.Error())
}

// fillContent adds the probed table and file systems to d. It adds partitions that the kernel does
// not know, such as those of a loop device without partitions or with another sector size.
func (d *Device) fillContent(name string, disk probe.Disk) {
	d.Content = disk.Content
	if disk.Table == nil {
		return
	}
	d.Table, d.Faults = disk.Table.Type, disk.Table.Faults
	if disk.Table.Hybrid {
		d.Table += ", hybrid"
	}
	known := map[int64]int{}
	for i, p := range d.Partitions {
		known[p.OffsetBytes] = i
	}
	for _, p := range disk.Table.Partitions {
		i, ok := known[p.OffsetBytes]
		if !ok {
			i = len(d.Partitions)
			d.Partitions = append(d.Partitions, Content{Name: fmt.Sprintf("%s#%d", name, p.Number), OffsetBytes: p.OffsetBytes, SizeBytes: p.SizeBytes})
		}
		d.Partitions[i].Title, d.Partitions[i].Content = p.Name, p.Content
	}
}

// allContents returns the disk's own content, then that of each partition.
func (d *Device) allContents() []Content {
	whole := Content{Name: filepath.Base(d.Path), SizeBytes: d.SizeBytes, Content: d.Content}
	return append([]Content{whole}, d.Partitions...)
}

package suite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// disk checks the disk that the board runs from.
type disk struct {
	labels []string // of partitions, in this order; other partitions may lie between them
	root   []string // labels of partitions that may hold the root file system
	slot   []string // slots that may be the booted one
}

// readDisk parses a check of the section disk: labels, root, slot, or several of them.
func readDisk(e *Entry) Probe {
	d := disk{labels: e.List("labels"), root: e.List("root"), slot: e.List("slot")}
	if len(d.labels)+len(d.root)+len(d.slot) == 0 {
		e.Fail(e.Key, "a disk needs labels, root or slot")
	}
	return d
}

// partition is a disk partition, as the kernel lists it in /sys/block.
type partition struct {
	disk, name, device, label string // like vda, vda3, 254:3, rootA
	number                    int
}

// parsePartitions parses grep -H of /sys/block's uevent files, sorted by disk and number.
func parsePartitions(text string) []partition {
	var found []partition
	for file, lines := range parseGrepOutput(text) {
		v := plaintext.Properties(lines)
		number, err := strconv.Atoi(v["PARTN"])
		if v["DEVTYPE"] != "partition" || err != nil {
			continue
		}
		found = append(found, partition{
			disk: path.Base(path.Dir(path.Dir(file))), name: v["DEVNAME"],
			device: v["MAJOR"] + ":" + v["MINOR"], label: v["PARTNAME"], number: number,
		})
	}
	slices.SortFunc(found, func(a, b partition) int {
		return cmp.Or(strings.Compare(a.disk, b.disk), cmp.Compare(a.number, b.number), strings.Compare(a.name, b.name))
	})
	return found
}

// Inspect checks the root file system's disk and partition, and the booted slot.
func (d disk) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "sh", "-c", "grep -H . /sys/block/*/*/uevent")
	if err != nil {
		return f, err
	}
	mounts, err := s.readMounts(ctx)
	if err != nil {
		return f, err
	}
	d.checkLayout(&f, parsePartitions(out), mounts)
	if len(d.slot) > 0 {
		cmdline, err := s.Output(ctx, "cat", "/proc/cmdline")
		if err != nil {
			return f, err
		}
		slot := bootedSlot(cmdline)
		f.Expect(slices.Contains(d.slot, slot), "booted from slot "+strings.Join(d.slot, " or "),
			plaintext.Either(slot != "", "slot "+slot+" is booted", "the kernel's command line names no slot: "+plaintext.Clean(plaintext.TrimNewline(cmdline), 500)))
	}
	return f, nil
}

// checkLayout checks the partition labels of the root file system's disk, and root's own partition.
// A root that is on no partition is a failure.
func (d disk) checkLayout(f *Finding, all []partition, mounts []*mountinfo.Info) {
	root := cmp.Or(findMount(mounts, "/"), &mountinfo.Info{})
	number := fmt.Sprintf("%d:%d", root.Major, root.Minor)
	i := slices.IndexFunc(all, func(p partition) bool { return p.device == number })
	if i < 0 {
		f.Expect(false, "root is on a partition", fmt.Sprintf("root is %q (%s), which is no partition", root.Source, root.FSType))
		return
	}
	var labels []string
	for _, p := range all {
		if p.disk == all[i].disk {
			labels = append(labels, cmp.Or(p.label, "(unnamed)"))
		}
	}
	if len(d.labels) > 0 {
		f.Expect(isInOrder(labels, d.labels), "partitions "+strings.Join(d.labels, ", "), all[i].disk+" has "+strings.Join(labels, ", "))
	}
	if len(d.root) > 0 {
		f.Expect(slices.Contains(d.root, all[i].label), "root on "+strings.Join(d.root, " or "),
			fmt.Sprintf("root is on %s (%s)", cmp.Or(all[i].label, "an unnamed partition"), all[i].name))
	}
}

// isInOrder reports whether have contains all of want in this order. Others may be between them.
func isInOrder(have, want []string) bool {
	for _, h := range have {
		if len(want) > 0 && h == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// bootedSlot returns the value of rauc.slot in the kernel's command line, or "".
func bootedSlot(cmdline string) string {
	for _, word := range strings.Fields(cmdline) {
		if slot, ok := strings.CutPrefix(word, "rauc.slot="); ok {
			return slot
		}
	}
	return ""
}

func (d disk) Next() string {
	return "on the board: lsblk -o NAME,PARTLABEL,MOUNTPOINTS; compare with the disk in the board's board.yml"
}

// findMount returns the last mount on dir, which hides earlier ones, or nil.
func findMount(mounts []*mountinfo.Info, dir string) *mountinfo.Info {
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint == dir {
			return m
		}
	}
	return nil
}

// readMounts returns the board's mounts. No mount at all is an error.
func (s *Session) readMounts(ctx context.Context) ([]*mountinfo.Info, error) {
	out, err := s.Output(ctx, "cat", "/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	all, err := mountinfo.GetMountsFromReader(strings.NewReader(out), nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read /proc/self/mountinfo: %s", plaintext.Clean(err.Error(), 200))
	case len(all) == 0:
		return nil, errors.New("read /proc/self/mountinfo: it shows no mount")
	}
	return all, nil
}

// mount is a mounted file system.
type mount struct {
	dir                               string
	exists                            bool
	opts, vfsOpts, source, filesystem match.Matcher
	usage                             match.Matcher // in percent
}

// readMount parses a check of the section mount.
func readMount(e *Entry) Probe {
	return mount{
		dir:        e.Path("mountpoint"),
		exists:     e.Bool("exists", true),
		opts:       e.Matcher("opts", match.List),
		vfsOpts:    e.Matcher("vfs-opts", match.List),
		source:     e.Matcher("source", match.String),
		filesystem: e.Matcher("filesystem", match.String),
		usage:      e.Matcher("usage", match.Number),
	}
}

// Inspect checks that a file system is mounted, or none, and its type, source, options and usage.
func (m mount) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	mounts, err := s.readMounts(ctx)
	if err != nil {
		return f, err
	}
	at := findMount(mounts, m.dir)
	f.expectState("", at != nil, m.exists, "a file system is mounted on "+m.dir, "nothing is mounted on "+m.dir)
	if at == nil || !m.exists {
		return f, nil
	}
	f.ExpectMatch("filesystem", m.filesystem, at.FSType, at.FSType)
	f.ExpectMatch("source", m.source, at.Source, "from "+at.Source)
	f.ExpectMatch("opts", m.opts, strings.Split(at.Options, ","), "opts "+at.Options)
	f.ExpectMatch("vfs-opts", m.vfsOpts, strings.Split(at.VFSOptions, ","), "vfs-opts "+at.VFSOptions)
	if m.usage.Empty() {
		return f, nil
	}
	out, err := s.Output(ctx, "stat", "-f", "-c", "%b %f", m.dir)
	if err != nil {
		return f, err
	}
	used, err := parseUsage(out)
	if err == nil {
		f.ExpectMatch("usage", m.usage, used, fmt.Sprintf("%d %% in use", used))
	}
	return f, err
}

// parseUsage parses the numbers of all and of free blocks, and returns the used percentage as goss
// does. That of df is higher, because df leaves out the blocks reserved for root.
func parseUsage(text string) (int, error) {
	var blocks, free uint64
	if n, err := fmt.Sscanf(text, "%d %d", &blocks, &free); err != nil || n != 2 || free > blocks || blocks == 0 {
		return 0, fmt.Errorf("stat -f answered %q, not blocks and free blocks", plaintext.Clean(text, 200))
	}
	return int(math.Round((1 - float64(free)/float64(blocks)) * 100)), nil
}

func (m mount) Next() string {
	return "on the board: " + ShellLine([]string{"findmnt", m.dir}) + "; look for it in /etc/fstab and journalctl -b"
}

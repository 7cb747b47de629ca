package suite

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"slipway/layers/plaintext"
)

// disk checks the disk that the board runs from.
type disk struct {
	labels []string // of partitions, in this order; other partitions may lie between them
	root   []string // labels of partitions that may hold the root file system
	slot   []string // slots that may be the booted one
}

func readDisk(e *Entry) Probe {
	d := disk{labels: e.List("labels"), root: e.List("root"), slot: e.List("slot")}
	if len(d.labels)+len(d.root)+len(d.slot) == 0 {
		e.Fail(e.Key, "a disk needs labels, root or slot")
	}
	return d
}

// partition is a partition that the kernel has listed.
type partition struct {
	disk, name, device, label string // like vda, vda3, 254:3, rootA
	number                    int
}

// parsePartitions reads the uevent files of /sys/block, as grep -H prints them. So the
// board needs no program for disks.
func parsePartitions(text string) []partition {
	byFile := map[string]map[string]string{}
	for _, line := range plaintext.Lines(text) {
		file, pair, _ := strings.Cut(line, ":")
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			continue
		}
		if byFile[file] == nil {
			byFile[file] = map[string]string{}
		}
		byFile[file][key] = value
	}
	var found []partition
	for file, v := range byFile {
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

// checkLayout checks the labels of the root's disk, and the partition of the root.
func (d disk) checkLayout(f *Finding, all []partition, mounts []mountpoint) {
	root, ok := findMount(mounts, "/")
	i := slices.IndexFunc(all, func(p partition) bool { return ok && p.device == root.device })
	if i < 0 {
		f.Expect(false, "root is on a partition", fmt.Sprintf("root is %q (%s), which is no partition", root.source, root.filesystem))
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

// isInOrder reports whether have contains all of want, in this order.
func isInOrder(have, want []string) bool {
	for _, h := range have {
		if len(want) > 0 && h == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// bootedSlot returns the slot that the boot loader names to RAUC in the kernel's command
// line, or "".
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

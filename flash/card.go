package flash

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"slipway/flash/device"
	"slipway/flash/probe"
)

// showUnused prints at which offset a card's image ends, how much of the card stays unused, and the
// command that grows the last partition. It prints nothing for an image that was not made from a
// tegraflash package, whose image ends with its last partition and the second GPT.
func (j *imageJob) showUnused(w io.Writer) {
	if j.work == nil {
		return
	}
	disk, err := probe.Read(j.file, j.size, 512)
	if err != nil || disk.Table == nil || len(disk.Table.Partitions) == 0 {
		return
	}
	last := slices.MaxFunc(disk.Table.Partitions, func(a, b probe.Partition) int { return cmp.Compare(a.OffsetBytes, b.OffsetBytes) })
	for _, d := range j.devices {
		path, unused := "/dev/CARD", "the rest of a larger card stays unused"
		if d.Kind == device.Block {
			path, unused = d.Path, fmt.Sprintf("%s of %s stay unused", device.SizeText(d.SizeBytes-j.size), d.Path)
		}
		if d.Kind == device.Block && d.SizeBytes == j.size {
			continue
		}
		fmt.Fprintf(w, "  note: the image ends at %d MiB, with partition %d (%s) and the second copy of the partition table; %s.\n"+
			"  To use the whole card, run this after the write: %s\n", j.size>>20, last.Number, last.Name, unused, growCommand(path, last))
	}
}

// growCommand returns the command line that grows a disk's last partition and its file
// system to the disk's end. sfdisk moves the second copy of the table there.
func growCommand(path string, last probe.Partition) string {
	line := fmt.Sprintf("echo ', +' | sfdisk -N %d %s", last.Number, path)
	part := path + strconv.Itoa(last.Number)
	if end := path[len(path)-1]; end >= '0' && end <= '9' {
		part = path + "p" + strconv.Itoa(last.Number)
	}
	if last.Content.Type == "ext4" {
		line += fmt.Sprintf(" && e2fsck -f -p %s && resize2fs %s", part, part)
	}
	return line
}

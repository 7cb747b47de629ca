// Package device finds the devices that images can be written to from this machine. It reports
// their content and their users, has a person confirm them, and opens them exclusively for one
// flash. It does not write to them; see flash.
package device

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"slipway/flash/probe"
	"slipway/layers/plaintext"
)

// The kinds of devices. A board's spec says which of them it is flashed through.
const (
	File  = "file"  // a virtual disk: an ordinary file
	Block = "block" // a whole block device, or a loop device
	Tegra = "tegra" // a Jetson in recovery mode
	RShim = "rshim" // a BlueField's rshim
)

// Device is something that an image can be written to, or why it cannot.
type Device struct {
	Path      string `json:"path"`
	Given     string `json:"given,omitempty"` // the user's name for it, if that differs from Path
	Kind      string `json:"kind"`
	Bus       string `json:"bus,omitempty"` // usb, mmc, nvme, ata, scsi, virtio or loop
	Model     string `json:"model,omitempty"`
	Chip      string `json:"chip,omitempty"` // of a board: t234, BlueField-2
	Serial    string `json:"serial,omitempty"`
	Port      string `json:"port,omitempty"` // the port that it is plugged into: usb:1-2
	Twin      string `json:"twin,omitempty"` // another device with the same serial
	SizeBytes int64  `json:"sizeBytes"`
	Removable bool   `json:"removable"`
	Number    string `json:"number,omitempty"` // the kernel's, major:minor

	SectorBytes int64 `json:"sectorBytes,omitempty"` // by which the kernel reads a partition table

	probe.Content           // of the whole disk, if it is one file system
	Table         string    `json:"table,omitempty"`  // gpt or dos
	Faults        []string  `json:"faults,omitempty"` // of the table
	Partitions    []Content `json:"partitions,omitempty"`
	Unread        string    `json:"unread,omitempty"` // why it is not known what is on it, or not all

	Refused string `json:"refused,omitempty"` // why it is never written; "" if it may be
	Guarded string `json:"guarded,omitempty"` // why it is written only if the user names its serial

	exists   bool   // a file that is not there yet needs no confirmation
	sequence string // the kernel's count of disks, or a file's number and time; what was swapped has another
}

// Content is a partition that is on a device now.
type Content struct {
	Name          string   `json:"name"`
	OffsetBytes   int64    `json:"offsetBytes"`
	Title         string   `json:"title,omitempty"` // by the partition table
	SizeBytes     int64    `json:"sizeBytes"`
	probe.Content          // what the partition holds
	Uses          []string `json:"uses,omitempty"` // mounted on /media/card, swap, ...
}

// List lists the devices of this machine: cards and disks, Jetsons in recovery mode, rshims, and
// those of the files that exist. Refused has the reason for those that Slipway does not write.
func List(ctx context.Context, files ...string) ([]Device, error) {
	return here.listAll(ctx, files)
}

// Table prints devices as a table with a heading, for people.
func Table(w io.Writer, devices []Device) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tSIZE\tBUS\tMODEL\tSERIAL\tHOLDS\tNOTE")
	for _, d := range devices {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Path, d.sizeOrChip(), d.Bus, d.Model, d.Serial, d.ContentSummary(), d.noteText())
	}
	return tw.Flush()
}

// sizeOrChip returns the chip of a Jetson or BlueField, or a disk's size as text.
func (d Device) sizeOrChip() string {
	if d.Kind == Tegra || d.Kind == RShim {
		return d.Chip
	}
	return plaintext.SizeText(d.SizeBytes)
}

// ContentSummary lists the partitions, file systems and labels that a flash would destroy.
func (d Device) ContentSummary() string {
	var all []string
	if d.Content.Type != "" {
		all = append(all, typeAndLabel(d.Content))
	}
	for _, p := range d.Partitions {
		all = append(all, strings.TrimSpace(p.Name+" "+typeAndLabel(p.Content)))
	}
	return strings.Join(all, ", ")
}

// typeAndLabel returns the content's type and, in quotes, its label if it has one.
func typeAndLabel(c probe.Content) string {
	if c.Label == "" {
		return c.Type
	}
	return fmt.Sprintf("%s %q", c.Type, c.Label)
}

// noteText returns why the device is refused or guarded, or else a remark on it.
func (d Device) noteText() string {
	switch {
	case d.Refused != "":
		return "refused: " + d.Refused
	case d.isFixed() && d.Serial == "":
		return "refused: not removable, and without a serial to name it by"
	case d.guardReason() != "":
		_, what := d.confirmationToken()
		return d.guardReason() + ": written only when named by " + what
	case d.Twin != "":
		return "has the serial of " + d.Twin + ": named by its port, " + d.Port
	case d.Kind == Tegra:
		return "in recovery mode"
	}
	return cmp.Or(d.Unread, strings.Join(d.Faults, "; "))
}

// isFixed reports whether the device is a disk that is not removable, perhaps the user's only one.
func (d Device) isFixed() bool {
	return d.Kind == Block && d.Bus != "loop" && !d.Removable
}

// IsCalled reports whether name is the device's path, or the path by which the user named it.
func (d Device) IsCalled(name string) bool {
	abs, err := filepath.Abs(strings.TrimPrefix(name, FilePrefix))
	return name == d.Path || err == nil && (abs == d.Path || abs == d.Given)
}

// SameAs reports whether both are the same device, by path or by number.
func (d Device) SameAs(other Device) bool {
	return d.Path == other.Path || d.Number != "" && d.Number == other.Number
}

// Exists reports whether the device exists. A virtual disk that the flash will create does not.
func (d Device) Exists() bool { return d.exists }

// Describe prints the device, its content and its warnings, but not Refused, before a confirmation.
func (d Device) Describe(w io.Writer) {
	fmt.Fprintf(w, "%s: %s, %s", d.Path, d.Kind, d.sizeOrChip())
	for _, field := range []struct{ name, value string }{
		{"bus", d.Bus},
		{"model", d.Model},
		{"serial", d.Serial},
		{"port", d.Port},
		{"table", d.Table},
		{"as", typeAndLabel(d.Content)},
	} {
		if field.value != "" {
			fmt.Fprintf(w, ", %s %s", field.name, field.value)
		}
	}
	fmt.Fprintln(w)
	if d.Given != "" {
		fmt.Fprintf(w, "  given as %s\n", printableText(d.Given))
	}
	for _, p := range d.Partitions {
		fmt.Fprintf(w, "  %s\n", p)
	}
	for _, note := range append([]string{d.Unread, d.guardReason()}, d.Faults...) {
		if note != "" {
			fmt.Fprintf(w, "  note: %s\n", note)
		}
	}
}

// String returns the partition's name, size, title, and type of content with its label.
func (c Content) String() string {
	fields := []string{c.Name, " " + plaintext.SizeText(c.SizeBytes)}
	if c.Title != "" {
		fields = append(fields, fmt.Sprintf("%q", c.Title))
	}
	if c.Content.Type != "" {
		fields = append(fields, typeAndLabel(c.Content))
	}
	return strings.Join(fields, " ")
}

// ExactSize returns a size for people, and in bytes too, without which two sizes may look the same.
func ExactSize(n int64) string { return fmt.Sprintf("%s (%d bytes)", plaintext.SizeText(n), n) }

// HasMedium reports whether something is plugged in that can be written, and not an empty reader.
func (d Device) HasMedium() bool { return d.Kind != Block || d.SizeBytes > 0 }

// HoldsSystem reports whether the device holds the running system.
func (d Device) HoldsSystem() bool { return strings.HasPrefix(d.Refused, systemPrefix) }

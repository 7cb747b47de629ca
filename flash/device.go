package flash

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
	Path       string    `json:"path"`
	Kind       string    `json:"kind"`
	Bus        string    `json:"bus,omitempty"` // usb, mmc, nvme, ata, scsi, virtio or loop
	Model      string    `json:"model,omitempty"`
	Serial     string    `json:"serial,omitempty"`
	Port       string    `json:"port,omitempty"`    // where it is plugged in: usb:1-2
	Twin       string    `json:"twin,omitempty"`    // another device with the same serial
	Guarded    string    `json:"guarded,omitempty"` // why it is written only where named by its serial
	SizeBytes  int64     `json:"sizeBytes"`
	Removable  bool      `json:"removable"`
	Number     string    `json:"number,omitempty"` // the kernel's, major:minor
	Partitions []Content `json:"partitions,omitempty"`
	Refused    string    `json:"refused,omitempty"` // why it is never written; "" where it may be

	exists   bool   // a file that is not there yet needs no confirmation
	sequence string // the kernel's count of disks, or a file's number and time; what was swapped has another
}

// Content is a partition that a device holds at the moment.
type Content struct {
	Name      string   `json:"name"`
	SizeBytes int64    `json:"sizeBytes"`
	Uses      []string `json:"uses,omitempty"` // mounted on /media/card, swap, ...
}

// Devices lists this machine's block devices, also those that are refused.
func Devices(ctx context.Context) ([]Device, error) {
	return here.devices(ctx)
}

// Table prints devices for people.
func Table(w io.Writer, devices []Device) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tSIZE\tBUS\tMODEL\tSERIAL\tHOLDS\tNOTE")
	for _, d := range devices {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Path, sizeText(d.SizeBytes), d.Bus, d.Model, d.Serial, d.holds(), d.note())
	}
	return tw.Flush()
}

func (d Device) holds() string {
	names := make([]string, len(d.Partitions))
	for i, p := range d.Partitions {
		names[i] = p.Name
	}
	return strings.Join(names, " ")
}

func (d Device) note() string {
	switch {
	case d.Refused != "":
		return "refused: " + d.Refused
	case d.fixed() && d.Serial == "":
		return "refused: not removable, and without a serial to name it by"
	case d.fixed():
		return "not removable: written only when named by its serial"
	}
	return ""
}

// fixed tells a disk that may well be somebody's only one.
func (d Device) fixed() bool {
	return d.Kind == Block && d.Bus != "loop" && !d.Removable
}

// describe shows what is about to be overwritten.
func (d Device) describe(w io.Writer) {
	fmt.Fprintf(w, "%s: %s, %s", d.Path, d.Kind, sizeText(d.SizeBytes))
	for _, field := range []struct{ name, value string }{{"bus", d.Bus}, {"model", d.Model}, {"serial", d.Serial}} {
		if field.value != "" {
			fmt.Fprintf(w, ", %s %s", field.name, field.value)
		}
	}
	fmt.Fprintln(w)
	for _, p := range d.Partitions {
		fmt.Fprintf(w, "  %s  %s\n", p.Name, sizeText(p.SizeBytes))
	}
}

func sizeText(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	size, unit := float64(n)/(1<<10), 0
	for size >= 1<<10 && unit < len(units)-1 {
		size, unit = size/(1<<10), unit+1
	}
	return fmt.Sprintf("%.1f %ciB", size, units[unit])
}

package ci

import (
	"context"
	"encoding/json"
	"io"
	"path/filepath"

	"slipway/flash/device"
	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/plaintext"
)

// ListDevices writes which devices of this machine, and disks of virtual boards, can be flashed.
func ListDevices(ctx context.Context, w io.Writer, opt images.Options, asJSON bool) error {
	disks, err := virtualDisks(opt)
	if err != nil {
		return err
	}
	all, err := device.List(ctx, disks...)
	if err != nil {
		return err
	}
	if asJSON {
		return plaintext.WriteJSON(w, all)
	}
	return device.Table(w, all)
}

// WatchDevices writes all devices, then each that appears, disappears or changes, until ctx ends.
func WatchDevices(ctx context.Context, w io.Writer, opt images.Options, asJSON bool) error {
	disks, err := virtualDisks(opt)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(w)
	return device.Watch(ctx, disks, func(c device.Change) error {
		if asJSON {
			return lines.Encode(c)
		}
		return c.Print(w)
	})
}

// virtualDisks returns the paths of all virtual boards' disks, whether they exist or not.
func virtualDisks(opt images.Options) ([]string, error) {
	names, err := images.Boards()
	if err != nil {
		return nil, err
	}
	var disks []string
	for _, name := range names {
		spec, err := images.Load(name)
		if err != nil {
			return nil, err
		}
		if spec.Machine != nil {
			disks = append(disks, filepath.Join(opt.MachineDir(spec), qemu.DiskName))
		}
	}
	return disks, nil
}

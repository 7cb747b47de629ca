package bench

import (
	"context"
	"runtime"
	"slices"

	"slipway/flash/device"
	"slipway/images"
)

const (
	flashOurs     = "time -a -o {program}.peaks -f %M {program} flash {board} {device} --yes={device} --raw"
	flashBmaptool = "bmaptool copy --bmap {map} "
)

// flash measures how long it takes to write an image, a third of it mapped, to a used loop
// device. Programs find it in the page cache. With --blind Slipway reads nothing back, as the
// peers do. The limits are the device alone and zstd without a write.
var flash = area{
	rounds: 5, mib: 4 << 10,
	packages: []string{"bmap-tools", "mount", "zstd", "time"},
	root:     true,
	begin:    chooseBoard,
	variants: []variant{
		flashVariant("ours raw", "raw", flashOurs+" --blind"),
		flashVariant("ours raw, read back", "raw", flashOurs),
		flashVariant("ours zst", "zst", flashOurs+" --blind"),
		flashVariant("ours zst, read back", "zst", flashOurs),
		flashVariant("bmaptool raw", "raw", flashBmaptool+"{raw} {device}"),
		flashVariant("bmaptool zst", "zst", flashBmaptool+"{zst} {device}"),
		flashVariant("dd raw", "raw", "dd if={raw} of={device} bs=4M conv=fsync"),
		flashVariant("zstd into dd", "zst", `sh -c "zstd -dcq {zst} | dd of={device} bs=4M conv=fsync status=none"`),
		{name: "zstd alone", command: "zstd -tq {zst}", prepare: "prepare zst"},
		{name: "device alone", command: "{dir}/sender device {device} {map}", prepare: "prepare raw"},
	},
	ratios: []ratio{
		{name: "raw", over: "bmaptool raw", under: "ours raw"},
		{name: "zst", over: "bmaptool zst", under: "ours zst"},
		{name: "raw_readback", over: "bmaptool raw", under: "ours raw, read back"},
		{name: "zst_readback", over: "bmaptool zst", under: "ours zst, read back"},
		{name: "dd", over: "dd raw", under: "ours raw"},
		{name: "zstd_into_dd", over: "zstd into dd", under: "ours zst"},
		{name: "zst_over_zstd", over: "ours zst", under: "zstd alone"},
		{name: "raw_over_device", over: "ours raw", under: "device alone"},
	},
}

// flashVariant returns the variant of a program that writes the image in one form, raw or zst.
func flashVariant(name, form, command string) variant {
	return variant{name: name, command: command, dir: "{dir}/" + form, prepare: "prepare " + form, check: "check"}
}

// chooseBoard sets board in s.words to a real board of this CPU, flashed by card and as a file.
func chooseBoard(_ context.Context, s *session) error {
	spec, err := images.First("is flashed by a card, and as a file", func(spec images.Spec) bool {
		kinds := spec.Flash.Kinds
		return spec.Machine == nil && spec.Arch == runtime.GOARCH && slices.Contains(kinds, device.Block) && slices.Contains(kinds, device.File)
	})
	s.words["board"] = spec.Board
	return err
}

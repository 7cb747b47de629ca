package images

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/plaintext"
)

var (
	firmwares = []string{"bios", "uefi"}
	uses      = []string{UseLoader, UseBoot, UseRoot, UseSpare, UseData}
	devices   = []string{"file", "block", "tegra", "rshim"}
	chips     = []string{"t210", "t186", "t194", "t234", "t264"}
)

// Arches are the architectures of boards and builders, by Go's names.
var Arches = []string{"amd64", "arm64"}

// The uses of a partition.
const (
	UseLoader = "loader" // the boot loader's first stage, or the EFI system partition
	UseBoot   = "boot"   // the boot loader's configuration and environment
	UseRoot   = "root"   // the slot that the image fills
	UseSpare  = "spare"  // a slot that the first update fills
	UseData   = "data"   // survives updates; made when the board is flashed
)

// validate returns the first error in a board's settings that would make a later stage fail.
func (s Spec) validate() error {
	switch {
	case !slices.Contains(Arches, s.Arch):
		return s.unknownValue("arch", s.Arch, Arches)
	case len(s.Flash.Kinds) == 0 && s.Rig == nil:
		return s.unknownValue("flash.kinds", "", devices)
	case s.Debian != nil && s.Disk == nil && s.Rig == nil:
		return fmt.Errorf("%s: debian needs a disk to be put on; add disk", s.PlaceOf("debian"))
	case s.Debian != nil && s.Disk != nil && s.Disk.Firmware == "bios" && s.Arch != "amd64":
		return fmt.Errorf("%s: disk.firmware: %s is not for %s; use uefi", s.PlaceOf("disk.firmware"), s.Disk.Firmware, s.Arch)
	case s.Debian == nil && !slices.ContainsFunc(projectFiles, func(name string) bool { return s.files[name] != nil }):
		return fmt.Errorf("%s: neither debian nor a project file beside it (%s) says how to build the image", s.BoardFile(), strings.Join(projectFiles, " or "))
	}
	if err := s.validateUpdates(); err != nil {
		return err
	}
	for _, k := range s.Flash.Kinds {
		if !slices.Contains(devices, k) {
			return s.unknownValue("flash.kinds", k, devices)
		}
	}
	if port := s.SSH.Port; port < 0 || port > 65535 {
		return fmt.Errorf("%s: ssh.port: %d is not between 1 and 65535", s.PlaceOf("ssh.port"), port)
	}
	if gib := s.Flash.LargestGiB; gib < 0 || gib > 1<<20 || gib == 0 && s.places["flash.largestGiB"] != "" {
		return fmt.Errorf("%s: flash.largestGiB: %d is not between 1 and %d", s.PlaceOf("flash.largestGiB"), gib, 1<<20)
	}
	if s.Flash.Signers == "" && s.places["flash.signers"] != "" {
		return fmt.Errorf("%s: flash.signers: it is empty; name a file, or remove the key", s.PlaceOf("flash.signers"))
	}
	if name := s.Flash.Signers; name != "" && !filepath.IsAbs(name) {
		if _, err := s.File(name); err != nil {
			return fmt.Errorf("%s: flash.signers: %w", s.PlaceOf("flash.signers"), err)
		}
	}
	if !filepath.IsAbs(s.SSH.HostCA) {
		if _, err := s.HostAuthorities(); err != nil {
			return err
		}
	}
	return cmp.Or(s.validatePolicy(), s.validateJetson(), s.validateBuild(), s.validateDPU(), s.validateRig(), s.validateDisk())
}

// plainWord matches words that are safe in the environment of NVIDIA's scripts, which do not quote.
var plainWord = plaintext.Regexp(`^[A-Za-z0-9._:-]{0,64}$`)

// validateJetson returns the first error in flash.chip, flash.recovery and flash.module.
func (s Spec) validateJetson() error {
	if c := s.Flash.Chip; c != "" && !slices.Contains(chips, c) {
		return s.unknownValue("flash.chip", c, chips)
	}
	if r := s.Flash.Recovery; r.SSH != "" && len(r.Command) == 0 || slices.Contains(r.Command, "") {
		return fmt.Errorf("%s: flash.recovery: ssh needs a command, a list of words: command: [relay, --on]", s.PlaceOf("flash.recovery"))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Flash.Module)) {
		if value := s.Flash.Module[name]; !plainWord().MatchString(value) {
			return fmt.Errorf("%s: flash.module.%s: %q is no plain word", s.PlaceOf("flash.module."+name), name, value)
		}
	}
	return nil
}

// validateUpdates checks that a debian.keyring is an absolute path and comes with a manifest.
func (s Spec) validateUpdates() error {
	if s.Debian == nil || s.Debian.Keyring == "" {
		return nil
	}
	if !path.IsAbs(s.Debian.Keyring) {
		return fmt.Errorf("%s: debian.keyring: %q does not begin with /; it is a file of the image", s.PlaceOf("debian.keyring"), s.Debian.Keyring)
	}
	if _, err := s.File("bundle/manifest.raucm"); err != nil {
		return fmt.Errorf("%s: debian.keyring is for bundles, which need a manifest: %w", s.PlaceOf("debian.keyring"), err)
	}
	return nil
}

// validateBuild checks that local has absolute paths and that the figures in build are possible. A
// Debian board needs no figures, so they are not checked.
func (s Spec) validateBuild() error {
	for _, id := range slices.Sorted(maps.Keys(s.Local)) {
		if !filepath.IsAbs(s.Local[id]) {
			return fmt.Errorf("%s: local.%s: %q is not an absolute path", s.PlaceOf("local."+id), id, s.Local[id])
		}
	}
	d := s.Build.Disk
	if s.Debian != nil {
		return nil
	}
	for _, gib := range []int{d.LayersGiB, d.DownloadsGiB, d.SstateGiB, d.TmpGiB, s.Build.MemoryGiB} {
		if gib < 1 || gib > 1<<14 {
			return fmt.Errorf("%s: build: %d GiB is not between 1 and %d", s.PlaceOf("build"), gib, 1<<14)
		}
	}
	if s.Build.TaskMiB < 1 || s.Build.TaskMiB > 1<<20 {
		return fmt.Errorf("%s: build.taskMiB: %d is not between 1 and %d", s.PlaceOf("build.taskMiB"), s.Build.TaskMiB, 1<<20)
	}
	return nil
}

// validateDisk checks disk, if set, its firmware and partitions: one loader, one boot, one root
// before any spare, and for a virtual machine one data.
func (s Spec) validateDisk() error {
	if s.Disk == nil {
		return nil
	}
	if !slices.Contains(firmwares, s.Disk.Firmware) {
		return s.unknownValue("disk.firmware", s.Disk.Firmware, firmwares)
	}
	seen := map[string]int{}
	for _, p := range s.Disk.Partitions {
		if !slices.Contains(uses, p.Use) {
			return s.unknownValue("disk.partitions."+p.Name+".use", p.Use, uses)
		}
		if bitbakes := s.Debian == nil && p.SizeMiB == 0; !bitbakes && (p.SizeMiB <= 0 || p.SizeMiB > 1<<20) {
			return fmt.Errorf("%s: partition %q: sizeMiB %d is not between 1 and %d", s.PlaceOf("disk.partitions."+p.Name), p.Name, p.SizeMiB, 1<<20)
		}
		if p.Use == UseRoot && seen[UseSpare] > 0 {
			return fmt.Errorf("%s: partition %q (root) comes after one with use spare; the first slot is the one that is filled and booted: put it first", s.PlaceOf("disk.partitions."+p.Name), p.Name)
		}
		seen[p.Use]++
	}
	for _, use := range []string{UseLoader, UseBoot, UseRoot} {
		if seen[use] != 1 {
			return fmt.Errorf("%s: %d partitions with use %q; want one", s.PlaceOf("disk.partitions"), seen[use], use)
		}
	}
	if s.Machine != nil && seen[UseData] != 1 {
		return fmt.Errorf("%s: %d partitions with use %q; want one, for the machine's keys", s.PlaceOf("disk.partitions"), seen[UseData], UseData)
	}
	return nil
}

func (s Spec) unknownValue(key, value string, allowed []string) error {
	return fmt.Errorf("%s: %s: unknown value %q%s (have %s)", s.PlaceOf(key), key, value, plaintext.DidYouMean(value, allowed), strings.Join(allowed, ", "))
}

// PlaceOf returns the file and line of a key or the nearest key above it, or else the board's file.
func (s Spec) PlaceOf(key string) string {
	for ; key != ""; key = key[:max(strings.LastIndexByte(key, '.'), 0)] {
		if place := s.places[key]; place != "" {
			return place
		}
	}
	return s.BoardFile()
}

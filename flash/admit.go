package flash

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/images"
	"slipway/layers/plaintext"
)

// defaultLargestGiB is the size limit for a block device when board.yml sets no flash.largestGiB.
// Cards for boards are smaller, and most disks that hold somebody's data are larger.
const defaultLargestGiB = 512

// checkDevice returns an error if d must not be written, or not for this board: because of its
// kind, its use on this machine, a disk's size over the limit, or because it is an artifact's file.
func checkDevice(spec images.Spec, d device.Device) error {
	if !slices.Contains(spec.Flash.Kinds, d.Kind) {
		return fmt.Errorf("it is a device of kind %s; board.yml names for this board: %s (flash.kinds)\nnext: boards --json  # a board of your own may extend this one with flash: {kinds: [%[1]s]}", d.Kind, strings.Join(spec.Flash.Kinds, ", "))
	}
	if flashers[d.Kind] == nil {
		return fmt.Errorf("this version has no flasher for devices of kind %s (it has: %s)", d.Kind, strings.Join(slices.Sorted(maps.Keys(flashers)), ", "))
	}
	if d.Refused != "" {
		return fmt.Errorf("refused: %s", d.Refused)
	}
	largest := int64(cmp.Or(spec.Flash.LargestGiB, defaultLargestGiB))
	if d.Kind == device.Block && d.SizeBytes > largest<<30 {
		return fmt.Errorf("refused: it has %s, and nothing over %d GiB is written for board %s: that would be somebody's disk rather than a card; if it is a card, set flash.largestGiB in %s", device.ExactSize(d.SizeBytes), largest, spec.Board, spec.BoardFile())
	}
	if d.Kind == device.File && d.Exists() {
		return checkNotArtifact(spec, d.Path)
	}
	return nil
}

// checkFolder returns an error if the folder of d, a new virtual disk, does not exist: the user may
// have mistyped name. Only the board's folder machine may be missing: newDisk makes it for up.
func checkFolder(artifact images.Artifact, name string, d device.Device) error {
	dir := filepath.Dir(d.Path)
	switch info, err := os.Stat(dir); {
	case err == nil && info.IsDir():
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s is no folder that this user can use; nothing was written\nnext: ls -ld %s", filepath.Dir(name), plaintext.Quote(filepath.Dir(name)))
	}
	build, err := filepath.Abs(artifact.Dir())
	state, wrong := artifact.StateDir()
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	if filepath.Base(dir) == "machine" && slices.Contains([]string{build, state}, filepath.Dir(dir)) {
		return nil
	}
	return fmt.Errorf("there is no folder %s; nothing was written\nnext: mkdir -p %s", filepath.Dir(name), plaintext.Quote(filepath.Dir(name)))
}

// refusedSteps maps the text of a refusal to the command that resolves it. refusedStep replaces
// GIVEN by the device's name on the command line, and $1 by the first group of the pattern.
var refusedSteps = []struct{ said, step string }{
	{`name the whole disk, (\S+)$`, "repeat the line with $1 for GIVEN"},
	{`(?:over|boot area of) (\S+); name that itself`, "repeat the line with $1 for GIVEN"},
	{`shares its file with (/\S+);`, "losetup -d $1"},
	{`(?:^|in use: |p\d+: )behind (/[^\s;]+)`, "losetup -d $1"},
	{`mounted on ([^;]+) for [^;]+ \(process (\d+)\)`, "nsenter -t $2 -m umount $1"},
	{`mounted on ([^;]+)`, "umount $1"},
	{`in use: swap`, "swapoff GIVEN"},
	{`open for writing by [^;]+ \(process (\d+)\)`, "ps -fp $1"},
	{`^in use by a program`, "fuser -v GIVEN"},
	{`part of `, "lsblk GIVEN"},
}

// refusedStep returns the next command after the refusal, a text, of a device as the user typed it:
// that of the first pattern in refusedSteps that matches, with sudo if it is needed. If none
// matches, or for a disk of the running system, it returns Slipway's command devices.
func refusedStep(typed, refusal string) string {
	for _, r := range refusedSteps {
		if at := regexp.MustCompile(r.said).FindStringSubmatch(refusal); at != nil && !strings.HasPrefix(refusal, "holds the running system") {
			words := []string{"GIVEN", plaintext.Quote(typed)}
			for i, name := range at {
				words = append(words, fmt.Sprintf("$%d", i), plaintext.Quote(name))
			}
			step := strings.NewReplacer(words...).Replace(r.step) // at once: a name may contain $1
			return plaintext.Either(os.Geteuid() == 0 || strings.HasPrefix(step, "repeat"), "", "sudo ") + step
		}
	}
	return "devices"
}

// checkNotArtifact returns an error if path is a file of the artifact in its folder or the folder
// above, because the image would overwrite itself. It also refuses any path if one of these folders
// has another board's artifact, or one that cannot be read.
func checkNotArtifact(spec images.Spec, path string) error {
	dir := filepath.Dir(path)
	for _, dir := range []string{dir, filepath.Dir(dir)} {
		a, err := images.ReadArtifact(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // most folders have none
		}
		if err != nil {
			return fmt.Errorf("refused: it lies with an artifact that cannot be read: %w", err)
		}
		for _, f := range a.Files {
			if a.Path(f) == path {
				return fmt.Errorf("refused: it belongs to the artifact in %s; name a device, or a file that is to become a virtual disk\nnext: devices", a.Dir())
			}
		}
		if a.Board != spec.Board {
			return fmt.Errorf("refused: it lies with the artifact of board %s, and this one is for %s", a.Board, spec.Board)
		}
	}
	return nil
}

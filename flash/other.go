package flash

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/flash/bfb"
	"slipway/flash/fetch"
	"slipway/flash/probe"
	"slipway/images"
	"slipway/layers/localfile"
)

// This file compares the board that files are made for with the board that they are written
// to. A value that the files do not state is unknown, and allowed.

// otherBoard collects the signs that the files are made for another board.
type otherBoard struct {
	board   string
	allowed bool
	said    []string
}

// refuseOrRecord returns an error with difference, a sign of another board, unless that is "". With
// --other-board it records difference for the receipts instead.
func (o *otherBoard) refuseOrRecord(difference string) error {
	if difference == "" {
		return nil
	}
	if !o.allowed {
		return fmt.Errorf("%s; --other-board allows that; nothing was written\nnext: boards  # then name the files of board %s", difference, o.board)
	}
	o.said = append(o.said, difference)
	return nil
}

// addTo adds to each receipt the signs that --other-board allowed for all devices. It returns err.
func (o *otherBoard) addTo(receipts []Receipt, err error) ([]Receipt, error) {
	for i := range receipts {
		receipts[i].OtherBoard = slices.Concat(o.said, receipts[i].OtherBoard)
	}
	return receipts, err
}

// show prints the signs of another board that --other-board allowed.
func (o *otherBoard) show(w io.Writer) {
	for _, said := range o.said {
		fmt.Fprintf(w, "Allowed by --other-board: %s.\n", said)
	}
}

// compareBoard returns a sentence on how the artifact's board or architecture differs from spec's;
// "" if they agree or the artifact has none. from is the path or URL of its artifact.json.
func compareBoard(spec images.Spec, a images.Artifact, from string) string {
	switch {
	case a.Board != "" && a.Board != spec.Board:
		return fmt.Sprintf("%s says that the files are for board %q, and not for %s", from, a.Board, spec.Board)
	case a.Arch != "" && spec.Arch != "" && a.Arch != spec.Arch:
		return fmt.Sprintf("%s says that the files are for %q, and board %s is %s", from, a.Arch, spec.Board, spec.Arch)
	}
	return ""
}

// RefuseOther returns an error if the artifact.json beside file is of another board or
// architecture. If allowed is true, it returns that in said instead. It accepts a missing or
// unreadable artifact.json.
func RefuseOther(spec images.Spec, file string, allowed bool) (said []string, err error) {
	o := otherBoard{board: spec.Board, allowed: allowed}
	path := images.ArtifactPath(filepath.Dir(file))
	data, _ := localfile.Read(path, mapLimit) // nil says nothing
	err = o.checkDescription(spec, data, path)
	return o.said, err
}

// checkDescription compares data, an artifact.json, with spec's board, and refuses or records a
// difference. from is its name in messages. It accepts data that are none, or nil.
func (o *otherBoard) checkDescription(spec images.Spec, data []byte, from string) error {
	var a images.Artifact
	if json.Unmarshal(data, &a) != nil {
		return nil // it says nothing
	}
	return o.refuseOrRecord(compareBoard(spec, a, from))
}

// checkBeside compares the board of the artifact.json beside the image with the board to flash. It
// accepts an image without one, or with one that cannot be fetched. It fails if the server of an
// image without a digest is unreachable: then the image cannot come from the cache either.
func (p *imageResolver) checkBeside(ctx context.Context, o *fetch.Origin) error {
	file, err := o.Beside(ctx, images.ArtifactName)
	if err != nil && p.options.Digest == "" && fetch.Unreachable(err) {
		return err
	}
	if err != nil {
		return context.Cause(ctx)
	}
	data, _ := file.ReadAll(ctx, mapLimit) // nil says nothing
	return p.other.checkDescription(p.spec, data, file.Reference)
}

// checkMachine finds the architectures of the programs and boot files in the image, and sets
// j.machine to their names, or to text that says none. If it finds any, but not the board's, it
// refuses the image, unless --other-board is given. It searches only the first searchedHead bytes
// of a packed image, and nothing for a board without arch.
func (j *imageJob) checkMachine(ctx context.Context) error {
	if j.spec.Arch == "" {
		return nil
	}
	var found []string
	if j.source.Form() == "raw" {
		found = probe.FindMachines(j.file, j.size, j.spec.Arch)
	} else {
		head := j.openHead(ctx)
		found = probe.FindMachines(head, searchedHead, j.spec.Arch)
		if err := head.Err(); err != nil {
			return err
		}
	}
	j.machine = cmp.Or(strings.Join(found, " and "), "an architecture that is not known")
	if len(found) == 0 || slices.Contains(found, j.spec.Arch) {
		return nil
	}
	return j.other.refuseOrRecord(fmt.Sprintf("%s holds boot files or programs for %s, and board %s is %s", j.file.Name(), j.machine, j.spec.Board, j.spec.Arch))
}

// searchedHead is how much of a packed image is unpacked to find its architecture.
const searchedHead = 64 << 20

// compareCard returns a sentence if the stream's boot loader (bl2) is not for the card in info: a
// BlueField-3 takes bl2 of version 2. It returns "" if it is, or if either is unknown.
func compareCard(s bfb.Stream, info string) string {
	name, _, _ := strings.Cut(info, "(")
	card, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(name, "BlueField-")))
	var versions []int
	for _, i := range s.Images {
		if i.ID == bfb.BootLoader {
			versions = append(versions, i.Version)
		}
	}
	if err != nil || len(versions) == 0 || slices.Max(versions) == 0 || slices.Min(versions) <= card-1 && card-1 <= slices.Max(versions) {
		return ""
	}
	return fmt.Sprintf("its boot loader (bl2) is of version %d, and a BlueField-%d takes version %d", slices.Max(versions), card, card-1)
}

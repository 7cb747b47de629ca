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

// otherBoard keeps what says that the files are another board's.
type otherBoard struct {
	board   string
	allowed bool
	said    []string
}

// check refuses what is said of another board, if --other-board does not allow it.
func (o *otherBoard) check(said string) error {
	if said == "" {
		return nil
	}
	if !o.allowed {
		return fmt.Errorf("%s; --other-board allows that; nothing was written\nnext: boards  # then name the files of board %s", said, o.board)
	}
	o.said = append(o.said, said)
	return nil
}

// addTo adds to receipts what --other-board allowed.
func (o *otherBoard) addTo(receipts []Receipt, err error) ([]Receipt, error) {
	for i := range receipts {
		receipts[i].OtherBoard = o.said
	}
	return receipts, err
}

func (o *otherBoard) show(w io.Writer) {
	for _, said := range o.said {
		fmt.Fprintf(w, "Allowed by --other-board: %s.\n", said)
	}
}

// compareBoard says how the board of an artifact differs from spec's; "" if it does not.
func compareBoard(spec images.Spec, a images.Artifact, from string) string {
	switch {
	case a.Board != "" && a.Board != spec.Board:
		return fmt.Sprintf("%s says that the files are for board %q, and not for %s", from, a.Board, spec.Board)
	case a.Arch != "" && spec.Arch != "" && a.Arch != spec.Arch:
		return fmt.Sprintf("%s says that the files are for %q, and board %s is %s", from, a.Arch, spec.Board, spec.Arch)
	}
	return ""
}

// RefuseOther refuses a file beside another board's artifact.json, if that is not allowed.
// said is what was allowed.
func RefuseOther(spec images.Spec, file string, allowed bool) (said []string, err error) {
	o := otherBoard{board: spec.Board, allowed: allowed}
	path := images.ArtifactPath(filepath.Dir(file))
	err = o.checkDescription(spec, path, path)
	return o.said, err
}

func (o *otherBoard) checkDescription(spec images.Spec, path, from string) error {
	var a images.Artifact
	data, err := localfile.Read(path, mapLimit)
	if err != nil || json.Unmarshal(data, &a) != nil {
		return nil // it says nothing
	}
	return o.check(compareBoard(spec, a, from))
}

// checkBeside looks for an artifact.json beside the image.
func (p *imageResolver) checkBeside(ctx context.Context, o *fetch.Origin) error {
	file, err := o.Beside(ctx, images.ArtifactName)
	if err != nil {
		return context.Cause(ctx)
	}
	return p.other.checkDescription(p.spec, file.Path, file.Reference)
}

// checkMachine compares the content of the image with the board's architecture.
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
	return j.other.check(fmt.Sprintf("%s holds boot files or programs for %s, and board %s is %s", j.file.Name(), j.machine, j.spec.Board, j.spec.Arch))
}

// searchedHead is how much of a packed image is unpacked to find its architecture.
const searchedHead = 64 << 20

// compareCard says that a boot stream has no boot loader for a card; "" if it has one or
// nothing is known. bl2 is of version 1 for BlueField-2, of 2 for BlueField-3.
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

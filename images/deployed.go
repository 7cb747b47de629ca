package images

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"slipway/layers/run"
)

// This file finds what bitbake deployed, by what bitbake says of each target.

// deployedVariables say where a target's images are, how their names begin (Isar's names begin
// with IMAGE_FULLNAME, OpenEmbedded's with IMAGE_LINK_NAME), and where the files of the image are.
var deployedVariables = []string{"DEPLOY_DIR_IMAGE", "IMAGE_FULLNAME", "IMAGE_LINK_NAME", "IMAGE_ROOTFS"}

// image is a file that bitbake deployed. root is the folder with the files of the image.
type image struct{ kind, name, root string }

// imageName is how the paths of a target's files begin.
type imageName struct{ Path, Root string }

// findImages finds one file of each kind among those of the targets.
func (b *projectBuild) findImages(ctx context.Context) (found []image, err error) {
	named, err := b.imageNames(ctx)
	have := map[string]bool{}
	for _, name := range named {
		for _, e := range slices.Concat(endings, billEndings) {
			if file := deployedName(name.Path, e.ending); file != "" && !have[e.kind] {
				have[e.kind] = true
				found = append(found, image{e.kind, file, name.Root})
			}
		}
	}
	return found, err
}

// imageNames returns how the paths of the targets' images begin.
func (b *projectBuild) imageNames(ctx context.Context) (names []imageName, err error) {
	for _, target := range b.project.Targets {
		vars, err := b.tree.Variables(ctx, target, deployedVariables...)
		if err != nil {
			return nil, fmt.Errorf("ask bitbake where the images of %s are: %w", target, err)
		}
		if name := cmp.Or(vars["IMAGE_FULLNAME"], vars["IMAGE_LINK_NAME"]); name != "" {
			names = append(names, imageName{filepath.Join(vars["DEPLOY_DIR_IMAGE"], name), vars["IMAGE_ROOTFS"]})
		}
	}
	return names, nil
}

// readPartitions returns where the partitions of board.yml lie in a disk image that bitbake
// made. They have the same names.
func readPartitions(ctx context.Context, spec Spec, disk string) ([]Partition, error) {
	if spec.Disk == nil {
		return nil, nil
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"sfdisk", "--json", disk}})
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", disk, err)
	}
	var table struct {
		PartitionTable struct {
			SectorSize int64 `json:"sectorsize"`
			Partitions []struct {
				Start, Size int64
				Name        string
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal(out, &table); err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", disk, err)
	}
	sector := cmp.Or(table.PartitionTable.SectorSize, sectorBytes)
	at := map[string]Partition{}
	for _, p := range table.PartitionTable.Partitions {
		at[p.Name] = Partition{Name: p.Name, OffsetBytes: p.Start * sector, SizeBytes: p.Size * sector}
	}
	var all []Partition
	for _, want := range spec.Disk.Partitions {
		p, ok := at[want.Name]
		if !ok {
			return nil, fmt.Errorf("%s: disk.partitions: %s has no partition %q\nnext: /sbin/sfdisk --json %[2]s", spec.PlaceOf("disk.partitions."+want.Name), disk, want.Name)
		}
		p.Use = want.Use
		all = append(all, p)
	}
	return all, nil
}

package images

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"slipway/layers"
	"slipway/layers/localfile"
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

// findImages finds one file of each kind among those of the targets. bitbake needs seconds
// to say where they are, so its answer is kept for as long as nothing can change it.
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
	kept := keptNames{Path: filepath.Join(b.dir, deployedFile)}
	if kept.Key, err = b.artifactKey(b.commits()); err != nil {
		return nil, err
	}
	kept.Targets = b.project.Targets
	if !slices.ContainsFunc(b.states, mayChange) && kept.read() {
		return kept.Names, nil
	}
	for _, target := range b.project.Targets {
		vars, err := b.tree.Variables(ctx, target, deployedVariables...)
		if err != nil {
			return nil, fmt.Errorf("ask bitbake where the images of %s are: %w", target, err)
		}
		if name := cmp.Or(vars["IMAGE_FULLNAME"], vars["IMAGE_LINK_NAME"]); name != "" {
			kept.Names = append(kept.Names, imageName{filepath.Join(vars["DEPLOY_DIR_IMAGE"], name), vars["IMAGE_ROOTFS"]})
		}
	}
	return kept.Names, kept.write()
}

// mayChange reports whether the files of a repository can change while its commit stays.
func mayChange(s layers.State) bool { return s.Edited || s.Head == "" || s.Repo.Local }

// deployedFile keeps what bitbake said, in a board's folder.
const deployedFile = "deployed.json"

// keptNames is what bitbake said of the images for one configuration of one set of commits.
type keptNames struct {
	Path    string      `json:"-"`
	Key     string      `json:"key"`
	Targets []string    `json:"targets"`
	Names   []imageName `json:"names"`
}

// read reports whether the file has the names for the key and the targets.
func (k *keptNames) read() bool {
	data, err := localfile.Read(k.Path, maxDescriptionBytes)
	if err != nil {
		return false
	}
	var kept keptNames
	if json.Unmarshal(data, &kept) != nil || kept.Key != k.Key || !slices.Equal(kept.Targets, k.Targets) {
		return false
	}
	k.Names = kept.Names
	return true
}

func (k *keptNames) write() error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return renameio.WriteFile(k.Path, append(data, '\n'), 0o644)
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

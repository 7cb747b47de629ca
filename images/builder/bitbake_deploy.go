package builder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/images"
	"slipway/images/bitbake"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// collectArtifact links or copies the images that bitbake deployed into the board's folder and
// writes artifact.json. If the files are those of the earlier artifact, that one stays, with its
// signature. If nothing was deployed, and others is true (the targets are not the project's) or no
// target is an image, it changes nothing and returns an empty artifact. If no image can be flashed,
// it removes artifact.json and returns an error.
func (b *projectBuild) collectArtifact(ctx context.Context, spec images.Spec, others bool) (images.Artifact, error) {
	found, hasImage, err := b.findImages(ctx)
	if err != nil || len(found) == 0 && (others || !hasImage) {
		return images.Artifact{}, err
	}
	if err := b.checkFlashable(found); err != nil {
		return images.Artifact{}, errors.Join(err, localfile.Remove(images.ArtifactPath(b.dir)))
	}
	a := images.NewArtifact(spec, b.dir)
	a.Layers, a.Cost = b.commits(), costOf(b.record)
	if a.Key, err = b.artifactKey(a.Layers); err != nil {
		return images.Artifact{}, err
	}
	var earlier images.Artifact
	err = progress.Run(ctx, "collect", func(*progress.Step) (string, error) {
		known := b.unchangedFiles()
		if old, none := images.OpenArtifact(b.dir); none == nil {
			earlier = old
		}
		if err := localfile.Remove(images.ArtifactPath(b.dir)); err != nil {
			return "", err
		}
		if a.Files, err = b.collectFiles(ctx, found, known); err != nil {
			return "", err
		}
		if disk, none := a.File(images.DiskImage); none == nil && strings.HasSuffix(disk.Name, ".wic") {
			a.Partitions, err = readPartitions(ctx, spec, a.Path(disk))
		}
		return fmt.Sprintf("%d files", len(a.Files)), err
	})
	if err != nil {
		return images.Artifact{}, err
	}
	if _, none := earlier.File(images.Provenance); none == nil && earlier.Key == a.Key && slices.Equal(builtFiles(earlier), a.Files) {
		return earlier, earlier.Save(b.dir) // nothing was built anew, and its signature still holds
	}
	return a, a.Publish(ctx, spec, toolVersions(ctx, HostPackages(spec, b.project.BuildSystem)))
}

// builtFiles returns the artifact's files except the provenance, which describes the others.
func builtFiles(a images.Artifact) []images.File {
	return slices.DeleteFunc(slices.Clone(a.Files), func(f images.File) bool { return f.Kind == images.Provenance })
}

// costOf returns how long a run took and its use of shared state, nil for one without an end.
func costOf(r bitbake.Record) *images.Cost {
	if r.Ended.IsZero() {
		return nil
	}
	return &images.Cost{BuildMS: r.Ended.Sub(r.Started).Milliseconds(), CacheHits: r.Setscene.Hits, CacheMisses: r.Setscene.Misses}
}

// artifactKey returns a hash of the layers' commits and of bitbake's configuration files.
func (b *projectBuild) artifactKey(commits []bitbake.Commit) (string, error) {
	conf := map[string][]byte{}
	var err error
	for _, name := range []string{"local.conf", "bblayers.conf"} {
		if conf[name], err = os.ReadFile(filepath.Join(b.build, "conf", name)); err != nil {
			return "", err
		}
	}
	if fragments, err := os.ReadFile(filepath.Join(b.build, "conf/toolcfg.conf")); err == nil { // only some projects have any
		conf["toolcfg.conf"] = fragments
	}
	return hashOf(commits, conf)
}

// unchangedFiles returns those files of the earlier artifact, by name, that did not change since
// its artifact.json was written. To hash them again may take longer than the build.
func (b *projectBuild) unchangedFiles() map[string]images.File {
	a, err := images.OpenArtifact(b.dir)
	if err != nil {
		return nil
	}
	var described, file unix.Stat_t
	if unix.Stat(images.ArtifactPath(b.dir), &described) != nil {
		return nil
	}
	same := map[string]images.File{}
	for _, f := range a.Files {
		if unix.Stat(a.Path(f), &file) == nil && file.Ctim.Nano() < described.Mtim.Nano() {
			same[f.Name] = f
		}
	}
	return same
}

// collectFiles puts the found images into the board's folder, except unchanged ones (known) already
// in it, and returns the entries of all.
func (b *projectBuild) collectFiles(ctx context.Context, found []image, known map[string]images.File) ([]images.File, error) {
	var files []images.File
	for _, i := range found {
		name := filepath.Base(i.name)
		if f := known[name]; f.Kind == i.kind && localfile.Same(i.name, filepath.Join(b.dir, name)) {
			files = append(files, f)
			continue
		}
		f, err := b.collectFile(ctx, i)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// checkFlashable returns an error if no deployed image can be flashed.
func (b *projectBuild) checkFlashable(found []image) error {
	if slices.ContainsFunc(found, func(i image) bool { return slices.Contains(flashed, i.kind) }) {
		return nil
	}
	return fmt.Errorf(`bitbake left no image of %s that can be flashed; set IMAGE_FSTYPES (wic wic.bmap, or tegraflash, and TEGRAFLASH_PACKAGE_FORMAT = "tar" if that is zip)`,
		strings.Join(b.project.Targets, ", "))
}

// flashed are the kinds of files that are written to a board.
var flashed = []string{images.DiskImage, images.Tegraflash, images.BFB}

// deployedName returns IMAGE.rootfs.ENDING or else IMAGE.ENDING, or "" if neither file exists.
func deployedName(image, ending string) string {
	for _, name := range []string{image + ".rootfs." + ending, image + "." + ending} {
		if localfile.Exists(name) {
			return name
		}
	}
	return ""
}

// collectFile puts a deployed file into the board's folder: as a hard link, because images are
// large, or as a copy if linking fails. To Isar's list of packages it adds their licences.
func (b *projectBuild) collectFile(ctx context.Context, i image) (images.File, error) {
	from, err := filepath.EvalSymlinks(i.name)
	if err != nil {
		return images.File{}, err
	}
	name := filepath.Base(i.name)
	partial := filepath.Join(b.dir, "."+name+".partial")
	if err := localfile.Remove(partial); err != nil {
		return images.File{}, err
	}
	switch {
	case strings.HasSuffix(name, ".dpkg_status") && i.root != "" && sameContent(from, filepath.Join(i.root, dpkgStatus)):
		err = writePackages(i.root, partial)
	case os.Link(from, partial) != nil:
		err = run.Run(ctx, run.Command{Argv: []string{"cp", "--no-preserve=mode", "--sparse=auto", "--reflink=auto", "--", from, partial}})
	}
	if err != nil {
		return images.File{}, err
	}
	if err := os.Rename(partial, filepath.Join(b.dir, name)); err != nil {
		return images.File{}, err
	}
	return images.DescribeFile(ctx, b.dir, i.kind, name)
}

// sameContent reports whether both files can be read and have the same content.
func sameContent(a, b string) bool {
	one, err := os.ReadFile(a)
	other, missing := os.ReadFile(b)
	return err == nil && missing == nil && bytes.Equal(one, other)
}

// This file finds what bitbake deployed, by what bitbake says of each target.

// deployedVariables name the folder of a target's images, the beginning of their names (Isar's
// IMAGE_FULLNAME, OpenEmbedded's IMAGE_LINK_NAME), and the folder of the root file system. Only
// recipes of images have IMAGE_FULLNAME in Isar and IMAGE_TYPES in OpenEmbedded.
var deployedVariables = []string{"DEPLOY_DIR_IMAGE", "IMAGE_FULLNAME", "IMAGE_LINK_NAME", "IMAGE_ROOTFS", "IMAGE_TYPES"}

// image is a file that bitbake deployed. root is the folder of the root file system in the image.
type image struct{ kind, name, root string }

// imageName is the common beginning of the paths of a target's files, its root file system, and
// whether the target is an image.
type imageName struct {
	Path, Root string
	IsImage    bool
}

// billEndings are how the files end that say what an image is made of, the most wanted first.
var billEndings = []images.Ending{
	{Kind: images.SBOM, Ending: "spdx.tar.zst"},
	{Kind: images.SBOM, Ending: "spdx.json"},
	{Kind: images.SBOM, Ending: "cdx.json"},
	{Kind: images.SBOM, Ending: "dpkg_status"}, // Isar's
	{Kind: images.CVEs, Ending: "sbom-cve-check.yocto.json"},
	{Kind: images.CVEs, Ending: "json"},
}

// findImages returns the first deployed file of each kind among the files of all targets, and
// whether one of the targets is an image.
func (b *projectBuild) findImages(ctx context.Context) (found []image, hasImage bool, err error) {
	named, err := b.imageNames(ctx)
	have := map[string]bool{}
	for _, name := range named {
		hasImage = hasImage || name.IsImage
		for _, e := range slices.Concat(images.Endings, billEndings) {
			if file := deployedName(name.Path, e.Ending); file != "" && !have[e.Kind] {
				have[e.Kind] = true
				found = append(found, image{e.Kind, file, name.Root})
			}
		}
	}
	return found, hasImage, err
}

// imageNames runs bitbake for each target, and returns how the paths of its images begin.
func (b *projectBuild) imageNames(ctx context.Context) (names []imageName, err error) {
	for _, target := range b.project.Targets {
		vars, err := b.tree.Variables(ctx, target, deployedVariables...)
		if err != nil {
			return nil, fmt.Errorf("ask bitbake for the folder of the images of %s: %w", target, err)
		}
		if name := cmp.Or(vars["IMAGE_FULLNAME"], vars["IMAGE_LINK_NAME"]); name != "" {
			names = append(names, imageName{filepath.Join(vars["DEPLOY_DIR_IMAGE"], name), vars["IMAGE_ROOTFS"], vars["IMAGE_FULLNAME"]+vars["IMAGE_TYPES"] != ""})
		}
	}
	return names, nil
}

// readPartitions runs sfdisk on a disk image and returns the offsets and sizes of board.yml's
// partitions, if it has any. It finds each by its name. A missing one is an error.
func readPartitions(ctx context.Context, spec images.Spec, disk string) ([]images.Partition, error) {
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
	at := map[string]images.Partition{}
	for _, p := range table.PartitionTable.Partitions {
		at[p.Name] = images.Partition{Name: p.Name, OffsetBytes: p.Start * sector, SizeBytes: p.Size * sector}
	}
	var all []images.Partition
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

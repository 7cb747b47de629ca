package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/images/bitbake"
	"slipway/layers/progress"
)

// The kinds of files that only boards built by bitbake have.
const (
	Tegraflash = "tegraflash" // NVIDIA's flashing tools with the image
	BFB        = "bfb"        // a boot stream for a BlueField
)

// endings are how the files of each kind end, the most wanted first.
var endings = []struct{ kind, ending string }{
	{DiskImage, "wic"},
	{DiskImage, "wic.zst"},
	{DiskImage, "wic.gz"},
	{DiskImage, "wic.xz"},
	{DiskImage, "wic.bz2"},
	{BlockMap, "wic.bmap"},
	{Tegraflash, "tegraflash-tar.zst"}, // wrynose and later
	{Tegraflash, "tegraflash.tar.zst"},
	{Tegraflash, "tegraflash.tar.gz"},
	{Tegraflash, "tegraflash.zip"},
	{BFB, "bfb"},
}

// collectArtifact makes an artifact of what bitbake deployed. Where other targets were
// requested, there may be no image among them: then the earlier artifact stays.
func (b *projectBuild) collectArtifact(ctx context.Context, spec Spec, record bitbake.Record, others bool) (Artifact, error) {
	deploy, err := b.deployFolder(ctx, record)
	if err != nil {
		return Artifact{}, err
	}
	images := b.findImages(deploy)
	if len(images) == 0 && others {
		return Artifact{}, nil
	}
	a := Artifact{Board: spec.Board, Project: spec.project, Arch: spec.Arch, Built: time.Now().UTC(), Slipway: ThisProgram(), dir: b.dir}
	for _, s := range b.states {
		a.Layers = append(a.Layers, commitOf(s))
	}
	if a.Key, err = b.artifactKey(a.Layers); err != nil {
		return Artifact{}, err
	}
	err = progress.Run(ctx, "collect", func(*progress.Step) (string, error) {
		known := b.unchangedFiles()
		if err := removeDescription(b.dir); err != nil {
			return "", err
		}
		a.Files, err = b.collectFiles(ctx, deploy, images, known)
		return fmt.Sprintf("%d files", len(a.Files)), err
	})
	if err != nil {
		return Artifact{}, err
	}
	return a, a.Save(b.dir)
}

// deployFolder is where bitbake puts images. The event log has it. To ask
// bitbake takes seconds.
func (b *projectBuild) deployFolder(ctx context.Context, record bitbake.Record) (string, error) {
	if dir := record.Variables["DEPLOY_DIR_IMAGE"]; dir != "" {
		return dir, nil
	}
	tree, err := bitbake.Find(ctx, b.project, b.workspace, b.dir, b.build)
	if err != nil {
		return "", err
	}
	return tree.Variable(ctx, "DEPLOY_DIR_IMAGE")
}

// artifactKey hashes the commits and the configuration that bitbake was given.
func (b *projectBuild) artifactKey(made []bitbake.Commit) (string, error) {
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
	return hashOf(made, conf)
}

// image is a file that bitbake deployed.
type image struct{ kind, name string }

// findImages finds one file of each kind in the deploy folder, by the names that Yocto
// links to the newest build of an image. Images of other configurations (mc:...) are
// elsewhere and stay there.
func (b *projectBuild) findImages(deploy string) []image {
	var found []image
	have := map[string]bool{}
	for _, target := range b.project.Targets {
		for _, e := range endings {
			name := deployedName(deploy, target+"-"+b.project.Machine, e.ending)
			if name != "" && !have[e.kind] {
				have[e.kind] = true
				found = append(found, image{e.kind, name})
			}
		}
	}
	return found
}

// unchangedFiles returns the files of the earlier artifact that did not change since it
// was described. To hash gigabytes again takes longer than a build that finds all done.
func (b *projectBuild) unchangedFiles() map[string]File {
	a, err := OpenArtifact(b.dir)
	if err != nil {
		return nil
	}
	var described, file unix.Stat_t
	if unix.Stat(ArtifactPath(b.dir), &described) != nil {
		return nil
	}
	same := map[string]File{}
	for _, f := range a.Files {
		if unix.Stat(a.Path(f), &file) == nil && file.Ctim.Nano() < described.Mtim.Nano() {
			same[f.Name] = f
		}
	}
	return same
}

// collectFiles puts the images of the deploy folder into the board's folder.
func (b *projectBuild) collectFiles(ctx context.Context, deploy string, images []image, known map[string]File) ([]File, error) {
	if len(images) == 0 {
		return nil, fmt.Errorf(`%s: bitbake left no image of %s here that can be flashed; set IMAGE_FSTYPES (wic wic.bmap, or tegraflash)`,
			deploy, strings.Join(b.project.Targets, ", "))
	}
	var files []File
	for _, i := range images {
		if f := known[i.name]; f.Kind == i.kind && sameFile(filepath.Join(deploy, i.name), filepath.Join(b.dir, i.name)) {
			files = append(files, f)
			continue
		}
		f, err := b.collectFile(ctx, filepath.Join(deploy, i.name), i.kind)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// deployedName returns the name of an image's file; "" where there is none. Newer releases
// put .rootfs before the ending.
func deployedName(dir, image, ending string) string {
	for _, name := range []string{image + ".rootfs." + ending, image + "." + ending} {
		if onDisk(filepath.Join(dir, name)) {
			return name
		}
	}
	return ""
}

// collectFile puts a file into the board's folder under its own name: as a link where
// the disk is the same, because images are large.
func (b *projectBuild) collectFile(ctx context.Context, path, kind string) (File, error) {
	from, err := filepath.EvalSymlinks(path)
	if err != nil {
		return File{}, err
	}
	name := filepath.Base(path)
	partial := filepath.Join(b.dir, "."+name+".partial")
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return File{}, err
	}
	if err := os.Link(from, partial); err != nil {
		if err := copyFile(ctx, from, partial); err != nil {
			return File{}, err
		}
	}
	if err := os.Rename(partial, filepath.Join(b.dir, name)); err != nil {
		return File{}, err
	}
	return describeFile(ctx, b.dir, kind, name)
}

// sameFile says whether two names lead to one file.
func sameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

func copyFile(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, endable{ctx, in})
	return errors.Join(err, out.Close())
}

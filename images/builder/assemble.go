package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"slipway/images"
	"slipway/images/bmap"
	"slipway/images/sbom"
	"slipway/layers/localfile"
	"slipway/layers/progress"
	"slipway/layers/run"

	"slipway/layers/plaintext"
)

const (
	sectorBytes = 512
	mib         = 1 << 20
	inodes      = "20000" // of a root slot; each costs 256 bytes of image
)

// assembleImage builds the disk image of a Debian board in a work folder: it makes the userland,
// unpacks it with Slipway's own files, makes the file systems and the boot loader. Then it moves
// the finished files into the board's folder and writes artifact.json.
func assembleImage(ctx context.Context, step *progress.Step, spec images.Spec, opt images.Options, o ownFiles, key string) (images.Artifact, error) {
	if err := checkUserNamespace(ctx); err != nil {
		return images.Artifact{}, err
	}
	began := time.Now()
	discardWork(ctx, opt.BoardDir(spec))
	userlandTar, err := makeUserland(ctx, step, spec, opt)
	if err != nil {
		return images.Artifact{}, err
	}
	work, err := os.MkdirTemp(opt.BoardDir(spec), workPrefix)
	if err != nil {
		return images.Artifact{}, err
	}
	defer removeTree(ctx, work)
	d := disk{spec: spec, dir: work, root: filepath.Join(work, "root"), log: images.LogPath(opt.BoardDir(spec), "image"), began: began}
	step.Detail("unpacking the userland")
	added := filepath.Join(work, "additions.tar")
	if err := writeFile(added, func(f *os.File) error { return writeAdditions(f, spec, o, key) }); err != nil {
		return images.Artifact{}, err
	}
	if err := unpackUserland(ctx, spec, userlandTar, added, d.root, d.log); err != nil {
		return images.Artifact{}, err
	}
	if err := checkUnits(d.root, spec); err != nil {
		return images.Artifact{}, err
	}
	step.Detail("making file systems and the boot loader")
	if err := d.makeParts(ctx); err != nil {
		return images.Artifact{}, err
	}
	step.Detail("mapping blocks, hashing")
	return publishDisk(ctx, d, opt, key)
}

const workPrefix = "work-"

// discardWork removes the work folders of killed builds. The caller has the board folder's lock.
func discardWork(ctx context.Context, dir string) {
	old, _ := fs.Glob(os.DirFS(dir), workPrefix+"*") // the pattern is well-formed
	for _, work := range old {
		removeTree(ctx, filepath.Join(dir, work))
	}
}

// writeFile creates the file name, and calls write to fill it.
func writeFile(name string, write func(*os.File) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return f.Close()
}

// syncFile flushes a file to the disk: a power cut must not empty a file of artifact.json.
func syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// dpkgStatus is the file of a root file system that lists its packages.
const dpkgStatus = "var/lib/dpkg/status"

// The names of an artifact's files.
const (
	diskName     = "disk.img"
	bmapName     = "disk.img.bmap"
	packagesName = "packages.dpkg_status"
	probeName    = "probe.tar"
)

// writePackages copies dpkg's status file from the root file system to the file to, and adds to
// each package the licences that its copyright file names.
func writePackages(root, to string) error {
	dir, err := os.OpenRoot(root) // a link of the image cannot lead out of it
	if err != nil {
		return err
	}
	defer dir.Close()
	status, err := dir.ReadFile(dpkgStatus)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for line := range bytes.Lines(status) {
		b.Write(line)
		name, ok := bytes.CutPrefix(line, []byte("Package: "))
		file := path.Join("usr/share/doc", path.Base(string(bytes.TrimSpace(name))), "copyright")
		if info, err := dir.Stat(file); !ok || err != nil || !info.Mode().IsRegular() {
			continue
		}
		f, err := dir.Open(file)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(io.LimitReader(f, sbom.MaxCopyright))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if licence := sbom.LicenceOf(string(text)); licence != "" {
			fmt.Fprintf(&b, "%s: %s\n", sbom.LicenceField, licence)
		}
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// publishDisk maps the blocks of the disk image, writes its list of packages and its probe
// container, moves all files into the board's folder and writes artifact.json. It removes the old
// artifact.json first, so that this never describes new files.
func publishDisk(ctx context.Context, d disk, opt images.Options, key string) (images.Artifact, error) {
	a := images.NewArtifact(d.spec, opt.BoardDir(d.spec))
	a.Key, a.Partitions = key, d.layOutPartitions()
	if err := mapBlocks(ctx, d.path(diskName), d.path(bmapName)); err != nil {
		return images.Artifact{}, err
	}
	names := map[string]string{images.DiskImage: diskName, images.BlockMap: bmapName, images.SBOM: packagesName}
	if err := writePackages(d.root, d.path(packagesName)); err != nil {
		return images.Artifact{}, err
	}
	if len(d.spec.Debian.Probe) > 0 {
		names[images.Container] = probeName
		if err := writeFile(d.path(probeName), d.writeProbe); err != nil {
			return images.Artifact{}, err
		}
	}
	if err := localfile.Remove(images.ArtifactPath(a.Dir())); err != nil {
		return images.Artifact{}, err
	}
	a.Cost = &images.Cost{BuildMS: time.Since(d.began).Milliseconds()}
	for _, kind := range []string{images.DiskImage, images.BlockMap, images.Container, images.SBOM} {
		name, ok := names[kind]
		if !ok {
			continue
		}
		f, err := images.DescribeFile(ctx, d.dir, kind, name)
		if err != nil {
			return images.Artifact{}, err
		}
		if err := syncFile(d.path(name)); err != nil {
			return images.Artifact{}, err
		}
		a.Files = append(a.Files, f)
		if err := os.Rename(d.path(name), filepath.Join(a.Dir(), name)); err != nil {
			return images.Artifact{}, err
		}
	}
	return a, a.Publish(ctx, d.spec, toolVersions(ctx, HostPackages(d.spec, "")))
}

// mapBlocks writes the block map (bmap) of an image file to the file name.
func mapBlocks(ctx context.Context, image, name string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := bmap.Create(ctx, f)
	if err != nil {
		return fmt.Errorf("map the blocks of %s: %w", image, err)
	}
	return writeFile(name, func(f *os.File) error {
		_, err := m.WriteTo(f)
		return err
	})
}

// disk is a whole-disk image in the making. All tools write into one file, without loops or mounts.
type disk struct {
	spec images.Spec
	dir  string // the folder in which it is made
	root string // the unpacked root file system
	log  string

	began time.Time
}

func (d disk) path(name string) string { return filepath.Join(d.dir, name) }

func (d disk) runProgram(ctx context.Context, argv ...string) error {
	return run.Run(ctx, run.Command{Argv: argv, Log: d.log, Keep: true})
}

// makeParts makes the partition table, the root and boot file systems and the boot loader.
func (d disk) makeParts(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.makeTable, d.makeRootFS, d.makeBootFS, d.installLoader} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// layOutPartitions returns the board's partitions one after another, the first at 1 MiB.
func (d disk) layOutPartitions() []images.Partition {
	var all []images.Partition
	offset := int64(mib)
	for _, p := range d.spec.Disk.Partitions {
		all = append(all, images.Partition{Name: p.Name, Use: p.Use, OffsetBytes: offset, SizeBytes: p.SizeMiB * mib})
		offset += p.SizeMiB * mib
	}
	return all
}

// partitionFor returns the first partition with a use and its number from 1, or 0 for none.
func (d disk) partitionFor(use string) (p images.Partition, number int) {
	for i, p := range d.layOutPartitions() {
		if p.Use == use {
			return p, i + 1
		}
	}
	return images.Partition{}, 0
}

var partitionTypes = map[string]string{
	"bios":  "21686148-6449-6E6F-744E-656564454649",
	"uefi":  "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
	"linux": "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
}

// makeTable creates the empty disk image as a sparse file, and writes its GPT with sfdisk.
func (d disk) makeTable(ctx context.Context) error {
	all := d.layOutPartitions()
	end := all[len(all)-1].OffsetBytes + all[len(all)-1].SizeBytes
	if err := writeFile(d.path(diskName), func(f *os.File) error { return f.Truncate(end + mib) }); err != nil {
		return err
	}
	var script strings.Builder
	script.WriteString("label: gpt\n")
	for _, p := range all {
		kind := plaintext.Either(p.Use == images.UseLoader, d.spec.Disk.Firmware, "linux")
		fmt.Fprintf(&script, "start=%d, size=%d, type=%s, name=%s\n",
			p.OffsetBytes/sectorBytes, p.SizeBytes/sectorBytes, partitionTypes[kind], p.Name)
	}
	return run.Run(ctx, run.Command{
		Argv: []string{"sfdisk", "--quiet", d.path(diskName)}, Stdin: strings.NewReader(script.String()), Log: d.log, Keep: true,
	})
}

func (d disk) makeRootFS(ctx context.Context) error {
	p, _ := d.partitionFor(images.UseRoot)
	return d.makeExt4(ctx, p, d.root, "-N", inodes)
}

// The fixed IDs of all file systems. Boards find theirs by the partition.
const (
	fileSystemID   = "5c1f7c5e-51b0-4a7e-9d0e-0a5a11b0a4d5"
	fileSystemTime = "1767225600" // the beginning of 2026
)

// makeExt4 makes an ext4 file system with the content of a folder in a partition of the image.
func (d disk) makeExt4(ctx context.Context, p images.Partition, content string, options ...string) error {
	argv := []string{
		"mke2fs", "-q", "-F", "-t", "ext4", "-d", content,
		// Its checksums begin with the UUID: by another one each build would differ from the
		// last in every folder and inode, and a streamed update would fetch them all.
		"-U", fileSystemID, "-E", "hash_seed=" + fileSystemID + ",lazy_itable_init=0,lazy_journal_init=0,nodiscard,offset=" + strconv.FormatInt(p.OffsetBytes, 10),
	}
	argv = append(argv, options...)
	argv = append(argv, d.path(diskName), strconv.FormatInt(p.SizeBytes/1024, 10)+"k")
	c := run.Command{Argv: rootCommand(argv...), Env: []string{"E2FSPROGS_FAKE_TIME=" + fileSystemTime}, Log: d.log, Keep: true}
	if err := run.Run(ctx, c); err != nil {
		return fmt.Errorf("make the %s partition (%d MiB; enlarge it in %s if it is full): %w",
			p.Name, p.SizeBytes/mib, d.spec.BoardFile(), err)
	}
	return nil
}

// makeBootFS makes the boot partition with grub.cfg and two copies of GRUB's environment. RAUC
// writes the slot to try to the first; the second replaces one that a power cut has damaged. The
// file system has no journal, because GRUB writes to it and replays none.
func (d disk) makeBootFS(ctx context.Context) error {
	dir := d.path("boot")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "grub.cfg"), []byte(d.grubConfig()), 0o644); err != nil {
		return err
	}
	for _, name := range []string{envName, keptName} {
		env := filepath.Join(dir, name)
		if err := d.runProgram(ctx, "grub-editenv", env, "create"); err != nil {
			return err
		}
		if err := d.runProgram(ctx, "grub-editenv", env, "set", "ORDER=A B", "LAST=A", "A_OK=1", "A_TRY=0", "A_PROVED=1", "B_OK=0", "B_TRY=0", "B_PROVED=0"); err != nil {
			return err
		}
	}
	p, _ := d.partitionFor(images.UseBoot)
	return d.makeExt4(ctx, p, dir, "-O", "^has_journal")
}

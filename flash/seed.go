package flash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// seed is the content of one partition that a device gets in place of the image's. Its file may hold
// a private host key or a password, so newSeed deletes its name and keeps only the open file.
type seed struct {
	file   *os.File
	blocks bmap.Map
	part   images.Partition
}

// makeSeeds makes the seeds of the SSH identity and of the personal files.
func (j *imageJob) makeSeeds(ctx context.Context) error {
	for i, part := range j.places {
		var p Personal
		if id := j.options.Identity; id != nil && i == 0 {
			p.Files = id.seedFiles()
		} else {
			p = j.options.personal[i-(len(j.places)-len(j.options.personal))]
		}
		s, err := newSeed(ctx, part, p, j.file)
		if err != nil {
			return err
		}
		j.seeds = append(j.seeds, s)
	}
	return nil
}

// newSeed makes the file system of a partition with p's files, and its block map, in a temporary
// folder that it removes; close ends the open file. FAT begins with the image's content, ext4 is new.
func newSeed(ctx context.Context, part images.Partition, p Personal, image io.ReaderAt) (_ *seed, err error) {
	dir, err := os.MkdirTemp("", "slipway-seed-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	content := filepath.Join(dir, "content")
	if err := writeTree(content, p.Files); err != nil {
		return nil, err
	}
	s := &seed{part: part}
	if s.file, err = os.OpenFile(filepath.Join(dir, "data.img"), os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600); err != nil {
		return nil, err
	}
	if p.fat {
		err = addToFAT(ctx, s.file, content, part, image)
	} else {
		err = makeFileSystem(ctx, s.file, content, part)
	}
	if err == nil {
		s.blocks, err = bmap.Create(ctx, s.file)
	}
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w (Debian package %s)", err, plaintext.Either(p.fat, "mtools", "e2fsprogs"))
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("make the partition %s: %w", part.Name, err)
	}
	return s, nil
}

// addToFAT copies the image's partition into the empty file f, and the files in the folder content
// into the FAT file system there, over those of the same names.
func addToFAT(ctx context.Context, f *os.File, content string, part images.Partition, image io.ReaderAt) error {
	_, err := io.Copy(f, localfile.WithContext(ctx, io.NewSectionReader(image, part.OffsetBytes, part.SizeBytes), func(int64) {}))
	if err != nil {
		return err
	}
	entries, err := filepath.Glob(filepath.Join(localfile.QuoteGlob(content), "*"))
	if err != nil || len(entries) == 0 {
		return err
	}
	return run.Run(ctx, run.Command{Argv: append(append([]string{"mcopy", "-s", "-Q", "-o", "-i", f.Name()}, entries...), "::/")})
}

func (s *seed) close() { s.file.Close() }

// writeTo writes the file system into the partition on each device and reads it back.
func (s *seed) writeTo(ctx context.Context, to []*write.Copy) error {
	name := "partition " + s.part.Name
	image, err := source.Open(s.file, name)
	if err != nil {
		return err
	}
	_, err = write.Run(ctx, image, to, write.Options{
		Name: name, Remedy: "flash again", Blocks: &s.blocks, Size: s.part.SizeBytes, Base: s.part.OffsetBytes,
	})
	return err
}

// writeTree writes files below root: public keys (.pub) with mode 0644, all others with 0600.
func writeTree(root string, files map[string][]byte) error {
	for name, data := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		mode := os.FileMode(0o600)
		if strings.HasSuffix(name, ".pub") {
			mode = 0o644
		}
		if err := os.WriteFile(path, data, mode); err != nil {
			return err
		}
	}
	return nil
}

// makeFileSystem makes an ext4 file system in the empty file f, of the partition's size and label,
// with the files in content, all owned by root.
func makeFileSystem(ctx context.Context, f *os.File, content string, part images.Partition) error {
	if err := f.Truncate(part.SizeBytes); err != nil {
		return err
	}
	// mke2fs writes the tables (zeros, so holes), rather than the board's kernel while it boots.
	err := run.Run(ctx, run.Command{Argv: []string{
		"mke2fs", "-q", "-F", "-t", "ext4", "-L", part.Name,
		"-E", "root_owner=0:0,lazy_itable_init=0", "-d", content, f.Name(),
	}})
	if err != nil || os.Geteuid() == 0 {
		return err
	}
	return chownToRoot(ctx, f.Name(), content)
}

// chownToRoot makes root the owner of all files in the ext4 image, which mke2fs copied from the
// folder content with their owner. sshd refuses keys of another user.
func chownToRoot(ctx context.Context, image, content string) error {
	var b strings.Builder
	err := filepath.WalkDir(content, func(path string, _ os.DirEntry, err error) error {
		inside := strings.TrimPrefix(path, content)
		if err != nil || inside == "" {
			return err
		}
		_, err = fmt.Fprintf(&b, "set_inode_field %s uid 0\nset_inode_field %s gid 0\n", inside, inside)
		return err
	})
	if err != nil {
		return err
	}
	return run.Run(ctx, run.Command{
		Argv:  []string{"debugfs", "-w", "-f", "-", image},
		Stdin: strings.NewReader(b.String()),
	})
}

package flash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"slipway/flash/source"
	"slipway/flash/write"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/run"
)

// seed is the file system that replaces the image's empty data partition. Its file holds the
// board's private host key, so newSeed deletes its name and keeps only the open file.
type seed struct {
	file   *os.File
	blocks bmap.Map
	part   images.Partition
}

// newSeed makes an ext4 file system with the identity's files, and its block map, in a temporary
// folder that it removes; close ends the open file. A missing program fails before the first write.
func newSeed(ctx context.Context, part images.Partition, id Identity) (_ *seed, err error) {
	dir, err := os.MkdirTemp("", "slipway-seed-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	content := filepath.Join(dir, "content")
	if err := writeTree(content, id.seedFiles()); err != nil {
		return nil, err
	}
	image := filepath.Join(dir, "data.img")
	err = makeFileSystem(ctx, image, content, part)
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w (Debian package e2fsprogs)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("make the data partition: %w", err)
	}
	s := &seed{part: part}
	if s.file, err = os.Open(image); err != nil {
		return nil, err
	}
	if s.blocks, err = bmap.Create(ctx, s.file); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *seed) close() { s.file.Close() }

// writeTo writes the file system into the data partition of each device and reads it back.
func (s *seed) writeTo(ctx context.Context, to []*write.Copy) error {
	image, err := source.Open(s.file, "data partition")
	if err != nil {
		return err
	}
	_, err = write.Run(ctx, image, to, write.Options{
		Name: "data partition", Remedy: "flash again", Blocks: &s.blocks, Size: s.part.SizeBytes, Base: s.part.OffsetBytes,
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

// makeFileSystem makes an ext4 file system in the new file image, of the partition's size and
// label, with the files in content, all owned by root.
func makeFileSystem(ctx context.Context, image, content string, part images.Partition) error {
	f, err := os.OpenFile(image, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(part.SizeBytes), f.Close()); err != nil {
		return err
	}
	// mke2fs writes the tables (zeros, so holes), rather than the board's kernel while it boots.
	err = run.Run(ctx, run.Command{Argv: []string{
		"mke2fs", "-q", "-F", "-t", "ext4", "-L", part.Name,
		"-E", "root_owner=0:0,lazy_itable_init=0", "-d", content, image,
	}})
	if err != nil || os.Geteuid() == 0 {
		return err
	}
	return chownToRoot(ctx, image, content)
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

package soak

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"slipway/layers/run"
)

// writeRootFiles writes a line for each file of an image's first root slot. It leaves out
// what differs from one build to the next: times, and the initramfs that holds some.
func writeRootFiles(ctx context.Context, w io.Writer, image string) (err error) {
	offset, err := rootOffset(ctx, image)
	if err != nil {
		return err
	}
	at, err := os.MkdirTemp("", "slipway-soak-root-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(at)) }()
	mount := []string{"sudo", "-n", "mount", "-o", fmt.Sprintf("ro,noload,loop,offset=%d", offset), image, at}
	if err := run.Run(ctx, run.Command{Argv: mount}); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, run.Run(context.WithoutCancel(ctx), run.Command{Argv: []string{"sudo", "-n", "umount", at}}))
	}()
	return writeFilesBelow(ctx, w, at)
}

// rootOffset returns where the first root slot begins in an image, in bytes.
func rootOffset(ctx context.Context, image string) (int64, error) {
	out, err := run.Output(ctx, run.Command{Argv: []string{"/usr/sbin/sfdisk", "--json", image}})
	if err != nil {
		return 0, err
	}
	var table struct {
		PartitionTable struct {
			SectorSize int64
			Partitions []struct {
				Name  string
				Start int64
			}
		}
	}
	if err := json.Unmarshal(out, &table); err != nil {
		return 0, fmt.Errorf("%s: %w", image, err)
	}
	for _, p := range table.PartitionTable.Partitions {
		if p.Name == "rootA" {
			return p.Start * table.PartitionTable.SectorSize, nil
		}
	}
	return 0, fmt.Errorf("%s: no partition rootA", image)
}

func writeFilesBelow(ctx context.Context, w io.Writer, dir string) error {
	cmd := exec.CommandContext(ctx, "sudo", "-n", "tar", "--create", "--file=-", "--sort=name", "--directory="+dir, ".")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return errors.Join(writeArchived(w, out), cmd.Wait())
}

func writeArchived(w io.Writer, archive io.Reader) error {
	for files := tar.NewReader(archive); ; {
		h, err := files.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, archive) // tar waits until its padding is read
			return err
		}
		if err != nil {
			return err
		}
		content := sha256.New()
		if _, err := io.Copy(content, files); err != nil {
			return err
		}
		if strings.HasPrefix(h.Name, "./boot/initrd.img") {
			h.Size, content = 0, sha256.New()
		}
		fmt.Fprintf(w, "%s %s%s %d:%d %o %d %x\n", h.Name, h.Linkname, string(h.Typeflag), h.Uid, h.Gid, h.Mode, h.Size, content.Sum(nil))
	}
}

package soak

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/flash/device"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/run"
)

const (
	soakedMiB      = 32
	soakedEveryMiB = 8
	sectorBytes    = 512
	endBytes       = 1 << 20 // at either end of a device; flash writes it first and last
)

// Flash flashes two images to a loop device in turns, and ends each flash up to 3 times by SIGKILL
// or Ctrl-C. After a kill, the device must be unchanged or without a valid partition table (except
// the copy at its end, while only the start is zero). After a success it must equal the image. It
// needs root. dir is an empty folder for the device's file and the images.
func Flash(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it needs root, for a loop device")
	}
	spec, err := cardBoard()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "device")
	s := &soakedFlash{dir: filepath.Join(dir, "build", spec.Board), images: [2][]byte{soakedImage(0, soakedMiB), soakedImage(1, soakedMiB)}}
	if err := errors.Join(os.MkdirAll(s.dir, 0o755), os.WriteFile(file, bytes.Repeat([]byte{0xa5}, soakedMiB<<20), 0o600)); err != nil {
		return err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	if err != nil {
		return err
	}
	s.device = strings.TrimSpace(string(out))
	defer func() {
		err = errors.Join(err, run.Run(context.WithoutCancel(ctx), run.Command{Argv: []string{"losetup", "--detach", s.device}}))
	}()
	return Kill(ctx, w, Job{
		Argv: append(slices.Clone(opt.Self), "flash", spec.Board, s.device, "--yes="+s.device, "--raw"), Dir: dir,
		Begin: s.beginRound, Interrupt: true, Killed: s.checkDevice,
		State: func(context.Context) (string, error) { return s.checkDevice(true) },
	}, len(s.images), opt)
}

// cardBoard returns a board that is flashed by a card, and accepts unsigned images.
func cardBoard() (images.Spec, error) {
	return images.First("is flashed by a card, and accepts unsigned images", func(spec images.Spec) bool {
		return spec.Machine == nil && spec.Flash.Signers == "" && slices.Contains(spec.Flash.Kinds, device.Block)
	})
}

type soakedFlash struct {
	dir    string // folder of the artifact
	device string
	images [2][]byte
	now    []byte // the image that is being flashed
	before []byte // content of the device before the flash
}

// soakedImage returns random data and zeros, with a partition table's signatures at both ends.
func soakedImage(version byte, mib int) []byte {
	p := make([]byte, mib<<20)
	random := rand.NewChaCha8([32]byte{version})
	for at := 0; at < len(p); at += soakedEveryMiB << 20 { // the rest of each piece is zero
		random.Read(p[at : at+5<<20])
	}
	copy(p[510:], "\x55\xaaEFI PART")
	random.Read(p[len(p)-sectorBytes:])
	copy(p[len(p)-sectorBytes:], "EFI PART")
	return p
}

// beginRound reads the device's content, and writes the artifact of the round's image to s.dir.
func (s *soakedFlash) beginRound(ctx context.Context, round int) (err error) {
	if s.before, err = os.ReadFile(s.device); err != nil {
		return err
	}
	s.now = s.images[round]
	return saveImage(ctx, s.dir, fmt.Sprint(round), s.now)
}

// saveImage writes an artifact with an image and its block map to dir, whose name is the board's.
func saveImage(ctx context.Context, dir, key string, image []byte) error {
	f, err := os.Create(filepath.Join(dir, "disk.img"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, writeErr := f.Write(image)
	m, err := bmap.Create(ctx, f)
	var blocks bytes.Buffer
	_, mapErr := m.WriteTo(&blocks)
	if err := errors.Join(writeErr, err, mapErr, os.WriteFile(filepath.Join(dir, "disk.bmap"), blocks.Bytes(), 0o644)); err != nil {
		return err
	}
	a := images.Artifact{Board: filepath.Base(dir), Key: key, Files: []images.File{
		{Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(len(image)), SHA256: fmt.Sprintf("%x", sha256.Sum256(image))},
		{Kind: images.BlockMap, Name: "disk.bmap", SizeBytes: int64(blocks.Len()), SHA256: fmt.Sprintf("%x", sha256.Sum256(blocks.Bytes()))},
	}}
	return a.Save(dir)
}

// checkDevice describes the device's content after a flash, and keeps it as the content before the
// next one. After a success (ended) it must be the image. Else it must be the old or the new
// content, but for a beginning of zeros, or have no partition table.
func (s *soakedFlash) checkDevice(ended bool) (string, error) {
	now, err := os.ReadFile(s.device)
	if err != nil {
		return "", err
	}
	before, zero := s.before, make([]byte, endBytes)
	s.before = now
	table := bytes.Contains(now[:sectorBytes+8], []byte("EFI PART")) || now[510] == 0x55 || bytes.HasPrefix(now[len(now)-sectorBytes:], []byte("EFI PART"))
	switch {
	case bytes.Equal(now, s.now):
		return ": whole", nil
	case ended:
		return "", errors.New("the flash ended well, and the device is not the image")
	case bytes.Equal(now, before):
		return ": as it was", nil
	case bytes.Equal(now[:endBytes], zero) && bytes.Equal(now[endBytes:], before[endBytes:]):
		// Only the first write happened. The copy of the table at the end, which only
		// repair programs read, refers to unchanged data.
		return ": as it was but for its beginning, which is zero", nil
	case bytes.Equal(now[:endBytes], zero) && bytes.Equal(now[endBytes:], s.now[endBytes:]):
		return ": whole but for its beginning, which is zero", nil
	case table:
		return "", errors.New("the device is not whole, and has a partition table")
	}
	return ": not whole, and without a partition table", nil
}

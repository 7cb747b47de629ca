package soak

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"slipway/flash/device"
	"slipway/images"
	"slipway/images/bmap"
	"slipway/layers/run"
)

const (
	soakedMiB      = 48 // unless the options say otherwise
	soakedDataMiB  = 5  // of each soakedEveryMiB
	soakedEveryMiB = 8
	sectorBytes    = 512
	endBytes       = 1 << 20 // at either end of a device; flash writes it first and last
)

// Flash flashes two images to a loop device alternately, and ends each flash up to three
// times, by a SIGKILL or a Ctrl-C. Before a flash succeeds, the device is as it was, or has
// no valid partition table (except the copy at its end, for the moment in which only its
// beginning is zero). Afterwards it equals the image.
func Flash(ctx context.Context, w io.Writer, dir string, opt Options) (err error) {
	s, err := newSoakedFlash(ctx, dir, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.detachDevice()) }()
	fmt.Fprintf(w, "seed %d\n", opt.Seed)
	for killed, round := 0, 0; killed < opt.Kills; round++ {
		if err := s.chooseImage(round % len(s.images)); err != nil {
			return err
		}
		for range min(1+s.random.IntN(3), opt.Kills-killed) {
			ended, err := s.killOnce(ctx, w)
			if err != nil {
				return fmt.Errorf("kill %d: %w", killed+1, err)
			}
			if ended {
				break // the flash ended before the signal
			}
			killed++
		}
		if err := s.flashToEnd(ctx); err != nil {
			return fmt.Errorf("after kill %d: %w", killed, err)
		}
	}
	return nil
}

type soakedFlash struct {
	random *rand.Rand
	job    Job
	mib    int
	dir    string // folder of the artifact
	device string // our loop device, or ""
	images [2][]byte
	now    []byte // the image that is being flashed
	took   time.Duration
}

func newSoakedFlash(ctx context.Context, dir string, opt Options) (*soakedFlash, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("it needs root, for a loop device")
	}
	board, err := cardBoard()
	if err != nil {
		return nil, err
	}
	s := &soakedFlash{random: rand.New(rand.NewPCG(opt.Seed, 0)), dir: filepath.Join(dir, "build", board), mib: cmp.Or(opt.MiB, soakedMiB)}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	for i := range s.images {
		s.images[i] = soakedImage(byte(i), s.mib)
	}
	if err := s.attachDevice(ctx, filepath.Join(dir, "device")); err != nil {
		return nil, err
	}
	s.job = Job{Argv: append(opt.Self[:len(opt.Self):len(opt.Self)], "flash", board, s.device, "--yes="+s.device, "--raw"), Dir: dir}
	if err := s.measureFlash(ctx); err != nil {
		return nil, errors.Join(err, s.detachDevice())
	}
	return s, nil
}

// cardBoard returns a board that is flashed by a card and accepts unsigned images.
func cardBoard() (string, error) {
	spec, err := images.First("is flashed by a card", func(spec images.Spec) bool {
		return spec.Machine == nil && spec.Flash.Signers == "" && slices.Contains(spec.Flash.Kinds, device.Block)
	})
	return spec.Board, err
}

// soakedImage returns an image that begins and ends like a disk with a partition table.
func soakedImage(version byte, mib int) []byte {
	p := make([]byte, mib<<20)
	random := rand.NewChaCha8([32]byte{version})
	for at := 0; at < len(p); at += soakedEveryMiB << 20 {
		random.Read(p[at : at+soakedDataMiB<<20])
	}
	copy(p[510:], "\x55\xaaEFI PART")
	random.Read(p[len(p)-sectorBytes:])
	copy(p[len(p)-sectorBytes:], "EFI PART")
	return p
}

func (s *soakedFlash) attachDevice(ctx context.Context, file string) error {
	if err := os.WriteFile(file, bytes.Repeat([]byte{0xa5}, s.mib<<20), 0o600); err != nil {
		return err
	}
	out, err := run.Output(ctx, run.Command{Argv: []string{"losetup", "--find", "--show", "--direct-io=on", file}})
	s.device = strings.TrimSpace(string(out))
	return err
}

func (s *soakedFlash) detachDevice() error {
	return run.Run(context.Background(), run.Command{Argv: []string{"losetup", "--detach", s.device}})
}

// measureFlash flashes each image once, to measure how long that takes.
func (s *soakedFlash) measureFlash(ctx context.Context) error {
	for i := range s.images {
		if err := s.chooseImage(i); err != nil {
			return err
		}
		began := time.Now()
		if err := s.flashToEnd(ctx); err != nil {
			return err
		}
		s.took = time.Since(began)
	}
	return nil
}

// chooseImage writes the artifact of an image.
func (s *soakedFlash) chooseImage(i int) error {
	s.now = s.images[i]
	path := filepath.Join(s.dir, "disk.img")
	if err := os.WriteFile(path, s.now, 0o644); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := bmap.Create(context.Background(), f)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "disk.bmap"), b.Bytes(), 0o644); err != nil {
		return err
	}
	a := images.Artifact{Board: filepath.Base(s.dir), Key: fmt.Sprint(i), Files: []images.File{
		{Kind: images.DiskImage, Name: "disk.img", SizeBytes: int64(len(s.now)), SHA256: hexSum(s.now)},
		{Kind: images.BlockMap, Name: "disk.bmap", SizeBytes: int64(b.Len()), SHA256: hexSum(b.Bytes())},
	}}
	return a.Save(s.dir)
}

func hexSum(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}

// killOnce starts a flash and ends it at a random moment. ended means that the flash
// succeeded before.
func (s *soakedFlash) killOnce(ctx context.Context, w io.Writer) (ended bool, err error) {
	before, err := os.ReadFile(s.device)
	if err != nil {
		return false, err
	}
	after, signal := time.Duration(s.random.Int64N(int64(s.took))), os.Signal(os.Kill)
	if s.random.IntN(2) == 0 {
		signal = os.Interrupt
	}
	began := time.Now()
	ended, err = s.runUntilSignal(ctx, after, signal)
	if err != nil {
		return false, fmt.Errorf("%v after %s: %w", signal, after, err)
	}
	state, err := s.checkDevice(before, ended)
	if err != nil {
		return false, fmt.Errorf("%v after %s: %w", signal, after, err)
	}
	if ended {
		s.took = min(s.took, time.Since(began))
	}
	_, err = fmt.Fprintf(w, "%v after %s: the device is %s\n", signal, after.Round(time.Millisecond), state)
	return ended, err
}

// runUntilSignal runs the flash and sends it a signal. ended means that the flash succeeded
// before.
func (s *soakedFlash) runUntilSignal(ctx context.Context, after time.Duration, signal os.Signal) (ended bool, err error) {
	var out strings.Builder
	cmd := s.job.newCommand(ctx, &out)
	if err := cmd.Start(); err != nil {
		return false, err
	}
	defer time.AfterFunc(after, func() { _ = cmd.Process.Signal(signal) }).Stop()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil {
		status, ok := exit.Sys().(syscall.WaitStatus)
		killed := ok && status.Signal() == syscall.SIGKILL || signal == os.Interrupt
		if !killed {
			return false, fmt.Errorf("%w\n%s", err, out.String())
		}
		return false, nil
	}
	return true, err
}

// checkDevice describes the content of the device. It fails if the content is not allowed.
func (s *soakedFlash) checkDevice(before []byte, ended bool) (string, error) {
	now, err := os.ReadFile(s.device)
	if err != nil {
		return "", err
	}
	table := bytes.Contains(now[:sectorBytes+8], []byte("EFI PART")) || now[510] == 0x55 || bytes.HasPrefix(now[len(now)-sectorBytes:], []byte("EFI PART"))
	switch {
	case bytes.Equal(now, s.now):
		return "whole", nil
	case ended:
		return "", errors.New("the flash ended well, and the device is not the image")
	case bytes.Equal(now, before):
		return "as it was", nil
	case bytes.Equal(now[:endBytes], make([]byte, endBytes)) && bytes.Equal(now[endBytes:], before[endBytes:]):
		// Only the first write happened. The copy of the table at the end, which only
		// repair programs read, refers to unchanged data.
		return "as it was but for its beginning, which is zero", nil
	case bytes.Equal(now[:endBytes], make([]byte, endBytes)) && bytes.Equal(now[endBytes:], s.now[endBytes:]):
		return "whole but for its beginning, which is zero", nil
	case table:
		return "", errors.New("the device is not whole, and has a partition table")
	}
	return "not whole, and without a partition table", nil
}

// flashToEnd flashes without a signal.
func (s *soakedFlash) flashToEnd(ctx context.Context) error {
	if err := s.job.runCommand(ctx); err != nil {
		return err
	}
	_, err := s.checkDevice(nil, true)
	return err
}

package tinyboard

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/layers/run"
)

// imageLibraries is how many libraries the image has of its own.
const imageLibraries = 300

// The programs in the image.
const (
	// Program ends at once.
	Program = "/usr/bin/program"
	// Busybox is there where the machine has HostBusybox.
	Busybox     = "/usr/bin/busybox"
	HostBusybox = "/bin/busybox"
)

// proof needs every library of the board by its soname.
const proof = "/usr/lib/proof.so"

// Image is a container image, unpacked, and what its containers change.
type Image struct {
	dir    string
	loader string // glibc's ld.so, in the image
}

// NewImage makes an image in a new folder of dir, with an ld cache of its own
// libraries.
func (b *Board) NewImage(ctx context.Context, dir string) (Image, error) {
	loader, err := interpreter("/bin/sh")
	if err != nil {
		return Image{}, err
	}
	m := Image{filepath.Join(dir, "image"), loader}
	real, err := filepath.EvalSymlinks(loader)
	if err != nil {
		return Image{}, err
	}
	var needed []string
	for i := range b.Size.Libraries {
		_, soname := b.Library(i)
		needed = append(needed, soname)
	}
	errs := []error{
		m.links(), m.copy(b.Hook, Program), m.copy(loader, loader),
		Write(m.path("/etc/ld.so.conf"), []byte("include /etc/ld.so.conf.d/*.conf\n"), 0o644),
		Write(m.path("/etc/ld.so.conf.d/image.conf"), []byte(filepath.Dir(real)+"\n"), 0o644),
		Write(m.path(filepath.Join(b.Shared(), "libimage.so")), sharedObject("libimage.so"), 0o644),
		Write(m.path(proof), sharedObject("proof.so", needed...), 0o755),
	}
	if err := m.copy(HostBusybox, Busybox); !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for i := range imageLibraries {
		soname := fmt.Sprintf("libimage%d.so.1", i)
		errs = append(errs, Write(m.path(filepath.Join(filepath.Dir(real), soname)), sharedObject(soname), 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return Image{}, err
	}
	return m, run.Run(ctx, run.Command{Argv: []string{"ldconfig", "-r", m.dir}})
}

// Proves is the command that prints where ld.so finds each of the board's libraries.
func (m Image) Proves() []string { return []string{m.loader, "--list", proof} }

func (m Image) path(p string) string { return filepath.Join(m.dir, p) }

// links makes the links that distributions have at their top.
func (m Image) links() error {
	for _, name := range []string{"bin", "lib", "lib64"} {
		if err := os.MkdirAll(m.path("usr/"+name), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+name, m.path(name)); err != nil {
			return err
		}
	}
	return nil
}

func (m Image) copy(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return Write(m.path(to), data, 0o755)
}

// interpreter is the ld.so that the program is started by.
func interpreter(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text := make([]byte, p.Filesz)
			_, err := p.ReadAt(text, 0)
			return strings.TrimRight(string(text), "\x00"), err
		}
	}
	return "", fmt.Errorf("%s names no ld.so; a system with glibc is needed", program)
}

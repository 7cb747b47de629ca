package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"slipway/ci/dev/tinyboard"
)

// medium is the storage of an image and of the changes of its containers.
type medium struct {
	name  string
	image tinyboard.Image
	last  *tinyboard.Container // still mounted
	top   *os.File
}

type media []*medium

// hookDiskBytes is enough for the changes of all containers of a bench. None is removed:
// see onOwnDisk.
const hookDiskBytes = 2 << 30

func (b *hookBench) openMedia(ctx context.Context) (media, error) {
	memory, disk := filepath.Join(b.board.Dir, "memory"), filepath.Join(b.board.Dir, "disk")
	if err := errors.Join(os.Mkdir(memory, 0o755), os.Mkdir(disk, 0o755)); err != nil {
		return nil, err
	}
	if err := mountNewDisk(ctx, filepath.Join(b.dir, "disk"), hookDiskBytes, disk); err != nil {
		return nil, err
	}
	var all media
	for _, m := range []struct{ name, dir string }{{"tmpfs", memory}, {"disk", disk}} {
		image, err := b.board.NewImage(ctx, m.dir)
		if err != nil {
			return nil, err
		}
		top, err := os.Open(m.dir)
		if err != nil {
			return nil, err
		}
		all = append(all, &medium{name: m.name, image: image, top: top})
	}
	return all, nil
}

// closeLast closes the last container, before the next one is made.
func (m *medium) closeLast() error {
	last := m.last
	if m.last = nil; last == nil {
		return nil
	}
	return last.Close()
}

func (m *medium) syncDisk() error { return unix.Syncfs(int(m.top.Fd())) }

// close unmounts the disk, so that its file can be removed.
func (all media) close() {
	for _, m := range all {
		_ = m.closeLast()
		_ = unix.Unmount(m.top.Name(), unix.MNT_DETACH)
		_ = m.top.Close()
	}
}

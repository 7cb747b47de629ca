package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"slipway/ci/dev/tinyboard"
)

// checkContainer runs a container once and counts the board's files in it, so that no
// method is fast because it does nothing.
func (b *hookBench) checkContainer(ctx context.Context, m *medium, method hookMethod) error {
	c, err := b.newContainer(m, method, m.image.Proves()...)
	if err != nil {
		return err
	}
	var got, want tinyboard.Size
	err = b.runContainer(ctx, c, method, func(pid string) error {
		got = b.countInside(pid)
		if b.cache == "" && method.cache {
			return b.keepCache(pid)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if method.allFiles {
		want = hookSize
	}
	if got != want {
		return fmt.Errorf("the container has %+v; want %+v", got, want)
	}
	text, err := c.Output()
	if err != nil {
		return err
	}
	found, all := strings.Count(text, "=> "+filepath.Join(b.board.Dir, "board/lib")), 0
	if method.cache {
		all = hookSize.Libraries
	}
	if found != all {
		return fmt.Errorf("ld.so finds %d of the board's libraries; want %d\n%s", found, all, text)
	}
	return nil
}

// keepCache keeps the ld cache of a container for the floor.
func (b *hookBench) keepCache(pid string) error {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "root/etc/ld.so.cache"))
	if err != nil {
		return err
	}
	b.cache = filepath.Join(b.board.Dir, "ld.so.cache")
	return os.WriteFile(b.cache, data, 0o644)
}

// countInside counts the board's files in the container of the process.
func (b *hookBench) countInside(pid string) (has tinyboard.Size) {
	root := filepath.Join("/proc", pid, "root")
	same := func(p string) int {
		own, err1 := os.Lstat(p)
		its, err2 := os.Lstat(root + p)
		if errors.Join(err1, err2) == nil && os.SameFile(own, its) {
			return 1
		}
		return 0
	}
	for i := range hookSize.Libraries {
		path, _ := b.board.Library(i)
		has.Libraries += same(path)
	}
	for i := range hookSize.Folders {
		has.Folders += same(b.board.Folder(i) + "/file")
	}
	for i := range hookSize.Links {
		path, _ := b.board.Library(i)
		if text, _ := os.Readlink(root + b.board.Link(i)); text == filepath.Base(path) {
			has.Links++
		}
	}
	for i := range hookSize.Devices {
		info, err := os.Lstat(root + b.board.Device(i))
		if err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Sys().(*syscall.Stat_t).Rdev == unix.Mkdev(1, 3) {
			has.Devices++
		}
	}
	return has
}

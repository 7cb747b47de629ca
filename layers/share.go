package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Users share a folder of mirrors where its mode lets a group write. Another user's
// packs are copied then: the kernel lets nobody link to what he cannot write.

// shared says that others may write into a folder.
func shared(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.Mode()&0o020 != 0
}

// openLock opens a lock's file. Another user's can be read, which is enough.
func openLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if errors.Is(err, fs.ErrPermission) {
		if theirs, bad := os.Open(path); bad == nil {
			return theirs, nil
		}
	}
	return f, err
}

// notOurs adds to a failed write into mirrors whose they are, where they are another's.
func (m mirror) notOurs(err error) error {
	if err == nil || !errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "Permission denied") {
		return err
	}
	for _, dir := range []string{m.dir, filepath.Dir(m.dir)} {
		if owner := ownerOf(dir); owner != "" {
			return fmt.Errorf("%s belongs to another user; let %s delete it, which harms no checkout, and to share it make it anew with a group of you both and mode 2775: %w", dir, owner, err)
		}
	}
	return err
}

// ownerOf is the name of another user whom a folder belongs to, or a number where
// he has none.
func ownerOf(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(owner.Uid) == os.Geteuid() {
		return ""
	}
	id := strconv.FormatUint(uint64(owner.Uid), 10)
	if known, err := user.LookupId(id); err == nil {
		return known.Username
	}
	return id
}

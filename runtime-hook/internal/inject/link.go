package inject

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// makeLink makes the symlink l in the container. If the image has another link at that path, it
// replaces the link. If the image has a file at that path, it mounts the file at l's end over it.
func (r *Root) makeLink(l plan.Link) error {
	dir, base, err := r.openParent(l.Path)
	if err != nil {
		return err
	}
	err = r.addSymlink(l.Target, dir, base)
	if !errors.Is(err, unix.EEXIST) {
		return wrapLink(err)
	}
	switch readlink(dir.File, base) {
	case l.Target:
		return nil
	case "":
		if l.File == "" {
			return inTheWayError("%s is there and is no link", l.Path)
		}
		return r.coverFile(l.File, l.Path, unix.S_IFREG, mountFlags)
	}
	if err := r.removeLink(dir, base); err != nil {
		return err
	}
	return wrapLink(r.addSymlink(l.Target, dir, base))
}

func (r *Root) addSymlink(target string, dir *folder, base string) error {
	return r.addName(dir, base, func() error { return unix.Symlinkat(target, int(dir.Fd()), base) })
}

// removeLink removes a link of the image, which the caller found. In a volume it returns an error.
func (r *Root) removeLink(dir *folder, base string) error {
	if dir.volume {
		return inTheWayError("%s is a link in a volume, and Slipway replaces nothing in volumes", base)
	}
	if err := r.changeName(dir, func() error { return unix.Unlinkat(int(dir.Fd()), base, 0) }); err != nil {
		return fmt.Errorf("replace the image's link: %w", err)
	}
	return nil
}

// wrapLink adds to err, if not nil, that the hook was making a link.
func wrapLink(err error) error {
	if err != nil {
		return fmt.Errorf("make the link: %w", err)
	}
	return nil
}

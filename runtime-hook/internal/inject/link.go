package inject

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/plan"
)

// link makes l in the container. A link of the image that says something else is
// replaced; a file of the image is covered by the one at the link's end.
func (r *Root) link(l plan.Link) error {
	dir, base, err := r.parent(l.Path)
	if err != nil {
		return err
	}
	err = r.symlink(l.Target, dir, base)
	if !errors.Is(err, unix.EEXIST) {
		return wrapLink(err)
	}
	switch readlink(dir.File, base) {
	case l.Target:
		return nil
	case "":
		if l.File == "" {
			return inTheWay("%s is there and is no link", l.Path)
		}
		return r.cover(l.File, l.Path, unix.S_IFREG, flags)
	}
	if err := r.removeLink(dir, base); err != nil {
		return err
	}
	return wrapLink(r.symlink(l.Target, dir, base))
}

func (r *Root) symlink(target string, dir *folder, base string) error {
	return r.add(dir, base, func() error { return symlink(target, dir.File, base) })
}

// removeLink makes room where the image has a link.
func (r *Root) removeLink(dir *folder, base string) error {
	if dir.volume {
		return inTheWay("%s is a link in a volume, where nothing is replaced", base)
	}
	if err := r.change(dir, func() error { return unix.Unlinkat(int(dir.Fd()), base, 0) }); err != nil {
		return fmt.Errorf("replace the image's link: %w", err)
	}
	return nil
}

func wrapLink(err error) error {
	if err != nil {
		return fmt.Errorf("make the link: %w", err)
	}
	return nil
}

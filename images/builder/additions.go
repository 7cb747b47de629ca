package builder

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"slipway/images"
	"slipway/layers/run"
)

// writeAdditions writes a tar of the additions to the packages: the board's overlay, the hook, the
// certificate of accepted updates, the units that systemd must and must not start, the board's name
// and the image's key. Overlay files are 0644: a board's folder is embedded, which keeps no modes.
func writeAdditions(w io.Writer, spec images.Spec, o ownFiles, key string) error {
	t := tar.NewWriter(w)
	add := func(name string, mode int64, data []byte) error {
		return writeEntry(t, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, data)
	}
	link := func(name, target string) error {
		return writeEntry(t, tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Files())) {
		if inside, ok := strings.CutPrefix(name, "overlay/"); ok {
			if err := add(inside, 0o644, spec.Files()[name]); err != nil {
				return err
			}
		}
	}
	units := unitLinks(spec.Debian)
	for _, name := range slices.Sorted(maps.Keys(units)) {
		if err := link(name, units[name]); err != nil {
			return err
		}
	}
	who, err := json.Marshal(map[string]string{"board": spec.Board, "key": key})
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"etc/hostname":           []byte(spec.Board + "\n"),
		"etc/machine-id":         nil, // empty: made at boot; absent would mean a first boot, which is slow
		"etc/slipway/image.json": append(who, '\n'),
	}
	if k := spec.Debian.Keyring; k != "" {
		files[strings.TrimPrefix(k, "/")] = o.keyring
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := add(name, 0o644, files[name]); err != nil {
			return err
		}
	}
	if spec.Debian.Hook != "" {
		if err := add(strings.TrimPrefix(spec.Debian.Hook, "/"), 0o755, o.hook); err != nil {
			return err
		}
	}
	return t.Close()
}

// unitsOfPackages is where packages have their units, and boards those of their own.
const unitsOfPackages = "usr/lib/systemd/system"

// checkUnits returns an error for a unit that the board enables and the root file system lacks:
// systemd would ignore it silently. It looks for an instance such as a@b.service as a@.service.
func checkUnits(root string, spec images.Spec) error {
	for _, unit := range spec.Debian.Enable {
		name, instance, _ := strings.Cut(unit, "@")
		if instance != "" {
			name += "@" + path.Ext(unit)
		}
		if _, err := os.Lstat(filepath.Join(root, unitsOfPackages, name)); err != nil {
			return fmt.Errorf("board %s enables %s, which none of its packages has: name the package in board.yml, or add overlay/%s/%s", spec.Board, unit, unitsOfPackages, name)
		}
	}
	return nil
}

// unitLinks returns the targets, by path, of the symbolic links that make systemd start the enabled
// units, and ignore the masked units and generators.
func unitLinks(d *images.Debian) map[string]string {
	const units, generators = "etc/systemd/system", "etc/systemd/system-generators"
	all := map[string]string{}
	for _, unit := range d.Mask {
		all[path.Join(units, unit)] = "/dev/null"
	}
	for _, generator := range d.Generators {
		all[path.Join(generators, generator)] = "/dev/null"
	}
	for _, unit := range d.Enable {
		all[path.Join(units, "multi-user.target.wants", unit)] = path.Join("/", unitsOfPackages, unit)
	}
	return all
}

// writeEntry adds an entry to a tar, always with the time 0: equal inputs make an equal tar.
func writeEntry(t *tar.Writer, h tar.Header, data []byte) error {
	h.Size, h.ModTime, h.Format = int64(len(data)), time.Unix(0, 0), tar.FormatPAX
	if err := t.WriteHeader(&h); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

// hookModule is the folder of the hook's source, in the top folder of a clone.
const hookModule = "runtime-hook"

// checkClone refuses a current folder that is no clone of Slipway, which has the hook's source.
func checkClone() error {
	if _, err := os.Stat(filepath.Join(hookModule, "go.mod")); err != nil {
		return errors.New("building an image needs Slipway's clone and Go, and this folder is no clone\nnext: version  # names the commit to clone; or init makes a board of your own, which needs no clone")
	}
	return nil
}

// compileHook compiles slipway-hook from this clone for the Go architecture arch and returns the
// binary. It writes the binary and the build log to dir.
func compileHook(ctx context.Context, arch, dir string) ([]byte, error) {
	if err := checkClone(); err != nil {
		return nil, err
	}
	out, err := filepath.Abs(filepath.Join(dir, "slipway-hook"))
	if err != nil {
		return nil, err
	}
	err = run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-C", hookModule, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", out, "."},
		Env:  []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS="},
		Log:  filepath.Join(dir, "hook.log"),
	})
	if err != nil {
		return nil, fmt.Errorf("compile slipway-hook: %w", err)
	}
	return os.ReadFile(out)
}

package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/flash/qemu"
	"slipway/images"
	"slipway/layers/host"
)

// Finding is one thing that Doctor looked at.
type Finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Saw  string `json:"saw"`
	Why  string `json:"why,omitempty"`  // why it matters, where it is not in order
	Mend string `json:"mend,omitempty"` // the command that mends it
}

// errNotReady is what Doctor ends with where something is to be mended.
var errNotReady = errors.New("this machine is not ready")

// Doctor looks at what a board's build and tests need of this machine, and
// writes what it found.
func Doctor(ctx context.Context, w io.Writer, spec images.Spec, opt images.Options, asJSON bool) error {
	findings := []Finding{clone(), packages(ctx, spec), space(spec, opt), memory(spec), buildable(ctx, spec)}
	if asJSON {
		if err := writeJSON(w, findings); err != nil {
			return err
		}
	}
	bad := 0
	for _, f := range findings {
		if !f.OK {
			bad++
		}
		if !asJSON {
			f.print(w)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%w for %s: %d of %d findings want mending", errNotReady, spec.Board, bad, len(findings))
	}
	return nil
}

func (f Finding) print(w io.Writer) {
	if f.OK {
		fmt.Fprintf(w, "  ok    %-10s %s\n", f.What, f.Saw)
		return
	}
	fmt.Fprintf(w, "  MEND  %-10s %s\n        %s\n        %s\n", f.What, f.Saw, f.Why, strings.ReplaceAll(f.Mend, "\n", "\n        "))
}

func clone() Finding {
	f := Finding{What: "clone", Why: "images are built from the clone, with Go", Mend: "clone Slipway, install Go, and run this in the clone's top folder"}
	if _, err := os.Stat(filepath.Join("runtime-hook", "go.mod")); err != nil {
		f.Saw = "this folder is not Slipway's clone"
		return f
	}
	path, err := exec.LookPath("go")
	if err != nil {
		f.Saw = "no go command"
		return f
	}
	f.OK, f.Saw = true, "here, with "+path
	return f
}

func packages(ctx context.Context, spec images.Spec) Finding {
	f := Finding{What: "packages", Why: "the build and the virtual board run these programs"}
	needed := append(images.HostPackages(spec), qemu.HostPackages(spec)...)
	missing, err := host.Missing(ctx, needed...)
	switch {
	case err != nil:
		f.Saw, f.Mend = err.Error(), "install them with this machine's own package manager"
	case len(missing) > 0:
		f.Saw, f.Mend = "missing: "+strings.Join(missing, " "), host.AptLine(missing)
	default:
		f.OK, f.Saw = true, fmt.Sprintf("all %d installed", len(needed))
	}
	return f
}

const gib = 1 << 30

// space is generous: a Yocto build that runs full loses hours.
func space(spec images.Spec, opt images.Options) Finding {
	need := uint64(100 * gib)
	if spec.Debian != nil {
		need = 4 * gib
	}
	f := Finding{What: "disk", Why: fmt.Sprintf("a build of %s wants %d GiB", spec.Board, need/gib), Mend: "make room, or run this in a folder on a larger disk"}
	var st unix.Statfs_t
	dir := opt.Dir
	if _, err := os.Stat(dir); err != nil {
		dir = "."
	}
	if err := unix.Statfs(dir, &st); err != nil {
		f.Saw = err.Error()
		return f
	}
	free := st.Bavail * uint64(st.Bsize)
	f.OK, f.Saw = free >= need, fmt.Sprintf("%d GiB free", free/gib)
	return f
}

func memory(spec images.Spec) Finding {
	need := uint64(8 * gib)
	if spec.Machine != nil {
		need = uint64(spec.Machine.RAMMiB)<<20 + gib
	}
	f := Finding{What: "memory", Why: fmt.Sprintf("%s wants %d GiB", spec.Board, need/gib), Mend: "close other programs, or use a larger machine"}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		f.Saw = err.Error()
		return f
	}
	total := info.Totalram * uint64(info.Unit)
	f.OK, f.Saw = total >= need, fmt.Sprintf("%d GiB", total/gib)
	return f
}

// buildable asks what build asks before it begins. The first line of its answer says
// what is wrong, the others what to do.
func buildable(ctx context.Context, spec images.Spec) Finding {
	f := Finding{What: "build", OK: true, Saw: fmt.Sprintf("can begin, as uid %d", os.Geteuid())}
	if err := images.CheckHost(ctx, spec); err != nil {
		saw, mend, _ := strings.Cut(err.Error(), "\n")
		saw = strings.TrimSuffix(strings.TrimSuffix(saw, ":"), "; run")
		f = Finding{What: f.What, Saw: saw, Why: "build would stop here", Mend: or(strings.TrimSpace(mend), "see above")}
	}
	return f
}

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers/localfile"
	"slipway/layers/run"
)

// HubOptions are those of a soak of hubs, which the tests of magefiles/hubstest read.
type HubOptions struct {
	Dir      string
	Hubs     int
	Stations int
	Boards   int // of each station
	Rounds   int
	Seed     uint64 // also of the other areas
	Part     string
	Old      string // the program of the last release
	Kernel   string // folder with a kernel for virtual machines
}

// HubParts are what a soak of hubs can do instead of rollouts with faults.
var HubParts = []string{"ssh", "jobs", "slow", "clocks", "upgrade", "power"}

// lastRelease is the commit of the release that this one must work with.
const lastRelease = "659a99cc"

// Hub breaks hubs, stations and links while they do rollouts over simulated boards. Then boards, hubs
// and audit must agree. dir is an empty folder.
func Hub(ctx context.Context, w io.Writer, dir string, opt Options) error {
	o := opt.HubOptions
	o.Dir = dir
	if o.Part != "" && !slices.Contains(HubParts, o.Part) {
		return fmt.Errorf("--part=%s: want one of %v", o.Part, HubParts)
	}
	var flags []string
	var err error
	switch opt.Part {
	case "clocks":
		flags, err = overlayClock(ctx, dir)
	case "upgrade":
		o.Old, err = buildOld(ctx, dir)
	case "power":
		o.Kernel, err = fetchKernel(ctx, dir)
	}
	if err != nil {
		return err
	}
	return InHubs(ctx, w, dir, "soak-hub", o, flags...)
}

// buildOld builds the program of the last release.
func buildOld(ctx context.Context, dir string) (program string, err error) {
	tree, program := filepath.Join(dir, "old"), filepath.Join(dir, "slipway.old")
	for _, argv := range [][]string{
		{"git", "clone", "--quiet", "--shared", "--no-checkout", ".", tree},
		{"git", "-C", tree, "checkout", "--quiet", "--detach", lastRelease},
		{"go", "build", "-C", tree, "-o", program, "./magefiles/slipway"},
	} {
		if err := run.Run(ctx, run.Command{Argv: argv}); err != nil {
			return "", err
		}
	}
	return program, nil
}

// fetchKernel returns a folder with the content of Debian's package of a kernel for virtual machines.
func fetchKernel(ctx context.Context, dir string) (kernel string, err error) {
	const script = `mkdir "$1" && cd "$1"
apt-get download "$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: //p')"
dpkg-deb -x linux-image-*.deb .`
	kernel = filepath.Join(dir, "kernel")
	return kernel, run.Run(ctx, run.Command{Argv: []string{"sh", "-ec", script, "sh", kernel}})
}

// skewedNow is put into the function Now of package time: libfaketime cannot change the clock of a Go
// program, which asks the kernel itself. The variable has the seconds that the clock is off, and after
// how many seconds it steps by how many.
const skewedNow = `	if skew := skews(); len(skew) == 3 {
		sec += skew[0]
		if mono-startNano > skew[1]*1e9 {
			sec += skew[2]
		}
	}
`

const skews = `
var skews = sync.OnceValue(func() (all []int64) {
	text, _ := syscall.Getenv("SLIPWAY_SOAK_CLOCK")
	for len(text) > 0 {
		n, rest, sign := int64(0), "", int64(1)
		for i := 0; i < len(text) && rest == ""; i++ {
			switch c := text[i]; {
			case c == '-':
				sign = -1
			case c == ' ':
				rest = text[i+1:]
			default:
				n = 10*n + int64(c-'0')
			}
		}
		all, text = append(all, sign*n), rest
	}
	return all
})
`

// overlayClock returns the flags of a build whose package time has a clock that is off.
func overlayClock(ctx context.Context, dir string) (flags []string, err error) {
	out, err := run.Output(ctx, run.Command{Argv: []string{"go", "env", "GOROOT"}})
	if err != nil {
		return nil, err
	}
	original, changed, overlay := filepath.Join(strings.TrimSpace(string(out)), "src/time/time.go"), filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	text, err := localfile.Read(original, 1<<20)
	if err != nil {
		return nil, err
	}
	const at = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(text), at) {
		return nil, fmt.Errorf("%s has another function Now than this soak knows", original)
	}
	now := strings.Replace(string(text), at, at+skewedNow, 1)
	now = strings.Replace(now, "import (\n", "import (\n\t\"sync\"\n\t\"syscall\"\n", 1) + skews
	return []string{"-overlay=" + overlay}, errors.Join(os.WriteFile(changed, []byte(now), 0o600), localfile.WriteJSON(overlay, map[string]any{"Replace": map[string]string{original: changed}}, 0o600))
}

// InHubs builds the tests of magefiles/hubstest, which are slipway with simulated boards too, and runs a word
// of theirs with options as JSON. It needs Slipway's clone, as the folder that this runs in.
func InHubs(ctx context.Context, w io.Writer, dir, word string, options any, flags ...string) error {
	program := filepath.Join(dir, "hubstest.test")
	if err := run.Run(ctx, run.Command{Argv: slices.Concat([]string{"go", "test", "-c", "-o", program}, flags, []string{"./magefiles/hubstest"})}); err != nil {
		return err
	}
	data, err := json.Marshal(options)
	if err != nil {
		return err
	}
	return InNamespaces(ctx, w, program, word, string(data))
}

// InNamespaces runs a program in new pid, mount and network namespaces, which end with ctx or with this
// process, also if that is killed. It needs root.
func InNamespaces(ctx context.Context, w io.Writer, argv ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("it makes network namespaces: it needs root")
	}
	return run.Run(ctx, run.Command{
		Argv: append([]string{"unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", `ip link set lo up && exec "$@"`, "sh"}, argv...),
		Line: func(line string) { fmt.Fprintln(w, line) },
	})
}

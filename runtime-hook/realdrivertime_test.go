package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"slipway/runtime-hook/internal/csv"
)

const (
	timedStarts = 30
	// rest is the time for the kernel to remove the mounts of the container before.
	rest = 100 * time.Millisecond
)

// timedWay is one way to start a container, with the times of its starts.
type timedWay struct {
	name  string
	set   func() container // configures the board, and returns a container that asks for all GPUs
	times []time.Duration
}

// TestRealDriverTimes prints how long a container takes until its program has ended with a
// real driver, by our ways and by NVIDIA's.
func TestRealDriverTimes(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" {
		t.Skip("needs SLIPWAY_LONG=1")
	}
	d := findDriver(t)
	l := d.newLab(t, "runc")
	// NVIDIA's runtime reads lists of three names, and its hook fails without an ld.so.conf.
	must(t, os.Rename(csv.Dir+"/test.csv", csv.Dir+"/l4t.csv"))
	write(t, l.rootfs("/etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n")
	plain := d.container(l, "none", "", ":")
	ways := []*timedWay{{name: "runc without a GPU", set: func() container { return plain }}}
	ways = append(ways, d.ownWays(l)...)
	own := len(ways)
	if peer := peers(t); peer != "" {
		ways = append(ways, d.peerWays(l, peer)...)
	}
	must(t, os.Rename(l.rootfs("/"), filepath.Join(l.dir, "image")))
	must(t, os.Mkdir(l.rootfs("/"), 0o755))
	for i, w := range slices.Clone(ways)[1:] {
		if d.givesGPU(l, w) {
			continue
		}
		if i+1 < own {
			t.Fatalf("%s gives no GPU", w.name)
		}
		ways = slices.DeleteFunc(ways, func(other *timedWay) bool { return w == other })
	}
	for range timedStarts {
		for _, i := range rand.Perm(len(ways)) { // none is always behind the same one
			w := ways[i]
			time.Sleep(rest)
			took, out, err := l.timeStart(w.set())
			if err != nil {
				t.Fatalf("%s: %q, %v", w.name, out, err)
			}
			w.times = append(w.times, took)
		}
	}
	logTimes(t, ways)
}

func (d *realDriver) ownWays(l *lab) (ways []*timedWay) {
	l.t.Helper()
	runc := l.engine
	d.become(l, "runtime")
	wrapper := l.engine
	for _, way := range driverWays {
		c := d.container(l, way, "all", ":")
		ways = append(ways, &timedWay{name: "slipway-hook: " + way, set: func() container {
			l.engine = runc
			if way == "runtime" {
				l.engine = wrapper
			}
			return c
		}})
	}
	l.engine = runc
	return ways
}

// peerWays are NVIDIA's runtime with the list and with what it finds by itself, and the CDI
// spec of what NVIDIA's tool finds.
func (d *realDriver) peerWays(l *lab, peer string) (ways []*timedWay) {
	l.t.Helper()
	runc := l.engine
	ctk := filepath.Join(peer, "nvidia-ctk")
	asking := d.container(l, "runtime", "all", ":")
	for _, mode := range []string{"csv", "jit-cdi"} {
		ways = append(ways, &timedWay{name: "nvidia-container-runtime: " + mode, set: func() container {
			l.engine = filepath.Join(peer, "nvidia-container-runtime")
			write(l.t, "/etc/nvidia-container-runtime/config.toml", fmt.Sprintf("[nvidia-ctk]\npath = %q\n[nvidia-container-runtime]\nmode = %q\nruntimes = [\"runc\"]\n", ctk, mode))
			return asking
		}})
	}
	if out, err := exec.Command(ctk, "cdi", "generate", "--format=json", "--output="+filepath.Join(l.dir, "peer.json"), "--nvidia-cdi-hook-path="+filepath.Join(peer, "nvidia-cdi-hook")).CombinedOutput(); err != nil {
		l.t.Logf("nvidia-ctk cdi generate: %v\n%s", err, out)
		return ways
	}
	cdi := readCDI(l.t, "cat", filepath.Join(l.dir, "peer.json"))
	c := d.container(l, "none", "", ":")
	edit := c.spec
	c.spec = func(s *specs.Spec) {
		edit(s)
		cdi.apply(l.t, s, "all")
	}
	return append(ways, &timedWay{name: "nvidia-ctk: CDI", set: func() container {
		l.engine = runc
		return c
	}})
}

// givesGPU reports whether nvidia-smi names a GPU in the container: no way is fast because it
// does nothing. The log says what it printed otherwise.
func (d *realDriver) givesGPU(l *lab, w *timedWay) bool {
	l.t.Helper()
	c := w.set()
	c.script = d.smi + " -L"
	_, out, err := l.timeStart(c)
	if err == nil && strings.HasPrefix(out, "GPU 0: ") {
		return true
	}
	l.t.Logf("by %s the container printed %q, %v", w.name, out, err)
	return false
}

// timeStart runs a container on a fresh overlay and returns the time until it ends.
func (l *lab) timeStart(c container) (took time.Duration, out string, err error) {
	l.t.Helper()
	changes := filepath.Join(l.dir, "changes")
	must(l.t, os.RemoveAll(changes))
	for _, dir := range []string{"upper", "work"} {
		must(l.t, os.MkdirAll(filepath.Join(changes, dir), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s/image,upperdir=%s/upper,workdir=%s/work", l.dir, changes, changes)
	must(l.t, unix.Mount("overlay", l.rootfs("/"), "overlay", 0, options))
	cmd, id := l.command("create", "bundle", c)
	begin := time.Now()
	out, err = l.createAndStart(cmd, id)
	took = time.Since(begin)
	err = errors.Join(err, l.call("delete", "--force", id)) // which waits for the cgroup now and then
	must(l.t, unix.Unmount(l.rootfs("/"), unix.MNT_DETACH))
	return took, out, err
}

// createAndStart starts a container as engines do, and returns what it printed until its end.
// NVIDIA's runtime does nothing for a container that is run by one call.
func (l *lab) createAndStart(create *exec.Cmd, id string) (string, error) {
	l.t.Helper()
	out, in, err := os.Pipe()
	must(l.t, err)
	defer out.Close()
	create.Stdout, create.Stderr = in, in
	err = create.Run()
	in.Close()
	if err == nil {
		err = l.call("start", id)
	}
	text, readErr := io.ReadAll(out)
	return string(text), errors.Join(err, readErr)
}

func (l *lab) call(args ...string) error {
	return exec.Command(l.engine, append([]string{"--root", filepath.Join(l.dir, "state")}, args...)...).Run()
}

// logTimes prints the median of each way, and what it adds to the first.
func logTimes(t *testing.T, ways []*timedWay) {
	t.Helper()
	plain := median(ways[0].times)
	var table strings.Builder
	for _, w := range ways {
		m := median(w.times)
		fmt.Fprintf(&table, "%-34s %6.1f ms, adds %6.1f ms, ratio %.2f\n", w.name, ms(m), ms(m-plain), float64(m)/float64(plain))
	}
	t.Logf("medians of %d starts each\n%s", timedStarts, table.String())
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Clone(times)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

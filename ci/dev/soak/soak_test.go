package soak

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"slipway/ci/dev/tinyboard"
	"slipway/flash"
	"slipway/images"
	"slipway/images/statetest"
	"slipway/layers/run"
)

// asCommand makes this test binary the program whose commands are killed.
const asCommand = "SLIPWAY_SOAK_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) == "" {
		statetest.Main(m)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if args[0] == "layers" {
		args = args[1:]
	}
	spec, err := images.Load(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "checkout":
		return images.CheckoutLayers(ctx, spec, images.Options{Dir: "build"})
	case "flash":
		return flashed(ctx, spec, args[2], args[3])
	}
	return fmt.Errorf("unknown command %q", args)
}

func flashed(ctx context.Context, spec images.Spec, device, yes string) error {
	artifact, err := images.OpenArtifact(filepath.Join("build", spec.Board))
	if err != nil {
		return err
	}
	_, err = flash.WriteAll(ctx, spec, artifact, []string{device}, flash.Options{Yes: []string{strings.TrimPrefix(yes, "--yes=")}, Raw: true})
	return err
}

func options(t *testing.T) Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asCommand, "1")
	return Options{Kills: 10, Seed: rand.Uint64(), Self: []string{self}}
}

// lines writes a soak's output to a test's log.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestLayers(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed (Debian package git)")
	}
	if err := Layers(t.Context(), lines{t}, t.TempDir(), options(t)); err != nil {
		t.Fatal(err)
	}
}

func TestHook(t *testing.T) {
	t.Chdir("../../..") // the hook is built from the clone
	if err := tinyboard.Needs(); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(tinyboard.HostBusybox); err != nil {
		t.Skip("busybox is not installed (Debian package busybox-static)")
	}
	if err := Hook(t.Context(), lines{t}, t.TempDir(), Options{Containers: 10}); err != nil {
		t.Fatal(err)
	}
}

func TestFlash(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
	if _, err := run.LookPath("losetup"); err != nil {
		t.Skip("losetup is not installed (Debian package mount)")
	}
	opt := options(t)
	opt.Kills, opt.MiB = 3, 2*soakedEveryMiB
	if err := Flash(t.Context(), lines{t}, t.TempDir(), opt); err != nil {
		t.Fatal(err)
	}
}

// A device that neither equals the image nor its old content must not have a partition
// table.
func TestCheckDevice(t *testing.T) {
	image, old := soakedImage(1, soakedEveryMiB), soakedImage(0, soakedEveryMiB)
	marked := bytes.Clone(image)
	clear(marked[:1<<20])
	clear(marked[len(marked)-1<<20:])
	beginning, headless := bytes.Clone(old), bytes.Clone(image)
	clear(beginning[:1<<20])
	clear(headless[:1<<20])
	halfOld, halfNew := bytes.Clone(old), bytes.Clone(image)
	clear(halfOld[2<<20 : 3<<20])
	halfNew[4<<20]++
	for _, tt := range []struct {
		name  string
		now   []byte
		ended bool
		ok    bool
	}{
		{"whole", image, true, true},
		{"whole, though it was ended", image, false, true},
		{"as it was", old, false, true},
		{"as it was, though it ended well", old, true, false},
		{"marked", marked, false, true},
		{"marked, though it ended well", marked, true, false},
		{"marked at its beginning alone", beginning, false, true},
		{"marked at its beginning alone, though it ended well", beginning, true, false},
		{"not marked at its end any more", headless, false, true},
		{"the old one, damaged", halfOld, false, false},
		{"the new one, damaged", halfNew, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			device := filepath.Join(t.TempDir(), "device")
			if err := os.WriteFile(device, tt.now, 0o600); err != nil {
				t.Fatal(err)
			}
			s := soakedFlash{device: device, now: image}
			if state, err := s.checkDevice(old, tt.ended); (err == nil) != tt.ok {
				t.Errorf("checkDevice = %q, %v; want success: %v", state, err, tt.ok)
			}
		})
	}
}

// Kill reports a job that leaves a wrong result only after a kill.
func TestKillNoticesADifference(t *testing.T) {
	dir := t.TempDir()
	script := `[ -e begun ] && echo broken > result; echo x > begun; sleep 0.2; [ -e result ] || echo whole > result; rm begun`
	job := Job{
		Argv: []string{"sh", "-c", script}, Dir: dir,
		Begin: func(context.Context, int) error { return os.RemoveAll(filepath.Join(dir, "result")) },
		State: func(context.Context, int) (string, error) {
			data, err := os.ReadFile(filepath.Join(dir, "result"))
			return string(data), err
		},
	}
	err := Kill(t.Context(), lines{t}, job, 1, Options{Kills: 10, Seed: 1})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Kill = %v; want it to show the broken result", err)
	}
}

// A stopped run continues where it was: a fault that was found is not tried again until an
// input of its verdict changes. A fault that nothing found is tried each time.
func TestMutationsAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak", "verdicts.json")
	for _, tt := range []struct{ name, digest, caught, want string }{
		{"a", "1", "x", "x"},
		{"a", "1", "y", "x"},
		{"b", "1", "", ""},
		{"b", "1", "y", "y"},
		{"a", "2", "", ""},
		{"a", "2", "z", "z"},
		{"a", "2", "", "z"},
		{"b", "1", "z", "y"},
	} {
		tried := false
		v, kept, err := verdictOf(t.Context(), file, tt.name, tt.digest, func() (string, string, error) {
			tried = true
			return tt.caught, "", nil
		})
		if err != nil || v.Caught != tt.want || tried == kept {
			t.Errorf("%v: caught by %q, %v; tried: %v, kept: %v", tt, v.Caught, err, tried, kept)
		}
	}
	none := func() (string, string, error) { return "", "", nil }
	if _, _, err := verdictOf(t.Context(), file, "slow", "1", func() (string, string, error) {
		_, _, err := verdictOf(t.Context(), file, "of another rig", "1", func() (string, string, error) { return "x", "", nil })
		return "x", "", err
	}); err != nil {
		t.Error(err)
	}
	if _, kept, err := verdictOf(t.Context(), file, "of another rig", "1", none); err != nil || !kept {
		t.Errorf("a verdict of another run at the same time is lost; %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	if _, _, err := verdictOf(ctx, file, "a", "3", func() (string, string, error) { stop(); return "x", "", nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("a stopped run: %v", err)
	}
	if v, kept, err := verdictOf(t.Context(), file, "a", "3", func() (string, string, error) { return "y", "", nil }); err != nil || kept || v.Caught != "y" {
		t.Errorf("after a stopped run: %v, %v, %v", v, kept, err)
	}
}

// A fault is tried again when its patch, the rig, the suite or the checks' source changes.
func TestMutationsDigest(t *testing.T) {
	t.Chdir(t.TempDir())
	spec, layers, script, change := images.Spec{Suites: []string{"suite"}}, []string{"drivers-1"}, "make", "a"
	write := func(file, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]string{}
	for _, tt := range []struct {
		name   string
		change func()
	}{
		{"nothing", func() {}},
		{"a check", func() { write("ci/check_flow.go", "1") }},
		{"the rig's code", func() { write("ci/rig/rig.go", "1") }},
		{"the suite", func() { write("ci/suite/suites/suite.yml", "1") }},
		{"the suite again", func() { write("ci/suite/suites/suite.yml", "2") }},
		{"the workload", func() { write("ci/suite/workloads/suite/suite.yml", "1") }},
		{"the board", func() { spec.Board = "b" }},
		{"the driver", func() { layers[0] = "drivers-2" }},
		{"the script", func() { script = "make again" }},
		{"the patch", func() { change = "b" }},
	} {
		tt.change()
		all, err := verdictInputs(spec, layers, script)
		digest := (&mutationRig{inputs: all}).inputDigest([]byte(change))
		if other, found := seen[digest]; found || err != nil {
			t.Errorf("%s: the digest is that of %q; %v", tt.name, other, err)
		}
		seen[digest] = tt.name
	}
	all, err := verdictInputs(spec, layers, script)
	write("ci/suite/suites/other.yml", "1")
	write("ci/suite/workloads/other/suite.yml", "1")
	write("ci/check_flow_test.go", "1")
	if again, _ := verdictInputs(spec, layers, script); err != nil || !bytes.Equal(again, all) {
		t.Errorf("another suite, or a test, changes the digest; %v", err)
	}
}

// The files of two builds are the same if only times and the initramfs differ.
func TestWriteArchived(t *testing.T) {
	list := func(at int64, files map[string]string) string {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: time.Unix(at, 0)}), write(w, files[name])); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := writeArchived(&out, &archive); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	first := list(1, map[string]string{"./boot/initrd.img-6": "a", "./etc/os-release": "one"})
	if again := list(2, map[string]string{"./boot/initrd.img-6": "bc", "./etc/os-release": "one"}); again != first || strings.Count(first, "\n") != 2 {
		t.Errorf("files of another build: %s\nwant %s", again, first)
	}
	if other := list(1, map[string]string{"./boot/initrd.img-6": "a", "./etc/os-release": "two"}); other == first {
		t.Errorf("another /etc/os-release gives the same lines: %s", other)
	}
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// A job of GitLab has the keys of what it extends, and a later one's replace those before.
func TestJobThatExtends(t *testing.T) {
	var jobs map[string]yaml.Node
	const text = "a: {stage: one, variables: {X: 1, Y: 1}, before_script: [a], script: [a]}\nb: {before_script: [b]}\nc: {extends: [a, b], variables: {Y: 2}}\nd: {extends: c, script: [d, e]}\nbad: {extends: none}\n"
	if err := yaml.Load([]byte(text), &jobs); err != nil {
		t.Fatal(err)
	}
	var job gitLabJob
	want := gitLabJob{Variables: map[string]string{"X": "1", "Y": "2"}, Before: []string{"b"}, Script: []string{"d", "e"}}
	if err := resolveJob("d", jobs, &job); err != nil || !reflect.DeepEqual(job, want) {
		t.Errorf("job d = %+v, %v; want %+v", job, err, want)
	}
	if err := resolveJob("bad", jobs, &job); err == nil || err.Error() != "the file has no none" {
		t.Errorf("a job that extends none: %v", err)
	}
}

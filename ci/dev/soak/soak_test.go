package soak

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash"
	"slipway/images"
	"slipway/images/builder"
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
		return builder.CheckoutLayers(ctx, spec, images.Options{Dir: "build"})
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
	return Options{Kills: 10, HubOptions: HubOptions{Seed: rand.Uint64()}, Self: []string{self}}
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
	if os.Geteuid() != 0 {
		t.Skip("needs root, for containers")
	}
	for _, program := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("runc or busybox is not installed: apt-get install runc busybox-static")
		}
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
	opt.Kills = 3
	if err := Flash(t.Context(), lines{t}, t.TempDir(), opt); err != nil {
		t.Fatal(err)
	}
}

// A device that neither equals the image nor its old content must not have a partition table.
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
			s := soakedFlash{device: device, now: image, before: old}
			if state, err := s.checkDevice(tt.ended); (err == nil) != tt.ok {
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
		State: func(context.Context) (string, error) {
			data, err := os.ReadFile(filepath.Join(dir, "result"))
			return string(data), err
		},
	}
	err := Kill(t.Context(), lines{t}, job, 1, Options{Kills: 10, HubOptions: HubOptions{Seed: 1}})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Kill = %v; want it to show the broken result", err)
	}
}

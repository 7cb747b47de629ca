package ci

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/images"
)

// A whole update on the virtual board. Its own RAUC fetches the few missing blocks of a bundle
// of the running system, and writes the bundle to the other slot. That slot is booted, passes
// its checks and is marked good. Then come systems that must not stay. "soak update" cuts the
// connection and the power.
func TestUpdateOfVirtualBoard(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" {
		t.Skip("takes 15 minutes of an idle machine: SLIPWAY_LONG=1 and -timeout=1h")
	}
	for _, name := range []string{"RAUC_KEYRING_FILE", "RAUC_KEY_FILE", "RAUC_CERT_FILE"} {
		t.Setenv(name, "") // the development key is used
	}
	r := newVirtualBuild(t, "whole")
	r.opt.Keep = true
	if _, err := Up(t.Context(), r.spec, r.opt); err != nil {
		t.Error(err)
	}
	defer func() {
		if err := StopVirtual(context.Background(), io.Discard, r.opt.Build, r.spec, true); err != nil {
			t.Error(err)
		}
	}()
	build := r.opt.Build
	build.Request.Targets = []string{images.Bundle}
	a, err := Build(t.Context(), io.Discard, r.spec, build)
	if err != nil {
		t.Fatal(err)
	}
	f, err := a.File(images.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Update(t.Context(), r.opt.Build, r.spec, r.spec.Board, a.Path(f), UpdateOptions{Out: io.Discard})
	if err != nil || got.System != NewSystem || !got.Committed || got.Slot != "rootfs.1" {
		t.Errorf("Update = %s (%+v), %v; want the new system in rootfs.1, and it stays", got, got.Report.Stages, err)
	}
	if got.Delivery != "streamed" || got.SentBytes == 0 || got.SentBytes > f.SizeBytes/5 {
		t.Errorf("%d of %d bytes were %s; want a fifth at most, streamed", got.SentBytes, f.SizeBytes, got.Delivery)
	}
	r.runOnBoard(t, "grep", "-q", "rauc.slot=B", "/proc/cmdline")
	for _, c := range brokenSystems {
		t.Run(c.name, func(t *testing.T) {
			build, bundle := r.opt.Build, filepath.Join(t.TempDir(), "broken.raucb")
			if c.name == otherSigner {
				build.Dir = t.TempDir() // with a key of its own
			}
			if _, err := BuildBundle(t.Context(), io.Discard, c.change(r.spec), build, bundle); err != nil {
				t.Fatal(err)
			}
			got, err := Update(t.Context(), r.opt.Build, r.spec, r.spec.Board, bundle, UpdateOptions{Out: io.Discard, Downgrade: true})
			if err == nil || got.System != OldSystem || got.Committed || !strings.Contains(err.Error(), c.why) {
				t.Errorf("Update = %s (%+v), %v; want the old system, and %q", got, got.Report.Stages, err, c.why)
			}
			r.runOnBoard(t, "grep", "-q", "rauc.slot=B", "/proc/cmdline")
		})
	}
}

const otherSigner = "of another signer"

// brokenSystems are systems that an update must refuse, or roll back, and what it must say.
var brokenSystems = []struct {
	name, why string
	change    func(images.Spec) images.Spec
}{
	{"without a kernel", "the boot loader went back to the old one", func(s images.Spec) images.Spec {
		return changeDebian(s, func(d *images.Debian) { d.Remove = append(slices.Clone(d.Remove), "vmlinuz", "boot/vmlinuz-*") })
	}},
	{"without an init", "the boot loader went back to the old one", func(s images.Spec) images.Spec {
		return changeDebian(s, func(d *images.Debian) { d.Remove = append(slices.Clone(d.Remove), "usr/lib/systemd/systemd") })
	}},
	{"with a failing suite", "failed", func(s images.Spec) images.Spec {
		s = s.WithFile("overlay/usr/lib/systemd/system/fails.service", "[Service]\nType=oneshot\nExecStart=false\n")
		return changeDebian(s, func(d *images.Debian) { d.Enable = append(slices.Clone(d.Enable), "fails.service") })
	}},
	{otherSigner, "signature", func(s images.Spec) images.Spec { return s }},
	{"for another board", "compatible", func(s images.Spec) images.Spec {
		const manifest = "bundle/manifest.raucm"
		text, _ := s.File(manifest) // a board with a keyring has one
		return s.WithFile(manifest, strings.Replace(string(text), "compatible=", "compatible=not-", 1))
	}},
}

func changeDebian(s images.Spec, change func(*images.Debian)) images.Spec {
	debian := *s.Debian
	change(&debian)
	s.Debian = &debian
	return s
}

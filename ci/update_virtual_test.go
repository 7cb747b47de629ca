package ci

import (
	"context"
	"io"
	"os"
	"testing"

	"slipway/images"
)

// A whole update on the virtual board. Its own RAUC fetches the few missing blocks of a bundle
// of the running system, and writes the bundle to the other slot. That slot is booted, passes
// its checks and is marked good. "soak update" is the long form.
func TestUpdateOfVirtualBoard(t *testing.T) {
	if os.Getenv("SLIPWAY_LONG") == "" {
		t.Skip("takes 3 minutes of an idle machine: SLIPWAY_LONG=1")
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
	a, err := images.Build(t.Context(), r.spec, build)
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
}

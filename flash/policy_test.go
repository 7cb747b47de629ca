package flash

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"slipway/images"
)

// An artifact that the board's policy admits is written. From then on an older one is refused.
func TestPolicyOfBoard(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	ann := newPerson(t, "ann")
	strict := images.Spec{Board: spec.Board, Flash: spec.Flash}.WithFile("release/signers", string(read(t, ann.list)))
	strict.Policy = &images.Policy{Signers: "release/signers", Newest: true}
	build := func(built time.Time) images.Artifact {
		a := artifact(t)
		a.Built = built
		if err := a.Save(a.Dir()); err != nil {
			t.Fatal(err)
		}
		ann.sign(t, filepath.Join(a.Dir(), images.ArtifactName))
		return a
	}
	now := time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC)
	before, after := build(now.Add(-time.Second)), build(now)
	disk := func() string { return filepath.Join(t.TempDir(), "disk.img") }
	if _, err := Write(t.Context(), strict, before, disk(), Options{DryRun: true}); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	p, err := Prepare(t.Context(), strict, after, t.TempDir(), Options{DryRun: true}) // it records nothing, so that the earlier one is written
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	for _, a := range []images.Artifact{before, after, after} { // the same may be written again
		var out strings.Builder
		to := disk()
		receipt, err := Write(t.Context(), strict, a, to, Options{Out: &out})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "virtual disk", read(t, to), image(t, a))
		if len(receipt.SignedBy) != 1 || !strings.HasPrefix(receipt.SignedBy[0], "ann (") || !strings.Contains(out.String(), "The policy of ") {
			t.Errorf("signed by %q:\n%s", receipt.SignedBy, out.String())
		}
	}
	to := disk()
	_, err = Write(t.Context(), strict, before, to, Options{})
	refused(t, to, err, "it was built 2026-11-28 01:02:02, and this machine has written a build of 2026-11-28 01:02:03")
	_, err = Write(t.Context(), strict, after, to, Options{Image: filepath.Join(after.Dir(), "disk.img")})
	refused(t, to, err, "is only an image")
	after.Key = "changed since it was read"
	_, err = Write(t.Context(), strict, after, to, Options{})
	refused(t, to, err, "changed while it was read")
}

package rshim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/flash/flashtest"
)

func TestShow(t *testing.T) {
	d := &flashtest.DPU{SaidOld: flashtest.Boots}
	dir := flashtest.MountDPUs(t, d)[0]
	var out strings.Builder
	if err := Show(t.Context(), &out, []string{dir}, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{dir + "\n", "  DEV_INFO         BlueField-2(Rev 1)\n", "  | INFO[MISC]: DPU is ready\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("shown is %q; want %q in it", out.String(), want)
		}
	}
	out.Reset()
	var all []dpuStatus
	if err := Show(t.Context(), &out, []string{dir}, true); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &all); err != nil || len(all) != 1 || all[0].Name != "pcie-0000:03:00.2" || !slices.Equal(all[0].Log, flashtest.Boots) {
		t.Errorf("shown as JSON, %v: %s", err, out.String())
	}
	if level, clear := d.Settings(); level != "0" || clear != "0" || d.Resets() != 0 {
		t.Errorf("the driver is left with DISPLAY_LEVEL %s, CLEAR_ON_READ %s, %d resets; want 0, 0, 0", level, clear, d.Resets())
	}
	if err := Show(t.Context(), io.Discard, []string{dir + "9"}, false); err == nil {
		t.Error("an rshim that is not there is shown")
	}
	for name, want := range map[string]string{"foo": "foo: no such device", dir + "9": dir + "9: no such device"} {
		if err := Show(t.Context(), io.Discard, []string{name}, false); err == nil || strings.Count(err.Error(), name) != 1 || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Show = %v; want the name once", err)
		}
	}
}

func TestRestart(t *testing.T) {
	d, locked := &flashtest.DPU{}, &flashtest.DPU{Mode: "DPU mode", Locked: true}
	dirs := flashtest.MountDPUs(t, d, locked)
	for _, test := range []struct {
		dir, yes, typed, wantErr string
		resets                   int
	}{
		{dirs[0], "", "", `confirmed as ""`, 0},
		{dirs[0], "", "yes\n", `confirmed as "yes"`, 0},
		{dirs[0], "another", dirs[0] + "\n", `confirmed as "another"`, 0},
		{dirs[0], dirs[0], "", "", 1},
		{dirs[0], "", dirs[0] + "\n", "", 2},
		{dirs[1], dirs[1], "", "locked", 2},
	} {
		err := Restart(t.Context(), strings.NewReader(test.typed), io.Discard, test.dir, test.yes)
		if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
			t.Errorf("Restart(%s, yes %q), typed %q = %v; want %q", test.dir, test.yes, test.typed, err, test.wantErr)
		}
		if d.Resets() != test.resets {
			t.Errorf("after yes %q, typed %q, %d resets; want %d", test.yes, test.typed, d.Resets(), test.resets)
		}
	}
	if locked.Resets() != 0 {
		t.Error("the locked DPU was reset")
	}
}

// TestRestartEnds breaks the question off, as a Ctrl-C does.
func TestRestartEnds(t *testing.T) {
	d := &flashtest.DPU{}
	dir := flashtest.MountDPUs(t, d)[0]
	in, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("Ctrl-C")
	ended := make(chan error, 1)
	go func() {
		ended <- Restart(ctx, in, writerFunc(func(p []byte) (int, error) {
			if strings.Contains(string(p), "to go on") {
				cancel(stop)
			}
			return len(p), nil
		}), dir, "")
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, stop) || d.Resets() != 0 {
			t.Errorf("error %v, %d resets; want %v, 0", err, d.Resets(), stop)
		}
	case <-time.After(time.Minute):
		t.Error("it still waits for an answer")
	}
}

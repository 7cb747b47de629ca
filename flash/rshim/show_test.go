package rshim

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

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

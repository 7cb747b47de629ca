package update

import (
	"testing"

	"github.com/godbus/dbus/v5"
)

// The first answer is from RAUC 1.13 on the virtual board. A hostile board could send the others.
func TestParseClaims(t *testing.T) {
	group := func(fields map[string]dbus.Variant) map[string]dbus.Variant {
		return map[string]dbus.Variant{"update": dbus.MakeVariant(fields)}
	}
	for _, tt := range []struct {
		name string
		info map[string]dbus.Variant
		want Claims
	}{
		{"RAUC's", group(map[string]dbus.Variant{"compatible": dbus.MakeVariant("slipway-virt"), "version": dbus.MakeVariant("2+a")}), Claims{Compatible: "slipway-virt", Version: "2+a"}},
		{"nothing", nil, Claims{}},
		{"no group", map[string]dbus.Variant{"update": dbus.MakeVariant("text")}, Claims{}},
		{"no text", group(map[string]dbus.Variant{"compatible": dbus.MakeVariant(7)}), Claims{}},
		{"two lines", group(map[string]dbus.Variant{"version": dbus.MakeVariant("1\x1b[2J\n2")}), Claims{Version: "1[2J 2"}},
	} {
		if got := parseClaims(tt.info); got != tt.want {
			t.Errorf("%s: %+v; want %+v", tt.name, got, tt.want)
		}
	}
}

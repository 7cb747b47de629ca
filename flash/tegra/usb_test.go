package tegra

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bus is a sysfs of USB devices that a test lays out.
type bus struct {
	t   *testing.T
	sys string
}

func newBus(t *testing.T) bus { return bus{t, t.TempDir()} }

func (b bus) set(port, name, value string) {
	b.t.Helper()
	path := filepath.Join(b.sys, "bus/usb/devices", port, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b bus) plug(port, vendor, product, devnum string) {
	b.t.Helper()
	b.set(port, "idVendor", vendor)
	b.set(port, "idProduct", product)
	b.set(port, "devnum", devnum)
	b.set(port, "speed", "480")
}

func TestListFindsJetsonsInRecoveryMode(t *testing.T) {
	b := newBus(t)
	b.plug("usb1", "1d6b", "0002", "1")
	b.plug("1-2.3", nvidiaVendor, "7523", "12")
	b.plug("1-4", nvidiaVendor, "7045", "13") // a board's debug chip
	b.plug("1-5", "0781", "5581", "14")
	b.plug("2-1", nvidiaVendor, "7026", "3")
	b.set("1-2.3:1.0", "bInterfaceClass", "ff")
	got, err := List(b.sys)
	if err != nil || len(got) != 2 {
		t.Fatalf("List = %v, %v; want two Jetsons", got, err)
	}
	want := Recovery{Port: "1-2.3", Product: "7523", Chip: "t234", Module: "Jetson Orin Nano 8GB", Number: 12, Mbit: 480}
	if got[0] != want {
		t.Errorf("List()[0] = %+v; want %+v", got[0], want)
	}
	if got[1].Chip != "t264" || got[1].Port != "2-1" {
		t.Errorf("List()[1] = %+v; want the Thor on 2-1", got[1])
	}
	if got, err := List(t.TempDir()); err != nil || got != nil {
		t.Errorf("List without USB = %v, %v; want none", got, err)
	}
}

func TestAtSaysWhatIsThereInstead(t *testing.T) {
	b := newBus(t)
	b.plug("1-1", nvidiaVendor, "7020", "2")
	b.plug("1-2", nvidiaVendor, "7045", "3")
	b.plug("1-3", "0781", "5581", "4")
	b.set("1-3", "product", "Ultra\x1b[2J Fit")
	b.plug("1-4", nvidiaVendor, "7e19", "5")
	tests := []struct{ port, want string }{
		{"1-1", "runs its Linux"},
		{"1-2", "debug chip"},
		{"1-3", "0781:5581 Ultra[2J Fit is no Jetson"},
		{"1-9", "nothing is connected there"},
		{"../../etc", "is no USB port"},
		{"1-4/..", "is no USB port"},
		{"usb1", "is no USB port"},
		{"", "is no USB port"},
	}
	for _, tt := range tests {
		if _, err := At(b.sys, tt.port); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("At(%q) = %v; want an error with %q", tt.port, err, tt.want)
		}
	}
	if r, err := At(b.sys, "1-4"); err != nil || r.Chip != "t194" {
		t.Errorf("At(1-4) = %+v, %v; want a Xavier NX", r, err)
	}
}

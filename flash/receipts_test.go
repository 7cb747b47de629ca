package flash

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/images"
	"slipway/layers/host"
)

// errorsByDevice returns the errors of the receipts in the state folder.
func errorsByDevice(t *testing.T, a images.Artifact) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, r := range keptReceipts(t, a) {
		all[r.Device.Path] = r.Error
	}
	return all
}

// A receipt stays until the next flash of its device has written something, also of one that a
// second process made meanwhile. While a device is written, its receipt says so.
func TestReceiptsStay(t *testing.T) {
	a := little(t)
	good, _ := flashtest.Loop(t, littleDevice)
	bad, _ := flashtest.Loop(t, littleDevice)
	other := filepath.Join(t.TempDir(), "disk.img")
	write := func(o Options, devices ...string) error {
		o.Yes = devices
		_, err := WriteAll(t.Context(), spec, a, devices, o)
		return err
	}
	if err := errors.Join(write(Options{}, good, bad), write(Options{}, other)); err != nil {
		t.Fatal(err)
	}
	same := func(when, wantBad string) {
		t.Helper()
		all := errorsByDevice(t, a)
		if len(all) != 3 || all[good] != "" || all[other] != "" || !strings.Contains(all[bad], wantBad) || (wantBad == "") != (all[bad] == "") {
			t.Errorf("%s: receipts %q; want three, of which %s has the error %q", when, all, bad, wantBad)
		}
	}
	same("whole", "")

	small, _ := flashtest.Loop(t, littleImage-512)
	if err := write(Options{}, bad, small); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	same("refused", "")

	held, err := os.OpenFile(bad, os.O_RDWR|os.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = write(Options{}, bad)
	held.Close()
	if err == nil {
		t.Fatal("WriteAll wrote a device that another program has open")
	}
	same("in use", "")

	r := request{devices: []device.Device{{Path: bad, Kind: device.Block, Bus: "loop"}}, state: stateOf(t, a)}
	failed := func() ([]Receipt, error) {
		same("at work", errNotEnded.Error())
		if err := write(Options{}, good); err != nil {
			t.Error(err)
		}
		return r.splitFailed([]Receipt{{Device: r.devices[0]}}, []error{withKind(context.Background(), ErrDevice, errors.New("it is full"))})
	}
	if _, err := r.recordReceipts(failed); err == nil {
		t.Error("recordReceipts = nil; want the device's error")
	}
	same("failed", "it is full")

	r.devices[0].Serial = "1"
	flashes := func(saved []string, err error) []Receipt {
		all, _ := r.recordReceipts(func() ([]Receipt, error) {
			return r.splitFailed([]Receipt{{Device: r.devices[0], Saved: saved}}, []error{err})
		})
		return all
	}
	flashes([]string{"at-0.bin"}, errors.New("interrupted"))
	flashes(nil, errors.New("interrupted again"))
	for _, want := range [][]string{{"at-0.bin"}, nil} {
		if all := flashes(nil, nil); len(all) != 1 || !slices.Equal(all[0].Saved, want) {
			t.Errorf("receipts %+v; want that of a whole device with %q saved", all, want)
		}
	}
}

// Over the limit the oldest receipts go. A file that is not Slipway's stops the flash before it
// writes.
func TestReceiptsHaveALimit(t *testing.T) {
	dir := t.TempDir()
	for i := range keepReceipts + 3 {
		r := Receipt{Device: device.Device{Path: string(rune('a' + i)), Kind: device.File}}
		if err := changeReceipts(dir, func(all []Receipt) []Receipt { return replaceReceipts(all, []Receipt{r}, keepReceipts) }); err != nil {
			t.Fatal(err)
		}
	}
	var kept []Receipt
	if err := changeReceipts(dir, func(all []Receipt) []Receipt { kept = all; return all }); err != nil || len(kept) != keepReceipts || kept[0].Device.Path != "d" {
		t.Errorf("%d receipts, %v; want the last %d", len(kept), err, keepReceipts)
	}
	flashtest.Put(t, images.ReceiptPath(dir), "{")
	called := false
	_, err := request{state: dir}.recordReceipts(func() ([]Receipt, error) { called = true; return nil, nil })
	if err == nil || called || !strings.Contains(err.Error(), "\nnext: mv ") {
		t.Errorf("recordReceipts = %v, work called: %v; want a step, before any work", err, called)
	}
}

// Who reads a receipt's error can type its next step.
func TestReceiptHasTheTypedStep(t *testing.T) {
	before := host.IsCommand
	host.IsCommand = func(word string) bool { return word == "devices" }
	defer func() { host.IsCommand = before }()
	want := "it is small\nnext: " + host.ProgramName() + " devices"
	if got := (Receipt{}).withError(errors.New("it is small\nnext: devices")); got.Error != want {
		t.Errorf("the error is %q; want %q", got.Error, want)
	}
}

package flash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A device that loses or changes what it was given, or ignores being told to
// zero, is found out: the file below the disk is changed behind its back.
func TestVerifyFindsFaultyDevice(t *testing.T) {
	a := artifact(t)
	tests := []struct {
		name    string
		at      int64 // of the byte that changes; negative: none
		head    int64
		wantErr string
	}{
		{name: "sound", at: -1},
		{name: "sound, with a head", at: -1, head: headBytes},
		{name: "data", at: 12*mib + 5, wantErr: "the device is faulty"},
		{name: "last byte of the data", at: 13*mib - 1, wantErr: "the device is faulty"},
		{name: "hole", at: 13*mib + 7, wantErr: "was to be zero"},
		{name: "under the head", at: 5, head: headBytes},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			source := keep(t, filepath.Join(a.Dir(), "disk.img"), 0)
			path := filepath.Join(t.TempDir(), "device")
			if err := os.WriteFile(path, make([]byte, imageSize), 0o600); err != nil {
				t.Fatal(err)
			}
			d := openDisk(keep(t, path, 0))
			defer d.close()
			way := &transfer{
				name: "image", source: source, blocks: mapOf(t, source), to: d,
				head: alignedBuffer(int(test.head)), count: func(int64) {},
			}
			if err := way.write(t.Context()); err != nil {
				t.Fatal(err)
			}
			if test.at >= 0 {
				damage(t, path, test.at)
			}
			if err := d.sync(); err != nil {
				t.Fatal(err)
			}
			err := way.verify(t.Context())
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("verify = %v; want an error with %q", err, test.wantErr)
			}
		})
	}
}

// What was there before must be gone, in pieces of every size and position.
func TestZero(t *testing.T) {
	path := filepath.Join(t.TempDir(), "device")
	want := make([]byte, 3*mib)
	for i := range want {
		want[i] = 0xff
	}
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	d := openDisk(keep(t, path, 0))
	defer d.close()
	for _, span := range [][2]int64{{0, 4096}, {8193, 1}, {9000, 5000}, {mib - 1, mib + 2}, {3*mib - 100, 100}, {50000, 0}} {
		if err := d.zero(t.Context(), span[0], span[1]); err != nil {
			t.Fatal(err)
		}
		clear(want[span[0] : span[0]+span[1]])
	}
	same(t, "device", read(t, path), want)
}

package flash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"slipway/flash/bfb"
	"slipway/flash/device"
	"slipway/flash/flashtest"
	"slipway/flash/rshim"
	"slipway/images"
)

var dpuSpec = images.Spec{Board: "toy", Flash: images.Flash{Kinds: []string{device.Block, device.RShim}, DPU: "BlueField-2"}}

// dpus simulates DPUs as this machine's /dev/rshim0, /dev/rshim1, ...
func dpus(t *testing.T, all ...*flashtest.DPU) []string {
	t.Helper()
	dirs := flashtest.MountDPUs(t, all...)
	dir, limits := rshimDir, dpuLimits
	t.Cleanup(func() { rshimDir, dpuLimits = dir, limits })
	rshimDir = filepath.Dir(dirs[0])
	const long = 10 * time.Minute
	dpuLimits = rshim.Limits{First: long, Silence: long, Firmware: long, All: long, Gone: long, Poll: time.Millisecond}
	names := make([]string, len(dirs))
	for i, dir := range dirs {
		names[i] = filepath.Join("/dev", filepath.Base(dir))
	}
	return names
}

// streamArtifact is an artifact with a boot stream alone.
func streamArtifact(t *testing.T) (images.Artifact, []byte) {
	t.Helper()
	dir := t.TempDir()
	parts, err := bfb.ParseParts("boot-args==" + strings.Repeat("quiet ", 30_000) + ",boot-timeout==3")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "toy.bfb")
	if _, err := bfb.Make(t.Context(), path, bfb.Recipe{Parts: parts}); err != nil {
		t.Fatal(err)
	}
	data := read(t, path)
	sum := sha256.Sum256(data)
	a := images.Artifact{Board: "toy", Key: "0123456789abcdef", Files: []images.File{
		{Kind: images.BFB, Name: "toy.bfb", SizeBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])},
	}}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	a, err = images.OpenArtifact(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a, data
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlashBlueField(t *testing.T) {
	one, two := &flashtest.DPU{Says: flashtest.Installs, SaidOld: flashtest.Boots}, &flashtest.DPU{Says: flashtest.Boots}
	names := dpus(t, one, two)
	a, stream := streamArtifact(t)
	config := writeFile(t, "bf.cfg", "A='b'\n")
	var shown strings.Builder
	receipts, err := WriteAll(t.Context(), dpuSpec, a, names, Options{Yes: names, Config: config, Out: &shown})
	if err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Clone(stream), "A='b'\n"...)
	for i, d := range []*flashtest.DPU{one, two} {
		got, pushes := d.Pushed()
		same(t, names[i], got, want)
		if pushes != 1 || d.Resets() != 1 {
			t.Errorf("%s: %d pushes, %d resets; want 1, 1", names[i], pushes, d.Resets())
		}
	}
	if len(receipts) != 2 || receipts[0].DPU == nil || receipts[0].DPU.Outcome != rshim.Rebooting || receipts[1].DPU.Outcome != rshim.Up ||
		receipts[0].WrittenBytes != int64(len(want)) || receipts[0].ImageSHA256 != a.Files[0].SHA256 || receipts[0].Config == "" || receipts[0].Device.Chip != "BlueField-2(Rev 1)" {
		t.Errorf("receipts are %+v", receipts)
	}
	if log := string(read(t, receipts[0].Logs)); !strings.Contains(log, " INFO[MISC]: NIC firmware update done\n") || strings.Contains(log, "DPU is ready") {
		t.Errorf("the log of %s is\n%s", names[0], log)
	}
	if filepath.Base(receipts[1].Logs) != "rshim1.log" {
		t.Errorf("the log of %s is %s; want rshim1.log", names[1], receipts[1].Logs)
	}
	for _, text := range []string{"/dev/rshim0: rshim, BlueField-2(Rev 1), bus pcie", "toy.bfb for board toy: 2 images", "with " + config, "reset at once"} {
		if !strings.Contains(shown.String(), text) {
			t.Errorf("shown is\n%s\nwant %q in it", shown.String(), text)
		}
	}
	var saved []Receipt
	if err := json.Unmarshal(read(t, receiptOf(t, a)), &saved); err != nil || len(saved) != 2 {
		t.Errorf("the receipt that was kept: %v, %d devices; want 2", err, len(saved))
	}
}

// TestFlashBlueFieldOneFails has the other one finished all the same.
func TestFlashBlueFieldOneFails(t *testing.T) {
	bad := &flashtest.DPU{Says: []string{"INFO[BL2]: start", "ERR[MISC]: CRITICAL ERROR: no disk"}}
	names := dpus(t, bad, &flashtest.DPU{Says: flashtest.Boots})
	a, _ := streamArtifact(t)
	receipts, err := WriteAll(t.Context(), dpuSpec, a, names, Options{Yes: names})
	if err == nil || !strings.Contains(err.Error(), "/dev/rshim0: the DPU says") || !strings.Contains(err.Error(), filepath.Join(stateOf(t, a), "rshim0.log")) || strings.Contains(err.Error(), "/dev/rshim1: the") {
		t.Errorf("error %v; want one of rshim0 alone, with its log", err)
	}
	if len(receipts) != 1 || receipts[0].Device.Path != names[1] {
		t.Errorf("receipts are %+v; want that of %s", receipts, names[1])
	}
}

func TestFlashBlueFieldDryRun(t *testing.T) {
	d := &flashtest.DPU{}
	names := dpus(t, d)
	a, _ := streamArtifact(t)
	var shown strings.Builder
	receipts, err := WriteAll(t.Context(), dpuSpec, a, names, Options{DryRun: true, Out: &shown})
	if err != nil || len(receipts) != 1 || !receipts[0].DryRun || !strings.Contains(shown.String(), "No byte was pushed") {
		t.Errorf("dry run: %+v, %v\n%s", receipts, err, shown.String())
	}
	if level, clear := d.Settings(); d.Resets() != 0 || level != "0" || clear != "0" {
		t.Errorf("a dry run left %d resets, DISPLAY_LEVEL %s, CLEAR_ON_READ %s; want 0, 0, 0", d.Resets(), level, clear)
	}
}

// TestFlashBlueFieldRefuses names every reason for which no DPU is reset.
func TestFlashBlueFieldRefuses(t *testing.T) {
	ordinary := func() *flashtest.DPU { return &flashtest.DPU{Says: flashtest.Boots} }
	damaged := func(t *testing.T, a images.Artifact, change func([]byte) []byte) {
		path := filepath.Join(a.Dir(), "toy.bfb")
		if err := os.WriteFile(path, change(read(t, path)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name    string
		dpu     *flashtest.DPU
		change  func(t *testing.T, a images.Artifact, o *Options)
		wantErr string
	}{
		{"a DPU of another generation", &flashtest.DPU{Mode: "DPU mode"}, nil, "it is a BlueField-3(Rev 1), and board toy is a BlueField-2"},
		{"locked", &flashtest.DPU{Locked: true, Mode: "DPU mode"}, nil, "SECURE_NIC_MODE"},
		{"dropped", &flashtest.DPU{Dropped: true}, nil, "DROP_MODE"},
		{"not there", &flashtest.DPU{AwayFor: 0}, func(_ *testing.T, _ images.Artifact, _ *Options) { rshimDir = filepath.Join(rshimDir, "none") }, "systemctl restart rshim"},
		{"not confirmed", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Yes = nil }, "not confirmed"},
		{"another one confirmed", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Yes = []string{"/dev/rshim1"} }, "--yes names"},
		{"a damaged stream", nil, func(t *testing.T, a images.Artifact, _ *Options) {
			damaged(t, a, func(d []byte) []byte { d[1000] ^= 1; return d })
		}, "the artifact says"},
		{"a stream of another build", nil, func(t *testing.T, a images.Artifact, _ *Options) {
			damaged(t, a, func(d []byte) []byte { return append(d, "A=1\n"...) })
		}, "the artifact says"},
		{"no stream", nil, func(t *testing.T, _ images.Artifact, o *Options) {
			o.Image = writeFile(t, "x.img", strings.Repeat("x", 100))
		}, "it is not that of an image"},
		{"a plain password", nil, func(t *testing.T, _ images.Artifact, o *Options) {
			o.Config = writeFile(t, "bf.cfg", "A=1\nubuntu_PASSWORD=Secret12\n")
		}, "bf.cfg:2: ubuntu_PASSWORD is not a hash"},
		{"a plain password behind the stream", nil, func(t *testing.T, a images.Artifact, o *Options) {
			o.Image = writeFile(t, "x.bfb", string(read(t, filepath.Join(a.Dir(), "toy.bfb")))+"ubuntu_PASSWORD=Secret12\n")
		}, "the bf.cfg in its trailing data, line 1: ubuntu_PASSWORD is not a hash"},
		{"two bf.cfg", nil, func(t *testing.T, a images.Artifact, o *Options) {
			o.Image = writeFile(t, "x.bfb", string(read(t, filepath.Join(a.Dir(), "toy.bfb")))+"A=1\n")
			o.Config = writeFile(t, "bf.cfg", "A=1\n")
		}, "would not be read"},
		{"a bf.cfg without end", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Config = "/dev/zero" }, "/dev/zero is no regular file"},
		{"a bf.cfg that is too large", nil, func(t *testing.T, _ images.Artifact, o *Options) {
			o.Config = filepath.Join(t.TempDir(), "bf.cfg")
			if err := os.WriteFile(o.Config, make([]byte, 128<<10+1), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "larger than 128 KiB"},
		{"no bf.cfg", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Config = "/nonexistent/bf.cfg" }, "no such file"},
		{"a block map", nil, func(t *testing.T, _ images.Artifact, o *Options) { o.BlockMap = writeFile(t, "x.bmap", "") }, "leave --block-map"},
		{"a block map beside an image", nil, func(_ *testing.T, a images.Artifact, o *Options) {
			o.Image, o.BlockMap = filepath.Join(a.Dir(), "toy.bfb"), "x.bmap"
		}, "leave --block-map"},
		{"a wrong digest", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Digest = "sha256:" + strings.Repeat("0", 64) }, "nothing was written"},
		{"a wrong digest of an image", nil, func(_ *testing.T, a images.Artifact, o *Options) {
			o.Image, o.Digest = filepath.Join(a.Dir(), "toy.bfb"), "sha256:"+strings.Repeat("0", 64)
		}, "sha256"},
		{"an identity", nil, func(_ *testing.T, _ images.Artifact, o *Options) { o.Identity = &Identity{} }, "no place for an SSH identity"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := test.dpu
			if d == nil {
				d = ordinary()
			}
			names := dpus(t, d)
			a, _ := streamArtifact(t)
			o := Options{Yes: slices.Clone(names)}
			if test.change != nil {
				test.change(t, a, &o)
				// the artifact as it would be read by a later command
				if again, err := images.OpenArtifact(a.Dir()); err == nil {
					a = again
				}
			}
			_, err := WriteAll(t.Context(), dpuSpec, a, names, o)
			if err == nil || !strings.Contains(err.Error(), test.wantErr) {
				t.Errorf("error %v; want %q", err, test.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "Secret12") {
				t.Errorf("the error shows the password: %v", err)
			}
			if _, clear := d.Settings(); d.Resets() != 0 || clear != "0" {
				t.Errorf("%d resets, CLEAR_ON_READ %s; want a DPU as it was", d.Resets(), clear)
			}
		})
	}
}

// Slipway asks for the DPU before it reads the image, and the exit status says which was wrong.
func TestFlashBlueFieldKinds(t *testing.T) {
	a, _ := streamArtifact(t)
	o := Options{Image: writeFile(t, "raw.img", strings.Repeat("raw", 1000))}
	there := dpus(t, &flashtest.DPU{Says: flashtest.Boots})[0]
	for name, want := range map[string]error{"/dev/rshim9": ErrRefused, there: ErrImage} {
		if _, err := Write(t.Context(), dpuSpec, a, name, o); !errors.Is(err, want) {
			t.Errorf("Write to %s = %v; want %v", name, err, want)
		}
	}
}

// TestFlashBlueFieldChanged has the stream or the DPU be another while somebody is asked.
func TestFlashBlueFieldChanged(t *testing.T) {
	for want, change := range map[string]func(*testing.T, *flashtest.DPU, string){
		"changed since it was proved": func(t *testing.T, _ *flashtest.DPU, path string) {
			if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
		},
		"is BlueField-2(Rev 1) at usb-1.0 now": func(_ *testing.T, d *flashtest.DPU, _ string) { d.Swap("usb-1.0") },
	} {
		d := &flashtest.DPU{Says: flashtest.Boots}
		names := dpus(t, d)
		a, _ := streamArtifact(t)
		_, err := WriteAll(t.Context(), dpuSpec, a, names, Options{Confirm: func([]device.Device) error {
			change(t, d, filepath.Join(a.Dir(), "toy.bfb"))
			return nil
		}})
		if err == nil || !strings.Contains(err.Error(), want) || d.Resets() != 0 {
			t.Errorf("error %v, %d resets; want %q and none", err, d.Resets(), want)
		}
	}
}

// TestFlashBlueFieldTwice has a second flash come while the first one asks.
func TestFlashBlueFieldTwice(t *testing.T) {
	d := &flashtest.DPU{Says: flashtest.Boots}
	names := dpus(t, d)
	a, _ := streamArtifact(t)
	var second error
	_, err := WriteAll(t.Context(), dpuSpec, a, names, Options{Confirm: func([]device.Device) error {
		_, second = WriteAll(t.Context(), dpuSpec, a, names, Options{Yes: names})
		return nil
	}})
	if err != nil || second == nil || !strings.Contains(second.Error(), "wait for it") || d.Resets() != 1 {
		t.Errorf("the first gives %v, the second %v, %d resets; want an error of the second, 1", err, second, d.Resets())
	}
}

func TestFlashBlueFieldEnds(t *testing.T) {
	d := &flashtest.DPU{HangAfter: 65536}
	names := dpus(t, d)
	a, _ := streamArtifact(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-d.Hanging()
		cancel()
	}()
	receipts, err := WriteAll(ctx, dpuSpec, a, names, Options{Yes: names})
	if err == nil || len(receipts) != 0 {
		t.Errorf("a flash that was broken off gives %+v, %v", receipts, err)
	}
}

func TestLogName(t *testing.T) {
	for path, want := range map[string]string{
		"/dev/rshim0": "rshim0.log", "root@10.0.0.7:/dev/rshim1": "root@10.0.0.7-dev-rshim1.log", "ssh://a@[::1]:22:/dev/rshim0": "ssh-a@-1-22-dev-rshim0.log",
	} {
		if got := logName(path); got != want {
			t.Errorf("logName(%s) = %s; want %s", path, got, want)
		}
	}
}

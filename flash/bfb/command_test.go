package bfb

import (
	"encoding/json"
	"io"
	"os/exec"
	"strings"
	"testing"
)

// TestConfigOfOpenSSL makes a bf.cfg as the page says, and reads it as the DPU's installer does.
func TestConfigOfOpenSSL(t *testing.T) {
	for _, program := range []string{"bash", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing (Debian package %[1]s)", program)
		}
	}
	text, err := exec.CommandContext(t.Context(), "sh", "-c", `echo "ubuntu_PASSWORD='$(echo some password | openssl passwd -6 -stdin)'"`).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckConfig(text); err != nil {
		t.Error(err)
	}
	out, err := exec.CommandContext(t.Context(), "bash", "-c", string(text)+`printf %s "$ubuntu_PASSWORD"`).Output()
	if want := strings.TrimSuffix(strings.TrimPrefix(string(text), "ubuntu_PASSWORD='"), "'\n"); err != nil || string(out) != want || !strings.HasPrefix(want, "$6$") {
		t.Errorf("bash reads %q, %v; want %q", out, err, want)
	}
}

func TestFiles(t *testing.T) {
	f := newFolder(t)
	var out strings.Builder
	parts := "bl2=" + f.random("bl2", 77) + ",boot-args-v1==quiet"
	if err := MakeFile(t.Context(), &out, f.path("a.bfb"), Recipe{}, parts); err != nil {
		t.Fatal(err)
	}
	if err := MakeFile(t.Context(), &out, f.path("b.bfb"), Recipe{Bases: []string{f.path("a.bfb")}, Hardware: new(int)}, ""); err != nil {
		t.Fatal(err)
	}
	if err := CheckFile(t.Context(), &out, f.path("b.bfb")); err != nil {
		t.Error(err)
	}
	if err := ExtractFile(t.Context(), &out, f.path("a.bfb"), f.path("x-"), []string{"boot-args-v1"}); err != nil {
		t.Error(err)
	}
	if got := string(f.read("x-boot-args-v1")); got != "quiet" {
		t.Errorf("boot-args are %q; want quiet", got)
	}
	for _, want := range []string{
		"a.bfb: 2 images, 136 bytes\n        77 Trusted Boot Firmware BL2 bin (version 0)\n         5 Arguments for boot image (version 1)\n",
		"b.bfb: 1 images in 104 bytes, all as their headers say\n", f.path("x-boot-args-v1") + "\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q; want %q", out.String(), want)
		}
	}
	var listed Stream
	out.Reset()
	if err := Show(&out, f.path("a.bfb"), true); err != nil || json.Unmarshal([]byte(out.String()), &listed) != nil || len(listed.Images) != 2 {
		t.Errorf("listed as JSON: %v\n%s", err, out.String())
	}
}

func TestOpenRefuses(t *testing.T) {
	f := newFolder(t)
	for path, want := range map[string]string{
		f.path("gone"):            "no such file",
		f.dir:                     "is not a regular file",
		f.random("some.img", 100): "some.img: header at byte 0",
	} {
		if err := Show(io.Discard, path, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Show(%s) gives %v; want %q", path, err, want)
		}
	}
}

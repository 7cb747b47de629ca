package source

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func xzPacked(t testing.TB, p []byte, options ...string) []byte {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("xz is missing; apt-get install xz-utils")
	}
	c := exec.Command("xz", append([]string{"-c"}, options...)...)
	c.Stdin = bytes.NewReader(p)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestXz(t *testing.T) {
	image := slices.Concat(sampleImage(), make([]byte, 33*mib), []byte("end"))
	for _, test := range []struct {
		name     string
		options  []string
		sections int
		parallel int // 64 MiB of dictionaries, none of which is larger than its block
	}{
		{"one block", nil, 1, 8},
		{"blocks", []string{"-T2", "--block-size=3MiB"}, 11, 21}, // two blocks are a section
		{"small blocks", []string{"--block-size=100000"}, 6, 671},
		{"large dictionaries", []string{"-0", "--lzma2=preset=0,dict=64MiB", "--block-size=40MiB"}, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, m, err := unpack(t, writeFile(t, "disk.img.xz", xzPacked(t, image, test.options...)), nil, 1<<40)
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, make([]byte, len(image)-len(got))...); !bytes.Equal(got, image) {
				t.Error("another image came out")
			}
			if m.Form() != "xz" || m.SizeBytes() != int64(len(image)) {
				t.Errorf("it is %s of %d bytes", m.Form(), m.SizeBytes())
			}
			if got := m.Parallel(); got != test.parallel {
				t.Errorf("Parallel() = %d; want %d", got, test.parallel)
			}
			if test.sections > 1 != (len(m.Sections()) > 1) {
				t.Errorf("it has %d sections; want about %d", len(m.Sections()), test.sections)
			}
		})
	}
}

func TestXzOfNothing(t *testing.T) {
	got, m, err := unpack(t, writeFile(t, "disk.img.xz", xzPacked(t, nil)), nil, 1)
	if err != nil || len(got) != 0 || m.SizeBytes() != 0 {
		t.Errorf("%d bytes of %d, %v", len(got), m.SizeBytes(), err)
	}
}

func TestXzCut(t *testing.T) {
	packed := xzPacked(t, sampleImage())
	_, _, err := unpack(t, writeFile(t, "disk.img.xz", packed[:len(packed)-100]), nil, 1<<40)
	if err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("the error is %v; want one with \"cut off\"", err)
	}
}

package fetch

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseSums(t *testing.T) {
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	tests := []struct {
		name, text, file, want, wantErr string
	}{
		{name: "text", text: a + "  disk.img\n" + b + "  other\n", file: "disk.img", want: a},
		{name: "binary", text: b + " *disk.img\n", file: "disk.img", want: b},
		{name: "with folders", text: a + "  ./out/disk.img\n", file: "disk.img", want: a},
		{name: "tagged", text: "SHA256 (disk.img) = " + strings.ToUpper(a) + "\n", file: "disk.img", want: a},
		{name: "the digest alone", text: a + "\n", file: "whatever", want: a},
		{name: "carriage returns", text: a + "  disk.img\r\n", file: "disk.img", want: a},
		{name: "comments", text: "# of today\n\n" + a + "  disk.img\n", file: "disk.img", want: a},
		{name: "not in it", text: a + "  disk.img\n", file: "disk.im"},
		{name: "two for one", text: a + "  x/disk.img\n" + b + "  y/disk.img\n", wantErr: `SHA256SUMS:2: "disk.img" has two digests`},
		{name: "sha1", text: strings.Repeat("0", 40) + "  disk.img\n", wantErr: "SHA256SUMS:1: not a line of sha256sum"},
		{name: "a page", text: "<html>\n", wantErr: "SHA256SUMS:1: not a line"},
		{name: "empty", text: "\n", wantErr: "no digests"},
		{name: "both", text: a + "\n" + a + "  disk.img\n", wantErr: "among others"},
		{name: "long line", text: strings.Repeat("x", 10_000), wantErr: "SHA256SUMS:1:"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sums, err := ParseSums("SHA256SUMS", []byte(test.text))
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("ParseSums = %v; want an error with %q", err, test.wantErr)
				}
				return
			}
			got, ok := sums.Of(test.file)
			if err != nil || got != test.want || ok != (test.want != "") {
				t.Errorf("Of(%q) = %q, %v, %v; want %q", test.file, got, ok, err, test.want)
			}
		})
	}
}

// The real sha256sum writes the list, also of names that it has to escape.
func TestSumsOfSha256sum(t *testing.T) {
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("sha256sum is missing (Debian package coreutils)")
	}
	for _, args := range [][]string{nil, {"--binary"}, {"--tag"}} {
		dir := t.TempDir()
		names := []string{"disk.img", "two words.img", "back\\slash.img", "new\nline.img"}
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sha256sum", append(args, names...)...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		sums, err := ParseSums("SHA256SUMS", out)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if got, ok := sums.Of(name); !ok || got != sumOf([]byte(name)) {
				t.Errorf("sha256sum %v: Of(%q) = %q, %v", args, name, got, ok)
			}
		}
	}
}

func TestParseDigest(t *testing.T) {
	a := strings.Repeat("0a", 32)
	for text, want := range map[string]string{"sha256:" + a: a, "sha256:" + strings.ToUpper(a): a} {
		if got, ok, err := ParseDigest(text); got != want || !ok || err != nil {
			t.Errorf("ParseDigest(%q) = %q, %v, %v", text, got, ok, err)
		}
	}
	for _, text := range []string{"sha256:", "sha256:" + a[1:], "sha512:" + a + a, "md5:00", "sha256:" + a + "0"} {
		if _, ok, err := ParseDigest(text); !ok || err == nil {
			t.Errorf("ParseDigest(%q) = %v, %v; want it refused", text, ok, err)
		}
	}
	for _, text := range []string{"SHA256SUMS", "/x/SHA256SUMS", "https://h/SHA256SUMS", "host:SHA256SUMS"} {
		if _, ok, err := ParseDigest(text); ok || err != nil {
			t.Errorf("ParseDigest(%q) = %v, %v; want a reference", text, ok, err)
		}
	}
}

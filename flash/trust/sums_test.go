package trust

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a list proves, and what sha256sum says of the same list where it can read it.
func TestParseSums(t *testing.T) {
	a, b := fmt.Sprintf("%x", sha256.Sum256([]byte("disk"))), strings.Repeat("0b", 32)
	const elsewhere = "names no digest of disk.img"
	tests := []struct {
		name, text, wantErr string // wantErr "": the list proves disk.img
		mute                bool   // sha256sum is not asked, or says something else on purpose
	}{
		{name: "text", text: a + "  disk.img\n" + b + "  other\n", mute: true},
		{name: "binary", text: a + " *disk.img\n"},
		{name: "this folder", text: a + "  ./disk.img\n"},
		{name: "another folder", text: a + "  out/disk.img\n", wantErr: elsewhere},
		{name: "a folder above", text: a + "  ../../debug/disk.img\n", wantErr: elsewhere},
		{name: "by a folder below", text: a + "  x/../disk.img\n", wantErr: elsewhere},
		{name: "an absolute name", text: a + "  /disk.img\n", wantErr: elsewhere},
		{name: "two in other folders", text: a + "  x/disk.img\n" + b + "  y/disk.img\n", wantErr: elsewhere},
		{name: "of BSD", text: "SHA256 (disk.img) = " + strings.ToUpper(a) + "\n"},
		{name: "of BSD, another folder", text: "SHA256 (debug/disk.img) = " + a + "\n", wantErr: elsewhere},
		{name: "a cut last line", text: a + "  disk.img"},
		{name: "carriage returns", text: a + "  disk.img\r\n"},
		{name: "comments", text: "# of today\n\n" + a + "  disk.img\n"},
		{name: "capitals", text: strings.ToUpper(a) + "  disk.img\n"},
		{name: "the same twice", text: a + "  disk.img\n" + a + "  disk.img\n"},
		{name: "a blank behind the name", text: a + "  disk.img \n", wantErr: elsewhere},
		{name: "a blank before the name", text: a + "   disk.img\n", wantErr: elsewhere},
		{name: "other capitals", text: a + "  Disk.img\n", wantErr: elsewhere},
		{name: "not in it", text: a + "  disk.imgx\n", wantErr: elsewhere},
		{name: "an escape that is none", text: a + "  disk\\.img\n", wantErr: elsewhere},
		{name: "the digest alone", text: a + "\n", wantErr: "a digest without a name, and is not called disk.img.sha256"},
		{name: "two for one", text: a + "  disk.img\n" + b + "  disk.img\n", wantErr: `SHA256SUMS:2: "disk.img" has two digests`},
		{name: "two for one, by this folder", text: b + "  ./disk.img\n" + a + "  disk.img\n", wantErr: `SHA256SUMS:2: "disk.img" has two digests`},
		{name: "two for one, of BSD", text: a + "  disk.img\nSHA256 (disk.img) = " + b + "\n", wantErr: `SHA256SUMS:2: "disk.img" has two digests`},
		{name: "sha1", text: strings.Repeat("0", 40) + "  disk.img\n", wantErr: "SHA256SUMS:1: not a line of sha256sum"},
		{name: "another kind, of BSD", text: "SHA512 (disk.img) = " + a + "\n", wantErr: "SHA256SUMS:1: not a line"},
		{name: "a page", text: "<html>\n", wantErr: "SHA256SUMS:1: not a line"},
		{name: "empty", text: "\n", wantErr: "no digests"},
		{name: "nothing", text: "", wantErr: "no digests"},
		{name: "both", text: a + "\n" + a + "  disk.img\n", wantErr: "among others", mute: true},
		{name: "long line", text: strings.Repeat("x", 10_000), wantErr: "SHA256SUMS:1:"},
		{name: "long name", text: a + "  " + strings.Repeat("x", 10_000), wantErr: "SHA256SUMS:1:"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sums, err := ParseSums("SHA256SUMS", []byte(test.text))
			got := ""
			if err == nil {
				got, err = sums.DigestOf("disk.img")
			}
			if (test.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.wantErr) || err == nil && got != a {
				t.Errorf("Of = %q, %v; want an error with %q", got, err, test.wantErr)
			}
			if !test.mute && proves(t, test.text) != (err == nil) {
				t.Errorf("Of = %v; sha256sum proves disk.img: %v", err, err != nil)
			}
		})
	}
	alone, err := ParseSums("https://example.com/disk.img.sha256?token=x", []byte(a+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := alone.DigestOf("disk.img"); err != nil || got != a {
		t.Errorf("Of = %q, %v; want what its own name says", got, err)
	}
	for _, name := range []string{"disk.im", "other.img", "disk.img.sha256", "debug.img"} {
		if got, err := alone.DigestOf(name); err == nil {
			t.Errorf("Of(%q) = %q; want an error", name, got)
		}
	}
	if got, ok := alone.Named("disk.img"); ok {
		t.Errorf("Named = %q; want nothing", got)
	}
}

// proves reports whether sha256sum accepts the list where disk.img alone is there.
func proves(t *testing.T, list string) bool {
	dir := t.TempDir()
	for name, text := range map[string]string{"disk.img": "disk", "SHA256SUMS": list} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	cmd.Dir = dir
	out, err := cmd.Output()
	return err == nil && strings.Contains(string(out), "disk.img: OK")
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
			if got, err := sums.DigestOf(name); err != nil || got != fmt.Sprintf("%x", sha256.Sum256([]byte(name))) {
				t.Errorf("sha256sum %v: Of(%q) = %q, %v", args, name, got, err)
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

// A list names a file by one digest of its own text.
func FuzzParseSums(f *testing.F) {
	sum := strings.Repeat("0a", 32)
	for _, s := range []string{
		sum + "  disk.img\n", sum + " *a\n" + sum + "  b\n", "SHA256 (a b) = " + sum, sum, `\` + sum + `  a\nb`, "# x\n\n" + sum + "\r\n",
		sum + "  ../a\n", sum + "  a\r\n", sum + "   a\n", "\n", sum + "  ./a\n" + sum + "  a\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSums("SHA256SUMS", data)
		if err != nil {
			return
		}
		for name := range s.byName {
			got, err := s.DigestOf(name)
			if err != nil || !hexPattern().MatchString(got) || !strings.Contains(strings.ToLower(string(data)), got) {
				t.Errorf("ParseSums(%q).DigestOf(%q) = %q, %v", data, name, got, err)
			}
		}
	})
}

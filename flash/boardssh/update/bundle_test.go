package update

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// readVerity returns the signature of a verity bundle from RAUC 1.8, with the manifest in it.
// The key exists no more.
func readVerity(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/verity.cms")
	if err != nil {
		t.Fatal(err)
	}
	data, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func makeBundle(message []byte) []byte {
	data := append([]byte("hsqs squashfs"), message...)
	return binary.BigEndian.AppendUint64(data, uint64(len(message)))
}

func TestOpen(t *testing.T) {
	message := readVerity(t)
	enveloped := append([]byte("0\x80"), envelopedData...)
	for _, tt := range []struct {
		name    string
		data    string
		want    Bundle
		wantErr string
	}{
		{name: "verity", data: string(makeBundle(message)), want: Bundle{Kind: RAUC, Format: "verity", Claims: Claims{"slipway-test", "7.1"}}},
		{name: "empty", wantErr: "not a bundle"},
		{name: "text", data: "A text.", wantErr: "not a bundle"},
		{name: "a squashfs alone", data: "hsqs" + strings.Repeat("x", 2000), wantErr: "cut short or damaged"},
		{name: "its first bytes", data: "hsqs", wantErr: "cut short"},
		{name: "no signature", data: "hsqs" + strings.Repeat("\x00", 2000), wantErr: "a signature of 0 bytes"},
		{name: "cut", data: string(makeBundle(message)[:1000]), wantErr: "cut short or damaged"},
		{name: "a signature longer than the file", data: "hsqs\x00\x00\x00\x00\x00\x00\x10\x00", wantErr: "a signature of 4096 bytes"},
		{name: "something else for a signature", data: string(makeBundle([]byte("signed: me"))), want: Bundle{Kind: RAUC, Format: "plain"}},
		{
			name: "an update of SWUpdate's", data: makeCpio("sw-description", description, "sw-description.sig", string(message), "root.gz", "xyz", trailer, ""),
			want: Bundle{Kind: SWUpdate, Claims: Claims{"", "1.2"}},
		},
		{
			name: "one in JSON, unsigned", data: makeCpio("sw-description", `{"software": {`+"\n"+`"version": "7"}}`, trailer, ""),
			want: Bundle{Kind: SWUpdate, Claims: Claims{"", "7"}},
		},
		{
			name: "one with firmware", data: makeCpio("sw-description", description, "tegra-bl.cap", string(makeCapsule(t, anItem)), trailer, ""),
			want: Bundle{Kind: SWUpdate, Claims: Claims{"", "1.2"}},
		},
		{name: "one with damaged firmware", data: makeCpio("sw-description", description, "tegra-bl.cap", "x", trailer, ""), wantErr: "no capsule"},
		{name: "another archive", data: makeCpio("readme", "text", trailer, ""), wantErr: "sw-description"},
		{name: "an archive without an end", data: makeCpio("sw-description", description), wantErr: "cut short or damaged"},
		{name: "a cut file", data: makeCpio("sw-description", description, "root.gz", strings.Repeat("x", 99))[:400], wantErr: "cut short in root.gz"},
		{name: "a long name", data: "070702" + strings.Repeat("0", 88) + "000FFFFF" + strings.Repeat("0", 8), wantErr: "damaged at byte 0"},
		{name: "a long description", data: makeCpio("sw-description", strings.Repeat("x", maxDescription+1), trailer, ""), wantErr: "more than any"},
		{
			name: "as many files as may be", data: makeCpio("sw-description", description) + strings.Repeat(makeCpio("x", ""), maxEntries-1) + makeCpio(trailer, ""),
			want: Bundle{Kind: SWUpdate, Claims: Claims{Version: "1.2"}},
		},
		{name: "too many files", data: makeCpio("sw-description", description) + strings.Repeat(makeCpio("x", ""), maxEntries) + makeCpio(trailer, ""), wantErr: "more than 1000 files"},
		{name: "encrypted", data: string(makeBundle(enveloped)), wantErr: "is encrypted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(file, []byte(tt.data), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := OpenBundle(t.Context(), file)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || !strings.HasPrefix(err.Error(), file) {
					t.Errorf("OpenBundle() = %v; want the file's name and %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer got.Close()
			tt.want.File, tt.want.SizeBytes, tt.want.SHA256 = file, int64(len(tt.data)), fmt.Sprintf("%x", sha256.Sum256([]byte(tt.data)))
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreUnexported(Bundle{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := OpenBundle(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("OpenBundle(a folder) = %v", err)
	}
}

// makeCpio returns a cpio archive. files are names and contents alternately.
func makeCpio(files ...string) string {
	var b strings.Builder
	for i := 0; i < len(files); i += 2 {
		name, data := files[i]+"\x00", files[i+1]
		fmt.Fprintf(&b, "070702%048X%08X%032X%08X%08X", 0, len(data), 0, len(name), 0)
		b.WriteString(name)
		b.WriteString(strings.Repeat("\x00", (4-b.Len()%4)%4) + data)
		b.WriteString(strings.Repeat("\x00", (4-b.Len()%4)%4))
	}
	return b.String()
}

const (
	trailer     = "TRAILER!!!"
	description = "software =\n{\n\tversion = \"1.2\";\n\tboard = { version_of = \"9\"; };\n};\n"
)

func TestManifestField(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a section with it", "0\x82[update]\ncompatible=a b\nversion=1\n\n[bundle]\nformat=verity\n1\x0b", "1"},
		{"another section's", "[update]\ncompatible=a\n\n[image.rootfs]\nversion=2\n", ""},
		{"an escape", "[update]\nversion=a\x1b[2Jb\n", "a[2Jb"},
		{"no section", "version=1\n", ""},
		{"no pair", "[update]\nversion\n", ""},
	} {
		if got := manifestField([]byte(tt.text), "update", "version"); got != tt.want {
			t.Errorf("%s: %q; want %q", tt.name, got, tt.want)
		}
	}
}

func FuzzBundle(f *testing.F) {
	f.Add(makeBundle(readVerity(f)))
	f.Add([]byte("hsqs"))
	f.Add([]byte(makeCpio("sw-description", description, "tegra-bl.cap", string(makeCapsule(f, anItem)), trailer, "")))
	f.Add(makeBundle([]byte("0")))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBundle(t.Context(), file)
		if err != nil {
			return
		}
		defer b.Close()
		for _, text := range []string{b.Compatible, b.Version, b.Format} {
			if strings.ContainsAny(text, "\x1b\n\r\x00") {
				t.Errorf("%q has control characters", text)
			}
		}
	})
}

func TestIsOlder(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"1", "2", true},
		{"2", "1", false},
		{"1.9", "1.10", true},
		{"1.10", "1.9", false},
		{"1.8", "1.8", false},
		{"1", "1.1", true},
		{"1.0-rc1", "1.0.1", true},
		{"2026.11", "2026.9", false},
		{"v1.2", "v1.3", true},
		{"", "1", false},
		{"1", "", false},
		{"1.2~a", "1.2-a", true},
		{"99999999999999999999", "99999999999999999999", false},
	} {
		if got := isOlder(tt.a, tt.b); got != tt.want {
			t.Errorf("isOlder(%q, %q) = %v; want %v", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestParseFreeSpace(t *testing.T) {
	got := parseFreeSpace("/data /dev/vda5 487652 1234 456789 1% /data\n/tmp tmpfs 1 2 nonsense 1% /tmp\nshort line\n/run none 1 1 -5 1% /run\n")
	if diff := cmp.Diff(map[string]int64{"/data": 456789 << 10}, got); diff != "" {
		t.Error(diff)
	}
}

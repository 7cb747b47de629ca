package sbom

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

const check = `{"version":"1","package":[
 {"name":"openssl","layer":"meta","version":"3.2.6","products":[{"product":"openssl","cvesInRecord":"Yes"}],"issue":[
  {"id":"CVE-2026-0001","summary":"s","scorev2":"0.0","scorev3":"7.5","scorev4":"0.0","vector":"NETWORK","status":"Unpatched","link":"l"},
  {"id":"CVE-2025-9230","scorev2":"0.0","scorev3":9.1,"status":"Patched","detail":"fixed-version"},
  {"id":"CVE-2024-0727","scorev2":"0.0","scorev3":"5.5","status":"Ignored","detail":"not-applicable-config","description":"only with FIPS"}]},
 {"name":"zlib","version":"1.3.1","issue":[]}]}`

const cycloneDX = `{"bomFormat":"CycloneDX","specVersion":"1.6","version":1,
 "components":[
  {"type":"library","bom-ref":"a","name":"busybox","version":"1:1.35.0-4","licenses":[{"license":{"id":"GPL-2.0-only"}}]},
  {"type":"library","bom-ref":"b","name":"libc6","version":"2.36","licenses":[{"expression":"LGPL-2.1-or-later OR MIT"}]}],
 "vulnerabilities":[
  {"id":"CVE-2023-1","ratings":[{"score":4.0},{"score":9.8}],"affects":[{"ref":"b"}]},
  {"id":"CVE-2023-2","analysis":{"state":"not_affected","detail":"not built"},"affects":[{"ref":"b"}]},
  {"id":"CVE-2023-3","analysis":{"state":"resolved"},"affects":[{"ref":"a"}]}]}`

// The two files of testdata are what OpenEmbedded's own modules write: oe.spdx of scarthgap,
// and oe.spdx30 of master.
func TestRead(t *testing.T) {
	for _, tt := range []struct {
		file, text string
		want       Bill
	}{
		{file: "testdata/image.spdx2.tar.zst", want: Bill{
			Forms:    []string{"SPDX 2.2"},
			Packages: []Package{{Name: "busybox", Version: "1.36.1", Licence: "GPL-2.0-only AND bzip2-1.0.4"}, {Name: "libssl3", Version: "3.2.6", Licence: "Apache-2.0"}, {Name: "zlib", Version: "1.3.1", Licence: "Zlib"}},
		}},
		{file: "testdata/image.spdx3.json", want: Bill{
			Forms: []string{"SPDX 3.0.1"}, Checked: true,
			Packages: []Package{{Name: "busybox", Version: "1.37.0", Licence: "GPL-2.0-only AND bzip2-1.0.4"}, {Name: "libssl3", Version: "3.5.4", Licence: "Apache-2.0"}, {Name: "zlib", Version: "1.3.1", Licence: "Zlib"}},
			Flaws: []Flaw{
				{ID: "CVE-2025-46394", Package: "busybox", Version: "1.37.0", State: Fixed},
				{ID: "CVE-2026-0001", Package: "libssl3", Version: "3.5.4", State: Open},
				{ID: "CVE-2023-45853", Package: "zlib", Version: "1.3.1", State: Ignored, Why: "minizip is not built"},
			},
		}},
		{text: check, want: Bill{
			Forms: []string{"Yocto's CVE check 1"}, Checked: true,
			Flaws: []Flaw{
				{ID: "CVE-2024-0727", Package: "openssl", Version: "3.2.6", State: Ignored, Score: 5.5, Why: "only with FIPS"},
				{ID: "CVE-2025-9230", Package: "openssl", Version: "3.2.6", State: Fixed, Score: 9.1, Why: "fixed-version"},
				{ID: "CVE-2026-0001", Package: "openssl", Version: "3.2.6", State: Open, Score: 7.5},
			},
		}},
		{text: cycloneDX, want: Bill{
			Forms: []string{"CycloneDX 1.6"}, Checked: true,
			Packages: []Package{{Name: "busybox", Version: "1:1.35.0-4", Licence: "GPL-2.0-only"}, {Name: "libc6", Version: "2.36", Licence: "LGPL-2.1-or-later OR MIT"}},
			Flaws: []Flaw{
				{ID: "CVE-2023-3", Package: "busybox", Version: "1:1.35.0-4", State: Fixed},
				{ID: "CVE-2023-1", Package: "libc6", Version: "2.36", State: Open, Score: 9.8},
				{ID: "CVE-2023-2", Package: "libc6", Version: "2.36", State: Ignored, Why: "not built"},
			},
		}},
		{text: "Package: libc6\nSource: glibc\nStatus: install ok installed\nVersion: 2.36\nDescription: a: b\n Package: no\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n\nPackage: zlib1g\nStatus: hold ok installed\nVersion: 1:1.2\n", want: Bill{
			Forms: []string{"dpkg status"}, Packages: []Package{
				{Name: "libc6", Version: "2.36", Source: "glibc", SourceVersion: "2.36"}, {Name: "zlib1g", Version: "1:1.2", Source: "zlib1g", SourceVersion: "1:1.2"},
			},
		}},
		{text: `{"spdxVersion":"SPDX-2.3","name":"x","packages":[{"SPDXID":"SPDXRef-image","name":"image"},
			{"SPDXID":"SPDXRef-a","name":"a","versionInfo":"1","licenseConcluded":"NOASSERTION","licenseDeclared":"MIT"}],
			"relationships":[{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-image"}]}`, want: Bill{
			Forms: []string{"SPDX 2.3"}, Packages: []Package{{Name: "a", Version: "1", Licence: "MIT"}},
		}},
		{text: `{"spdxVersion":"SPDX-2.3","name":"x","packages":[{"SPDXID":"SPDXRef-a","name":"a"},{"SPDXID":"SPDXRef-b","name":"b"}],
			"relationships":[{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-a"},
			{"spdxElementId":"SPDXRef-DOCUMENT","relationshipType":"DESCRIBES","relatedSpdxElement":"SPDXRef-b"}]}`, want: Bill{
			Forms: []string{"SPDX 2.3"}, Packages: []Package{{Name: "a"}, {Name: "b"}}, // described packages are no image
		}},
	} {
		if tt.file == "" {
			tt.file = filepath.Join(t.TempDir(), "bill")
			if err := os.WriteFile(tt.file, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Read(tt.file, tt.file) // what two files say counts once
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("Read(%s): %v\n%s", tt.file, err, diff)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	archive, err := os.ReadFile("testdata/image.spdx2.tar.zst")
	if err != nil {
		t.Fatal(err)
	}
	graph, err := os.ReadFile("testdata/image.spdx3.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, text, want string
	}{
		{"nothing", "", "it is empty"},
		{"no JSON", "hello", "invalid character"},
		{"a list", "[1]", "it is no JSON object"},
		{"another object", `{"a": 1}`, "it is neither SPDX"},
		{"SPDX 1", `{"spdxVersion": "SPDX-1.2"}`, "spdxVersion is"},
		{"cut JSON", string(graph[:len(graph)/2]), "it ends too early"},
		{"a cut object", `{"spdxVersion": "SPDX-2.3"`, "it ends too early"},
		{"a graph without a version", `{"@graph": [{"type":"software_Package","spdxId":"a","name":"b"}]}`, "no element says a version"},
		{"no graph", `{"@graph": 3}`, "@graph is no list"},
		{"a wrong type", `{"spdxVersion":"SPDX-2.2","packages":[{"name":4}]}`, "packages.name: unexpected number"},
		{"a cut archive", string(archive[:len(archive)-60]), "damaged"},
		{"a missing document", rewrite(t, archive, func(name, text string) string {
			if name == "zlib.spdx.json" {
				return ""
			}
			return text
		}), "no such document"},
	} {
		if got, err := Decode(strings.NewReader(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

// rewrite changes the files of an archive. It leaves out those that are empty then.
func rewrite(t *testing.T, archive []byte, change func(name, text string) string) string {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	from, to := tar.NewReader(z), tar.NewWriter(w)
	for {
		h, err := from.Next()
		if err != nil {
			break
		}
		var text bytes.Buffer
		if _, err := text.ReadFrom(from); err != nil {
			t.Fatal(err)
		}
		if data := change(h.Name, text.String()); data != "" {
			h.Size = int64(len(data))
			if err := to.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := to.Write([]byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A long list of packages or vulnerabilities is refused.
func TestLimits(t *testing.T) {
	many := `{"version":"1","package":[{"name":"a","issue":[` + strings.Repeat(`{"id":"C"},`, maxFlaws) + `{"id":"C"}]}]}`
	if _, err := Decode(strings.NewReader(many)); err == nil || !strings.Contains(err.Error(), "more than 1000000 vulnerabilities") {
		t.Errorf("many vulnerabilities: %v", err)
	}
	many = `{"spdxVersion":"SPDX-2.3","name":"x","packages":[` + strings.Repeat(`{"name":"a"},`, maxPackages) + `{"name":"a"}]}`
	if _, err := Decode(strings.NewReader(many)); err == nil || !strings.Contains(err.Error(), "more than 100000 packages") {
		t.Errorf("many packages: %v", err)
	}
	for size, want := range map[int]bool{4: true, 5: false} {
		if _, err := io.ReadAll(&limited{strings.NewReader("12345"[:size]), 4}); (err == nil) != want {
			t.Errorf("%d bytes with a limit of 4: %v", size, err)
		}
	}
}

func TestSplitLicence(t *testing.T) {
	for text, want := range map[string][]string{
		"MIT":                                    {"MIT"},
		"GPL-2.0-only AND (MIT OR Zlib)":         {"GPL-2.0-only", "MIT", "Zlib"},
		"GPL-2.0-only & bzip2-1.0.4 | MIT":       {"GPL-2.0-only", "bzip2-1.0.4", "MIT"},
		"GPL-3.0-only WITH GCC-exception-3.1":    {"GPL-3.0-only WITH GCC-exception-3.1"},
		"NOASSERTION":                            {""},
		"":                                       {""},
		"MIT AND MIT":                            {"MIT"},
		"WITH":                                   {""},
		"DocumentRef-recipe-a:LicenseRef-Custom": {"DocumentRef-recipe-a:LicenseRef-Custom"},
	} {
		if got := SplitLicence(text); !cmp.Equal(got, want) {
			t.Errorf("SplitLicence(%q) = %q; want %q", text, got, want)
		}
	}
	b := Bill{Packages: []Package{{Licence: "MIT AND Zlib"}, {Licence: "MIT"}, {}}}
	if got, want := b.Licences(), map[string]int{"MIT": 2, "Zlib": 1, "": 1}; !cmp.Equal(got, want) {
		t.Errorf("Licences() = %v; want %v", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, name := range []string{"testdata/image.spdx2.tar.zst", "testdata/image.spdx3.json"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(check))
	f.Add([]byte("Package: a\nStatus: install ok installed\nVersion: 1\n"))
	f.Add([]byte(cycloneDX))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		if len(b.Forms) == 0 {
			t.Error("a bill of no form")
		}
		for _, p := range b.Packages {
			if p.Name == "" || len(p.Name) > 4*maxText {
				t.Errorf("a package is named %q", p.Name)
			}
		}
		for _, f := range b.Flaws {
			if f.State != Open && f.State != Fixed && f.State != Ignored || f.Score < 0 || f.Score > 10 {
				t.Errorf("a flaw is %+v", f)
			}
		}
		b.tidy()
		b.Licences()
	})
}

package sbom

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const debianStatus = `Package: base-files
Status: install ok installed
Version: 12.4+deb12u11

Package: libc6
Source: glibc
Status: install ok installed
Version: 2.36-9+deb12u10

Package: libc-bin
Source: glibc
Status: install ok installed
Version: 2.36-9+deb12u10

Package: zlib1g
Source: zlib (1:1.2.13.dfsg-1)
Status: install ok installed
Version: 1:1.2.13.dfsg-1+b1

Package: linux-image-6.1.0-35-amd64
Source: linux-signed-amd64 (6.1.137+1)
Status: install ok installed
Version: 6.1.137-1
`

const tracker = `{
"glibc": {
 "CVE-2026-1": {"description": "d", "scope": "local", "releases": {
  "bookworm": {"status": "resolved", "repositories": {"bookworm": "2.36-9+deb12u10"}, "fixed_version": "2.36-9+deb12u11", "urgency": "not yet assigned"},
  "trixie": {"status": "open", "urgency": "high"}}},
 "CVE-2025-1": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "2.36-9+deb12u10", "urgency": "medium"}}},
 "CVE-2024-1": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "0", "urgency": "medium"}}},
 "CVE-2019-1": {"releases": {"bookworm": {"status": "open", "urgency": "unimportant"}}},
 "CVE-2018-1": {"releases": {"sid": {"status": "open", "urgency": "high"}}}},
"zlib": {"CVE-2023-1": {"releases": {"bookworm": {"status": "open", "urgency": "low", "nodsa": "Minor issue"}}}},
"linux": {"CVE-2026-2": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "6.1.140-1", "urgency": "low"}}}},
"bash": {"CVE-2026-3": {"releases": {"bookworm": {"status": "open", "urgency": "high"}}}}
}`

func TestAddTracked(t *testing.T) {
	b, err := Decode(strings.NewReader(debianStatus))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddTracked(strings.NewReader(tracker)); err != nil {
		t.Fatal(err)
	}
	want := []Flaw{
		{ID: "CVE-2019-1", Package: "glibc", Version: "2.36-9+deb12u10", State: Ignored, Why: "Debian: unimportant"},
		{ID: "CVE-2025-1", Package: "glibc", Version: "2.36-9+deb12u10", State: Fixed, Why: "since 2.36-9+deb12u10"},
		{ID: "CVE-2026-1", Package: "glibc", Version: "2.36-9+deb12u10", State: Open, Why: "fixed in 2.36-9+deb12u11"},
		{ID: "CVE-2026-2", Package: "linux", Version: "6.1.137-1", State: Open, Why: "fixed in 6.1.140-1"},
		{ID: "CVE-2023-1", Package: "zlib", Version: "1:1.2.13.dfsg-1", State: Open, Why: "Minor issue"},
	}
	if diff := cmp.Diff(want, b.Flaws); diff != "" {
		t.Error(diff)
	}
	if !b.Checked || strings.Join(b.Forms, ", ") != "Debian's security tracker for bookworm, dpkg status" {
		t.Errorf("checked: %v, forms %q", b.Checked, b.Forms)
	}
}

func TestAddTrackedFaults(t *testing.T) {
	for name, tt := range map[string]struct{ status, tracker, want string }{
		"no release":      {strings.ReplaceAll(debianStatus, "base-files", "no-files"), tracker, `base-files has version ""`},
		"another release": {strings.ReplaceAll(debianStatus, "12.4+deb12u11", "13.8"), strings.ReplaceAll(tracker, "trixie", "sid"), "nothing of Debian's release trixie"},
		"a list":          {debianStatus, "[]", "it is no JSON object"},
		"nothing":         {debianStatus, "", "it ends too early"},
		"cut off":         {debianStatus, tracker[:len(tracker)-30], "it ends too early"},
		"other values":    {debianStatus, `{"glibc": {"CVE-1": {"releases": {"bookworm": 7}}}}`, "package glibc: "},
	} {
		b, err := Decode(strings.NewReader(tt.status))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.AddTracked(strings.NewReader(tt.tracker)); err == nil || !strings.Contains(err.Error(), tt.want) || b.Checked {
			t.Errorf("%s: %v, checked %v; want %q", name, err, b.Checked, tt.want)
		}
	}
}

// Versions are ordered as dpkg itself orders them.
func TestCompareVersions(t *testing.T) {
	versions := []string{"0", "1", "1.0", "1.00", "1.0-0", "1.0-1", "1.0~rc1", "1.0~~", "1.0~rc1-1", "1.0+b1", "1.0a", "1.0.1", "1.10", "1.9", "2:0", "0:1.0", "10:1", "1.0-1-1", "1.2.13.dfsg-1+b1", "2.36-9+deb12u9", "2.36-9+deb12u10", "1.0z", "1.0+", "00001"}
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is missing")
	}
	for _, a := range versions {
		for _, b := range versions {
			for relation, want := range map[string]bool{"lt": CompareVersions(a, b) < 0, "gt": CompareVersions(a, b) > 0} {
				if got := exec.Command("dpkg", "--compare-versions", a, relation, b).Run() == nil; got != want {
					t.Errorf("%q %s %q is %v; dpkg says %v", a, relation, b, want, got)
				}
			}
		}
	}
}

func FuzzAddTracked(f *testing.F) {
	f.Add(tracker)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := Decode(strings.NewReader(debianStatus))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.AddTracked(strings.NewReader(text)); (err == nil) != b.Checked {
			t.Errorf("%v, checked %v", err, b.Checked)
		}
		for _, f := range b.Flaws {
			if f.State != Open && f.State != Fixed && f.State != Ignored || len(f.ID) > 4*maxText {
				t.Errorf("a flaw is %+v", f)
			}
		}
	})
}

package cache

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPlan(t *testing.T) {
	from := Cache{Sstate: "http://b:8600/sstate", Hashserv: "b:8601", PRServ: "b:8602", Downloads: "http://b:8600/downloads"}
	filling := from
	filling.Fill = "/srv/build"
	own := func(name, value string) ownSetting { return ownSetting{name, value, true, "conf/local.conf:3"} }
	tests := []struct {
		name    string
		cache   Cache
		version Version
		own     []ownSetting
		want    string // names that are assigned
		line    string // that is among the conf's lines
		warning string
	}{
		{"2.8", from, Version{2, 8}, nil, "SSTATE_MIRRORS BB_SIGNATURE_HANDLER BB_HASHSERVE BB_HASHSERVE_UPSTREAM PRSERV_HOST PREMIRRORS:prepend", `SSTATE_MIRRORS = "file://.* http://b:8600/sstate/PATH;downloadfilename=PATH"`, ""},
		{"filling", filling, Version{2, 8}, nil, "BB_SIGNATURE_HANDLER BB_HASHSERVE BB_GENERATE_MIRROR_TARBALLS PRSERV_HOST", `BB_HASHSERVE = "unix:///srv/build/cache-serve/hashserv.sock"`, ""},
		{"own mirror takes the hashes along", from, Version{2, 8}, []ownSetting{own("SSTATE_MIRRORS", "file://.* http://c/PATH")}, "PRSERV_HOST PREMIRRORS:prepend", "", "conf/local.conf:3: SSTATE_MIRRORS is your own setting"},
		{"own hash server takes the mirror along", from, Version{2, 8}, []ownSetting{own("BB_HASHSERVE", "c:1")}, "PRSERV_HOST PREMIRRORS:prepend", "", "BB_HASHSERVE is your own"},
		{"the same is no clash", from, Version{2, 8}, []ownSetting{own("BB_HASHSERVE", "auto"), own("BB_SIGNATURE_HANDLER", "OEEquivHash")}, "SSTATE_MIRRORS BB_SIGNATURE_HANDLER BB_HASHSERVE BB_HASHSERVE_UPSTREAM PRSERV_HOST PREMIRRORS:prepend", "", ""},
		{"an append is a clash", from, Version{2, 8}, []ownSetting{{"SSTATE_MIRRORS", "x", false, "conf/site.conf:1"}}, "PRSERV_HOST PREMIRRORS:prepend", "", "conf/site.conf:1"},
		{"own PR server", from, Version{2, 8}, []ownSetting{own("PRSERV_HOST", "localhost:0")}, "SSTATE_MIRRORS BB_SIGNATURE_HANDLER BB_HASHSERVE BB_HASHSERVE_UPSTREAM PREMIRRORS:prepend", "", "the cache's PR server is left out"},
		{"own mirror of sources", from, Version{2, 8}, []ownSetting{own("SOURCE_MIRROR_URL", "http://c")}, "SSTATE_MIRRORS BB_SIGNATURE_HANDLER BB_HASHSERVE BB_HASHSERVE_UPSTREAM PRSERV_HOST", "", "SOURCE_MIRROR_URL"},
		{"own folder", filling, Version{2, 8}, []ownSetting{own("SSTATE_DIR", "/elsewhere")}, "BB_SIGNATURE_HANDLER BB_HASHSERVE PRSERV_HOST", "", "is not served"},
		{"no network", from, Version{2, 8}, []ownSetting{own("BB_NO_NETWORK", "1")}, "SSTATE_MIRRORS BB_SIGNATURE_HANDLER BB_HASHSERVE BB_HASHSERVE_UPSTREAM PRSERV_HOST PREMIRRORS:prepend", "", "BB_NO_NETWORK keeps bitbake from the cache"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlan(tt.cache, tt.version, tt.own)
			var names []string
			for _, a := range p.Assign {
				names = append(names, a.name)
			}
			if diff := cmp.Diff(strings.Fields(tt.want), names); diff != "" {
				t.Errorf("assigns (-want +got)\n%s", diff)
			}
			if lines := strings.Split(string(p.confText()), "\n"); tt.line != "" && !slices.Contains(lines, tt.line) {
				t.Errorf("conf lacks %s:\n%s", tt.line, p.confText())
			}
			if said := strings.Join(p.Warnings, "\n"); (tt.warning == "") != (said == "") || !strings.Contains(said, tt.warning) {
				t.Errorf("warnings %q; want %q", said, tt.warning)
			}
		})
	}
}

// A file that bitbake reads is newer only where it says something else.
func TestPlanIsWrittenIfChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.conf")
	p := plan{Assign: []assignment{{"A", "1"}}}
	given, err := p.writeConf(path)
	if diff := cmp.Diff([]string{path}, given.Post); diff != "" || err != nil {
		t.Fatalf("write = %v (-want +got)\n%s", err, diff)
	}
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	stamp := func() time.Time {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	if _, err := p.writeConf(path); err != nil || !stamp().Equal(old) {
		t.Errorf("the same written again: %v, %v; want it left alone", err, stamp())
	}
	p.Assign[0].value = "2"
	if _, err := p.writeConf(path); err != nil || stamp().Equal(old) {
		t.Errorf("something else written: %v; want a new file", err)
	}
	if given, err := (plan{}).writeConf(path); err != nil || len(given.Post) > 0 {
		t.Errorf("nothing to say: %v, %v; want no -R", given, err)
	}
}

func TestOwnSettings(t *testing.T) {
	dir := t.TempDir()
	build, outside := filepath.Join(dir, "build"), filepath.Join(dir, "outside.conf")
	for name, text := range map[string]string{
		"local.conf": `# SSTATE_MIRRORS = "commented out"
MACHINE ??= "x"
SSTATE_MIRRORS ?= "\
    file://.* http://mine/PATH \
"
PRSERV_HOST:pn-busybox = "p:1"
BB_HASHSERVE_append = " x"
PREMIRRORS += "a b"
BB_HASHSERVE_UPSTREAM = 'h:1'
SSTATE_MIRRORS_ALLOW = "another variable"
SSTATE_MIRRORS[doc] = "a flag"
DL_DIR ?= "/what the environment says holds"
SSTATE_DIR ??= "/here too"
require conf/more.conf
require conf/include/site.inc
include ${TOPDIR}/conf/top.conf
include ` + outside + `
include /dev/zero
include conf/none.conf
`,
		"bblayers.conf": "BBLAYERS ?= \" \\\n    ${TOPDIR}/../none \\\n    ${TOPDIR}/../layer\"\n",
		"top.conf":      "PREMIRRORS = \"t\"\n",
		"more.conf":     "export BB_SIGNATURE_HANDLER := \"OEBasicHash\"\nrequire conf/local.conf\n",
		"site.conf":     "SSTATE_DIR = \"/s\"\n",
	} {
		write(t, filepath.Join(build, "conf", name), text)
	}
	write(t, outside, "PRSERV_HOST = \"mine\"\n")
	write(t, filepath.Join(dir, "layer/conf/include/site.inc"), "SSTATE_MIRRORS = \"m\"\n")
	conf := filepath.Join(build, "conf")
	got, err := findOwnSettings(conf, map[string]string{"DL_DIR": "/d", "HOME": "/h"})
	if err != nil {
		t.Fatal(err)
	}
	at := func(name, line string) string { return filepath.Join(conf, name) + ":" + line }
	want := []ownSetting{
		{"DL_DIR", "/d", true, "environment"},
		{"SSTATE_DIR", "/s", true, at("site.conf", "1")},
		{"SSTATE_MIRRORS", "    file://.* http://mine/PATH ", true, at("local.conf", "3")},
		{"PRSERV_HOST", "p:1", false, at("local.conf", "6")},
		{"BB_HASHSERVE", " x", false, at("local.conf", "7")},
		{"PREMIRRORS", "a b", false, at("local.conf", "8")},
		{"BB_HASHSERVE_UPSTREAM", "h:1", true, at("local.conf", "9")},
		{"BB_SIGNATURE_HANDLER", "OEBasicHash", true, at("more.conf", "1")},
		{"SSTATE_MIRRORS", "m", true, filepath.Join(dir, "layer/conf/include/site.inc:1")},
		{"PREMIRRORS", "t", true, at("top.conf", "1")},
		{"PRSERV_HOST", "mine", true, outside + ":1"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(ownSetting{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzScanConf(f *testing.F) {
	f.Add("SSTATE_MIRRORS ?= \"\\\n a b \\\n\"\nrequire conf/x.conf\nPRSERV_HOST:pn-a = 'b'\n")
	f.Add("export BB_HASHSERVE ??= \"\"\\\n")
	f.Fuzz(func(t *testing.T, text string) {
		found, includes := scanConf("f", text, cacheVariables)
		if lines := strings.Count(text, "\n") + 1; len(found)+len(includes) > lines {
			t.Errorf("%d findings in %d lines", len(found)+len(includes), lines)
		}
	})
}

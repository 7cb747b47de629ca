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
	tests := []struct {
		name    string
		cache   Cache
		network string // BB_NO_NETWORK
		want    string // names that are assigned
		line    string // that is among the conf's lines
		shared  string
		warning string
	}{
		{"reading", from, "0", "BB_SIGNATURE_HANDLER PRSERV_HOST BB_HASHSERVE BB_HASHSERVE_UPSTREAM SSTATE_MIRRORS PREMIRRORS:prepend", `SSTATE_MIRRORS = "file://.* http://b:8600/sstate/PATH;downloadfilename=PATH"`, "", ""},
		{"filling", filling, "1", "BB_SIGNATURE_HANDLER PRSERV_HOST BB_HASHSERVE BB_GENERATE_MIRROR_TARBALLS", `BB_HASHSERVE = "unix:///srv/build/cache-serve/hashserv.sock"`, "/srv/build", ""},
		{"no network", from, "1", "BB_SIGNATURE_HANDLER PRSERV_HOST BB_HASHSERVE BB_HASHSERVE_UPSTREAM SSTATE_MIRRORS PREMIRRORS:prepend", "", "", "BB_NO_NETWORK keeps bitbake from the cache"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("BB_NO_NETWORK", tt.network)
			p := newPlan(tt.cache, Version{2, 8})
			var names []string
			for _, a := range p.Assign {
				names = append(names, a.name)
			}
			if diff := cmp.Diff(strings.Fields(tt.want), names); diff != "" || p.Shared != tt.shared {
				t.Errorf("shared folder %q; want %q; assigns (-want +got)\n%s", p.Shared, tt.shared, diff)
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
	if given.Pre != path || err != nil {
		t.Fatalf("write = %+v, %v; want %s", given, err, path)
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
	if given, err := (plan{}).writeConf(path); err != nil || given.Pre != "" {
		t.Errorf("nothing to say: %v, %v; want no file", given, err)
	}
}

package doctor

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/images/lint"
	"slipway/layers"
	"slipway/layers/plaintext"
)

// A machine that reaches mirrors alone is stopped by bitbake's own check.
func TestConnectivity(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/fine" {
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	usual := defaultConnectivity
	defer func() { defaultConnectivity = usual }()
	t.Setenv("BB_NO_NETWORK", "")
	for _, tt := range []struct {
		name, usual, conf, state, saw string
	}{
		{"it answers", "/fine", "", OK, "/fine answers"},
		{"a proxy's error", "/blocked", "", Stops, "403 Forbidden"},
		{"nobody is there", "none", "", Stops, "does not answer"},
		{"switched off", "none", `CONNECTIVITY_CHECK_URIS = ""`, OK, "is empty"},
		{"another server", "none", `CONNECTIVITY_CHECK_URIS ?= "$H/fine"`, OK, "/fine answers"},
		{"one of two", "none", `CONNECTIVITY_CHECK_URIS = "$H/fine $H/other"`, Stops, "/other does not answer"},
		{"options of the fetcher", "none", `CONNECTIVITY_CHECK_URIS = "$H/fine;downloadfilename=x"`, OK, "answers"},
		{"no network is wanted", "none", `BB_NO_NETWORK = "1"`, OK, "not asked"},
		{"a pinned commit of master", "none", "", Stops, "does not answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if defaultConnectivity = "http://127.0.0.1:1/"; tt.usual != "none" {
				defaultConnectivity = server.URL + tt.usual
			}
			dir := t.TempDir()
			p := boardBuild{
				ws:      layers.Workspace{Dir: filepath.Join(dir, "board/layers")},
				layers:  lint.Layers{Branch: map[string]string{"openembedded-core": plaintext.Either(strings.Contains(tt.name, "master"), "", "scarthgap")}},
				Options: Options{Build: images.Options{Dir: dir}},
			}
			if err := os.MkdirAll(filepath.Dir(p.siteConf()), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.siteConf(), []byte(strings.ReplaceAll(tt.conf, "$H", server.URL)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			found := checkConnectivity(t.Context(), p)
			if len(found) != 1 || found[0].State != tt.state || !strings.Contains(found[0].Saw, tt.saw) {
				t.Errorf("connectivity = %+v; want %s, %q", found, tt.state, tt.saw)
			}
		})
	}
	offline := boardBuild{
		layers:  lint.Layers{Branch: map[string]string{"openembedded-core": "scarthgap"}},
		Options: Options{Build: images.Options{Dir: t.TempDir(), Offline: true}},
	}
	defaultConnectivity = "http://127.0.0.1:1/"
	if found := checkConnectivity(t.Context(), offline); len(found) != 1 || found[0].State != OK {
		t.Errorf("offline: %+v; want OK without a request", found)
	}
	if found := checkConnectivity(t.Context(), boardBuild{}); found != nil {
		t.Errorf("a project without openembedded-core: %+v", found)
	}
}

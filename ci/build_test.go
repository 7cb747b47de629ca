package ci

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/images"
	"slipway/images/bitbake/bitbaketest"
	"slipway/layers/host"
	"slipway/layers/run"
)

// A build reads the project before it changes this machine, and shows the apt line before it
// installs. A dry run changes nothing, and prints that line.
func TestBuildAndThisMachine(t *testing.T) {
	if os.Geteuid() == 0 { // whom bitbake refuses
		bitbaketest.AsUser(t, t.TempDir())
		return
	}
	dir := t.TempDir()
	done := filepath.Join(dir, "done")
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"sudo":       `echo "$*" >>` + done,
		"dpkg-query": `test -n "$ALL_INSTALLED" && for p; do echo "$p installed"; done`,
		"locale":     `echo C`,
	} {
		if err := run.WriteProgram(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"kas.yml": "header: {version: 14}\nmachine: toy\n", "text.yml": "header: 14\n", "later.yml": "header: {version: 14, includes: [{repo: r, file: f.yml}]}\nrepos: {r: {url: /nonexistent, branch: main}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	t.Chdir(dir)
	apt, locale := "\nnext: "+host.AptLine([]string{"ca-certificates"}), "\nnext: sudo localedef -i en_US -f UTF-8 en_US.UTF-8"
	for _, tt := range []struct {
		project  string
		have     string // anything: all packages are here, and only the locale is missing
		request  images.BuildRequest
		install  bool
		variable string
		changes  bool
		want     []string // in the error
	}{
		{project: "kas.yml", changes: true},
		{project: "later.yml", changes: true},
		{project: "kas.yml", variable: "yes", changes: true},
		{project: "kas.yml", variable: "no", want: []string{"SLIPWAY_INSTALL=no", apt, locale}},
		{project: "kas.yml", variable: "maybe", want: []string{"SLIPWAY_INSTALL=maybe", apt, locale}},
		{project: "kas.yml", request: images.BuildRequest{DryRun: true}, want: []string{"--dry-run", apt, locale}},
		{project: "kas.yml", have: "all", request: images.BuildRequest{DryRun: true}, want: []string{locale}},
		{project: "kas.yml", have: "all", request: images.BuildRequest{Parse: true}, want: []string{locale}},
		{project: "later.yml", request: images.BuildRequest{DryRun: true}, want: []string{"--dry-run", apt, locale}},
		{project: "kas.yml", request: images.BuildRequest{DryRun: true}, variable: "yes", install: true, want: []string{"--dry-run", apt, locale}},
		{project: "kas.yml", request: images.BuildRequest{DryRun: true, Parse: true}, install: true, want: []string{"--dry-run", apt, locale}},
		{project: "kas.yml", request: images.BuildRequest{Parse: true}, want: []string{"--parse without --install", apt, locale}},
		{project: "kas.yml", request: images.BuildRequest{Parse: true}, install: true, changes: true},
		{project: "kas.yml", request: images.BuildRequest{Parse: true}, variable: "yes", changes: true},
		{project: "kas.yml", request: images.BuildRequest{Parse: true}, variable: "no", install: true, want: []string{"SLIPWAY_INSTALL=no", apt, locale}},
		{project: "kas.yml:nosuch.yml", want: []string{"nosuch.yml: no such file"}},
		{project: "text.yml", want: []string{"text.yml:1"}},
	} {
		if err := os.WriteFile(done, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv(host.InstallVariable, tt.variable)
		t.Setenv("ALL_INSTALLED", tt.have)
		spec, err := images.Load(tt.project)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		opt := images.Options{Dir: filepath.Join(dir, "build"), Request: tt.request, Install: tt.install}
		_, err = Build(t.Context(), &out, spec, opt)
		did, rerr := os.ReadFile(done)
		if err == nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		text := string(did)
		installs := strings.Contains(text, "apt-get -q install -y") && strings.Contains(text, "localedef")
		shown := strings.Contains(out.String(), host.AptLine([]string{"ca-certificates"})) && strings.Contains(out.String(), "sudo -n localedef")
		if installs != tt.changes || shown != tt.changes || !tt.changes && text != "" {
			t.Errorf("%+v: ran %q, and said:\n%s", tt, text, &out)
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v\nwant %s", tt, err, want)
			}
		}
	}
}

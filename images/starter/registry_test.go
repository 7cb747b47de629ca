package starter

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

func TestReleaseThatAPipelineTakes(t *testing.T) {
	for version, want := range map[string]string{"v1.2.3": "1.2.3", "v1.0": "1.0", "v1.2-3": "", "unknown": "", "v1": "", "1.2": "", "v1.2.3'": "", "v0.0.0-20260101000000-0123456789ab": ""} {
		if got := (choices{Version: version}).Release(); got != want {
			t.Errorf("the release of version %q is %q; want %q", version, got, want)
		}
	}
}

// The step logs in to a registry with the token that is for it, or stops.
func TestLoginOfGitHubsRelease(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Name, Run string
				Env       map[string]string
			}
		}
	}
	for _, f := range planProject(t, "virt").Files {
		if f.Path == Pipelines["github"][0].Path {
			if err := yaml.Unmarshal([]byte(f.Text), &workflow); err != nil {
				t.Fatal(err)
			}
		}
	}
	const expression = "${{ startsWith(vars.SLIPWAY_REGISTRY, 'ghcr.io/') && github.token || secrets.SLIPWAY_REGISTRY_TOKEN }}"
	script := ""
	for name, job := range workflow.Jobs {
		for _, s := range job.Steps {
			if s.Name == "login" {
				script = s.Run
				if s.Env["TOKEN"] != expression {
					t.Errorf("the token of login is %q; want %q", s.Env["TOKEN"], expression)
				}
			} else if text := s.Run + strings.Join(values(s.Env), ""); strings.Contains(text, "github.token") {
				t.Errorf("step %q of job %s has the token of GitHub", s.Name, name)
			}
		}
	}
	for _, tt := range []struct{ registry, token, want string }{
		{"ghcr.io/me", "T", "login ghcr.io --username me --password-stdin T\n"},
		{"registry.example.com/x", "T", "login registry.example.com --username me --password-stdin T\n"},
		{"registry.example.com/x", "", "::error::The secret SLIPWAY_REGISTRY_TOKEN is not set. Only ghcr.io gets the token of GitHub.\n"},
		{"", "T", "::error::The variable SLIPWAY_REGISTRY is not set. Set it in the settings of the repository, for example to ghcr.io/OWNER.\n"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\necho \"$@\" \"$(cat)\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "REGISTRY="+tt.registry, "TOKEN="+tt.token, "REGISTRY_USER=me")
		out, err := cmd.CombinedOutput()
		if string(out) != tt.want || (err == nil) != strings.HasPrefix(tt.want, "login ") {
			t.Errorf("login to %q with the token %q = %v, %q; want %q", tt.registry, tt.token, err, out, tt.want)
		}
	}
}

func values(m map[string]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

package fetch

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// noLogins hides this person's own.
func noLogins(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	t.Setenv("REGISTRY_AUTH_FILE", "")
	for name, folder := range map[string]string{"HOME": "home", "XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "config", "DOCKER_CONFIG": "docker"} {
		t.Setenv(name, filepath.Join(dir, folder))
	}
	return dir
}

func logIn(t *testing.T, file, name, user string) {
	t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":secret"))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, name, auth)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoginFiles(t *testing.T) {
	dir := noLogins(t)
	const host, repository = "lab.example:5000", "team/disks/virt"
	check := func(what, want string) {
		t.Helper()
		if found, err := findCredentials(t.Context(), host, repository); found.Username != want || err != nil {
			t.Errorf("%s: %q, %v; want %q", what, found.Username, err, want)
		}
	}
	check("no file", "")
	logIn(t, filepath.Join(dir, "docker/config.json"), host, "docker")
	check("docker's", "docker")
	logIn(t, filepath.Join(dir, "config/containers/auth.json"), "other.example", "other")
	check("podman's file without it", "docker")
	logIn(t, filepath.Join(dir, "config/containers/auth.json"), host, "podman")
	check("podman's", "podman")
	logIn(t, filepath.Join(dir, "run/containers/auth.json"), host+"/team", "team")
	check("podman's of this boot, for a namespace", "team")
	logIn(t, filepath.Join(dir, "run/containers/auth.json"), host+"/tea", "team")
	check("another namespace", "podman")
	t.Setenv("REGISTRY_AUTH_FILE", filepath.Join(dir, "own"))
	check("a file that is named and not there", "")
	logIn(t, filepath.Join(dir, "own"), host+"/"+repository, "named")
	check("a file that is named", "named")
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := findCredentials(t.Context(), host, repository); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "own")) {
		t.Errorf("a broken file: %v; want its name", err)
	}
}

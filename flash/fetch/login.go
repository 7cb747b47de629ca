package fetch

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// dockerConfig is the part that Slipway reads of docker's config.json, which podman,
// skopeo and oras share.
type dockerConfig struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	Store   string            `json:"credsStore"`
	Helpers map[string]string `json:"credHelpers"`
}

// maxLoginBytes is more than docker login writes.
const maxLoginBytes = 1 << 20

// findCredentials returns the user's credentials for a repository of a registry; ""
// where there are none. A token comes without a user.
func findCredentials(host, repository string) (user, secret string, err error) {
	for _, path := range loginFiles() {
		if err != nil || user != "" || secret != "" {
			break
		}
		user, secret, err = credentialsIn(path, host, repository)
	}
	return user, secret, err
}

// credentialsIn reads the credentials from one login file.
func credentialsIn(path, host, repository string) (user, secret string, err error) {
	data, err := localfile.Read(path, maxLoginBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	var config dockerConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return "", "", fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range slices.Concat(credentialNamespaces(host, repository), serverNames(host)) {
		if helper := config.Helpers[name]; helper != "" {
			return runCredentialHelper(helper, name)
		}
		if entry, ok := config.Auths[name]; ok && (entry.Auth != "" || entry.IdentityToken != "") {
			if entry.IdentityToken != "" {
				return "", entry.IdentityToken, nil
			}
			user, secret, err := decodeAuth(entry.Auth)
			if err != nil {
				return "", "", fmt.Errorf("%s: auths of %q: %w", path, name, err)
			}
			return user, secret, nil
		}
	}
	if config.Store != "" {
		return runCredentialHelper(config.Store, serverNames(host)[0])
	}
	return "", "", nil
}

// loginFiles returns the login files of podman and docker in podman's order: podman's
// of this boot, podman's permanent one, docker's. REGISTRY_AUTH_FILE replaces them all.
func loginFiles() []string {
	if file := os.Getenv("REGISTRY_AUTH_FILE"); file != "" {
		return []string{file}
	}
	running := cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), filepath.Join("/run/containers", strconv.Itoa(os.Getuid())))
	files := []string{filepath.Join(running, "containers", "auth.json")}
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		files[0] = filepath.Join(running, "auth.json")
	}
	if config, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(config, "containers", "auth.json"))
	}
	if docker, err := dockerConfigPath(); err == nil {
		files = append(files, docker)
	}
	return files
}

func dockerConfigPath() (string, error) {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return filepath.Join(dir, "config.json"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".docker", "config.json"), err
}

// credentialNamespaces returns the names under which podman keeps logins for parts of a
// registry, the longest first.
func credentialNamespaces(host, repository string) (names []string) {
	for repository != "" {
		names = append(names, host+"/"+repository)
		repository = repository[:max(0, strings.LastIndexByte(repository, '/'))]
	}
	return names
}

// serverNames returns the names that config.json may use for a registry.
func serverNames(host string) []string {
	if host == "docker.io" {
		return []string{"https://index.docker.io/v1/", "docker.io", "index.docker.io", "registry-1.docker.io"}
	}
	return []string{host, "https://" + host, "http://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/"}
}

// decodeAuth decodes an auth entry. Its errors do not repeat the text, which is a
// password.
func decodeAuth(text string) (user, secret string, err error) {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return "", "", errors.New("auth is not base64")
	}
	user, secret, ok := strings.Cut(string(data), ":")
	if !ok {
		return "", "", errors.New("auth is not the base64 of user:password")
	}
	return user, strings.TrimRight(secret, "\x00"), nil
}

const helperLimit = 30 * time.Second

var helperPattern = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// runCredentialHelper asks docker's credential helper, which keeps passwords in a
// keyring.
func runCredentialHelper(helper, server string) (user, secret string, err error) {
	if !helperPattern().MatchString(helper) {
		return "", "", fmt.Errorf("credential helper %q in docker's config.json is no name of a program", printable(helper))
	}
	ctx, cancel := context.WithTimeout(context.Background(), helperLimit)
	defer cancel()
	program := "docker-credential-" + helper
	out, err := run.Output(ctx, run.Command{Argv: []string{program, "get"}, Stdin: strings.NewReader(server)})
	if err != nil {
		// Helpers report on standard output that they have none.
		if strings.Contains(string(out), "credentials not found") {
			return "", "", nil
		}
		return "", "", err
	}
	var said struct{ Username, Secret string }
	if err := json.Unmarshal(out, &said); err != nil {
		return "", "", fmt.Errorf("%s get: its answer is not JSON", program)
	}
	if said.Username == "<token>" {
		said.Username = ""
	}
	return said.Username, said.Secret, nil
}

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

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// dockerConfig is what Slipway reads of docker's config.json, which podman, skopeo and oras share.
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

// findCredentials returns the user's credentials for a repository from the first login file that
// has some; empty ones if none has. oras-go would use the login of one namespace for another.
func findCredentials(ctx context.Context, host, repository string) (found auth.Credential, err error) {
	for _, path := range loginFiles() {
		if err != nil || found != auth.EmptyCredential {
			break
		}
		found, err = credentialsIn(ctx, path, host, repository)
	}
	return found, err
}

// credentialsIn reads the credentials from one login file: those of the longest namespace, of the
// server, or of the default helper. Without any it returns empty ones.
func credentialsIn(ctx context.Context, path, host, repository string) (auth.Credential, error) {
	data, err := localfile.Read(path, maxLoginBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return auth.EmptyCredential, nil
	}
	if err != nil {
		return auth.EmptyCredential, err
	}
	var config dockerConfig
	if err := json.Unmarshal(data, &config); err != nil {
		return auth.EmptyCredential, fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range slices.Concat(credentialNamespaces(host, repository), serverNames(host)) {
		if helper := config.Helpers[name]; helper != "" {
			return runCredentialHelper(ctx, helper, name)
		}
		if entry, ok := config.Auths[name]; ok && (entry.Auth != "" || entry.IdentityToken != "") {
			if entry.IdentityToken != "" {
				return auth.Credential{RefreshToken: entry.IdentityToken}, nil
			}
			found, err := decodeAuth(entry.Auth)
			if err != nil {
				err = fmt.Errorf("%s: auths of %q: %w", path, name, err)
			}
			return found, err
		}
	}
	if config.Store != "" {
		return runCredentialHelper(ctx, config.Store, serverNames(host)[0])
	}
	return auth.EmptyCredential, nil
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
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return append(files, filepath.Join(dir, "config.json"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	return files
}

// credentialNamespaces returns podman's names for logins to parts of a registry, the longest first.
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

// decodeAuth decodes an auth entry. Its errors do not repeat the text, which is a password.
func decodeAuth(text string) (auth.Credential, error) {
	data, err := base64.StdEncoding.DecodeString(text)
	user, secret, ok := strings.Cut(string(data), ":")
	if err != nil || !ok {
		return auth.EmptyCredential, errors.New("auth is not the base64 of user:password")
	}
	return auth.Credential{Username: user, Password: strings.TrimRight(secret, "\x00")}, nil
}

const helperLimit = 30 * time.Second

var helperPattern = plaintext.Regexp(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// runCredentialHelper runs docker-credential-HELPER, which keeps passwords in a keyring, and
// returns its credentials for a server. It refuses a path, and gives up after helperLimit.
func runCredentialHelper(ctx context.Context, helper, server string) (auth.Credential, error) {
	if !helperPattern().MatchString(helper) {
		return auth.EmptyCredential, fmt.Errorf("credential helper %q in docker's config.json is no name of a program", plaintext.OneLine(helper))
	}
	ctx, cancel := context.WithTimeout(ctx, helperLimit)
	defer cancel()
	found, err := credentials.NewNativeStore(helper).Get(ctx, server)
	if err != nil {
		err = fmt.Errorf("docker-credential-%s get: %w", helper, err)
	}
	return found, err
}

package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
)

// registry reads manifests and blobs of one repository.
type registry struct {
	web
	base string // of the repository
	repo string
	auth docker.Authorizer
	// actions is what a token must allow, such as pull,push.
	actions string
}

// newRegistry contacts no server. It uses plain HTTP for a registry on this machine, as
// docker does, else TLS.
func newRegistry(ref reference) *registry {
	scheme, host := "https", ref.host
	if isLoopback(host) {
		scheme = "http"
	}
	if host == "docker.io" {
		host = "registry-1.docker.io" // it moved
	}
	r := &registry{repo: ref.repo, actions: "pull", base: scheme + "://" + host + "/v2/" + ref.repo}
	r.client = newClient()
	// The registry names the server of tokens, which receives the password. It must not
	// name one without TLS.
	tokens := newClient()
	tokens.Transport.(*http.Transport).DisableKeepAlives = true // nothing closes them
	tokens.Transport = tokenTransport{tokens.Transport, scheme}
	tokens.Timeout = time.Minute
	r.auth = docker.NewDockerAuthorizer(docker.WithAuthClient(tokens), docker.WithAuthCreds(func(asked string) (string, string, error) {
		if asked != host {
			return "", "", nil
		}
		return findCredentials(ref.host, ref.repo)
	}))
	r.send = r.sendAuthorized
	return r
}

// maxTokenBytes is more than any token has.
const maxTokenBytes = 1 << 20

// tokenTransport limits the size of a token's response. It sends credentials without
// TLS only to this machine.
type tokenTransport struct {
	http.RoundTripper
	scheme string
}

func (g tokenTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && (g.scheme == "https" || !isLoopback(req.URL.Host)) {
		return nil, permanentError{fmt.Errorf("the registry sends us for a token to %s, which is not https", req.URL.Host)}
	}
	res, err := g.RoundTripper.RoundTrip(req)
	if err == nil {
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(res.Body, maxTokenBytes), res.Body}
	}
	return res, err
}

// sendAuthorized sends a request, again with a token where the registry wants one.
func (r *registry) sendAuthorized(req *http.Request) (*http.Response, error) {
	ctx := docker.WithScope(req.Context(), "repository:"+r.repo+":"+r.actions)
	var refused []*http.Response
	for {
		if err := r.auth.Authorize(ctx, req); err != nil {
			return nil, r.loginError(err)
		}
		if err := rewindBody(req, len(refused)); err != nil {
			return nil, err
		}
		res, err := r.client.Do(req)
		if err != nil || res.StatusCode != http.StatusUnauthorized || res.Request.URL.Host != req.URL.Host {
			return res, err
		}
		res.Body.Close()
		if refused = append(refused, res); len(refused) > 2 {
			return nil, r.loginError(errors.New(res.Status))
		}
		if err := r.auth.AddResponses(ctx, refused); err != nil {
			return nil, r.loginError(err)
		}
	}
}

// loginError says how to log in to the registry.
func (r *registry) loginError(err error) error {
	host, _ := url.Parse(r.base)
	return permanentError{fmt.Errorf("%s wants us to log in: %w\n  podman login %s, or docker login, whose files are read", host.Host, err, host.Host)}
}

// openFile requests a blob by its digest.
func (r *registry) openFile(ctx context.Context, w fileRequest, h cachedPart) (fileResponse, error) {
	var err error
	if w.ref.url, err = url.Parse(r.base + "/blobs/sha256:" + w.sha256); err != nil {
		return fileResponse{}, permanentError{err}
	}
	a, err := r.web.openFile(ctx, w, h)
	a.validator = "digest " + w.sha256 // a blob has one version
	return a, err
}

// resolveReference reads and proves the manifest of a reference.
func (r *registry) resolveReference(ctx context.Context, ref reference, arch string) (*artifact, error) {
	name := ref.tag
	if ref.sum != "" {
		name = ref.sum
	}
	text, err := r.fetchManifest(ctx, name)
	if err != nil {
		return nil, err
	}
	return resolveArtifact(text, ref, arch, func(m v1.Descriptor) ([]byte, error) {
		return r.fetchManifest(ctx, string(m.Digest))
	})
}

// fetchManifest fetches a manifest, with as many tries as a download.
func (r *registry) fetchManifest(ctx context.Context, name string) ([]byte, error) {
	for failures := 1; ; failures++ {
		data, err := r.fetchManifestOnce(ctx, name)
		var f permanentError
		if err == nil || errors.As(err, &f) || ctx.Err() != nil || failures >= failuresInARow || isRefused(err, failures) {
			return data, contextCause(ctx, err)
		}
		if err := waitShown(ctx, r.repo, failures, err); err != nil {
			return nil, err
		}
	}
}

func (r *registry) fetchManifestOnce(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, silenceLimit, errSilent)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/manifests/"+name, nil)
	if err != nil {
		return nil, permanentError{err}
	}
	for _, kind := range oci.DocumentTypes {
		req.Header.Add("Accept", kind)
	}
	res, err := r.send(req)
	if err != nil {
		return nil, connectionError(contextCause(ctx, err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(res.Body, maxTokenBytes)) // for the error alone
		return nil, fmt.Errorf("manifest %s: %w", name, newAnswerError(res, said))
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, oci.MaxDocumentBytes+1))
	if err != nil {
		return nil, contextCause(ctx, err)
	}
	if err := proveManifest(data, name, res.Header.Get("Docker-Content-Digest")); err != nil {
		return nil, permanentError{err}
	}
	if len(data) > oci.MaxDocumentBytes {
		return nil, permanentError{fmt.Errorf("a manifest of more than %d MiB", oci.MaxDocumentBytes>>20)}
	}
	return data, nil
}

// proveManifest compares a manifest with the digest that it was requested by, and with
// the one in the registry's header.
func proveManifest(data []byte, name, said string) error {
	got := string(digest.FromBytes(data))
	for _, want := range []string{name, said} {
		if strings.HasPrefix(want, "sha256:") && got != want {
			return fmt.Errorf("the manifest's digest is %s, want %s; another one, or a damaged one", got, printable(want))
		}
	}
	return nil
}

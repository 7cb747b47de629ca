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
}

// newRegistry asks nobody. A registry on this machine is asked without TLS, as
// docker does; any other with it.
func newRegistry(ref reference) *registry {
	scheme, host := "https", ref.host
	if loopback(host) {
		scheme = "http"
	}
	if host == "docker.io" {
		host = "registry-1.docker.io" // it moved
	}
	r := &registry{repo: ref.repo, base: scheme + "://" + host + "/v2/" + ref.repo}
	r.client = newClient()
	// The registry says which server hands out tokens, which gets the password: it
	// does not choose one without TLS.
	tokens := newClient()
	tokens.Transport.(*http.Transport).DisableKeepAlives = true // nobody closes them
	tokens.Transport = guarded{tokens.Transport, scheme}
	tokens.Timeout = time.Minute
	r.auth = docker.NewDockerAuthorizer(docker.WithAuthClient(tokens), docker.WithAuthCreds(func(asked string) (string, string, error) {
		if asked != host {
			return "", "", nil
		}
		return credentials(ref.host, ref.repo)
	}))
	r.send = r.authorized
	return r
}

// maxTokenBytes is more than any token has.
const maxTokenBytes = 1 << 20

// guarded refuses to send what is meant for TLS without it, and to listen for ever.
// Without TLS, tokens come from this machine alone.
type guarded struct {
	http.RoundTripper
	scheme string
}

func (g guarded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && (g.scheme == "https" || !loopback(req.URL.Host)) {
		return nil, final{fmt.Errorf("the registry sends us for a token to %s, which is not https", req.URL.Host)}
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

// authorized asks once more where the registry wants a token first.
func (r *registry) authorized(req *http.Request) (*http.Response, error) {
	ctx := docker.WithScope(req.Context(), "repository:"+r.repo+":pull")
	var refused []*http.Response
	for {
		if err := r.auth.Authorize(ctx, req); err != nil {
			return nil, r.unauthorized(err)
		}
		res, err := r.client.Do(req)
		if err != nil || res.StatusCode != http.StatusUnauthorized || res.Request.URL.Host != req.URL.Host {
			return res, err
		}
		res.Body.Close()
		if refused = append(refused, res); len(refused) > 2 {
			return nil, r.unauthorized(errors.New(res.Status))
		}
		if err := r.auth.AddResponses(ctx, refused); err != nil {
			return nil, r.unauthorized(err)
		}
	}
}

func (r *registry) unauthorized(err error) error {
	host, _ := url.Parse(r.base)
	return final{fmt.Errorf("%s wants us to log in: %w\n  podman login %s, or docker login, whose files are read", host.Host, err, host.Host)}
}

func (r *registry) open(ctx context.Context, w wanted, h held) (answer, error) {
	var err error
	if w.ref.url, err = url.Parse(r.base + "/blobs/sha256:" + w.sha256); err != nil {
		return answer{}, final{err}
	}
	a, err := r.web.open(ctx, w, h)
	a.validator = "digest " + w.sha256 // a blob has one version
	return a, err
}

// resolve reads the manifest that a reference leads to, and proves it.
func (r *registry) resolve(ctx context.Context, ref reference, arch string) (*artifact, error) {
	name := ref.tag
	if ref.sum != "" {
		name = ref.sum
	}
	text, err := r.manifestText(ctx, name)
	if err != nil {
		return nil, err
	}
	return resolveArtifact(text, ref, arch, func(m v1.Descriptor) ([]byte, error) {
		return r.manifestText(ctx, string(m.Digest))
	})
}

// manifestText asks as often as a download does.
func (r *registry) manifestText(ctx context.Context, name string) ([]byte, error) {
	for failures := 1; ; failures++ {
		data, err := r.manifestOnce(ctx, name)
		var f final
		if err == nil || errors.As(err, &f) || ctx.Err() != nil || failures >= failuresInARow {
			return data, cause(ctx, err)
		}
		if err := waitFor(ctx, r.repo, failures, err); err != nil {
			return nil, err
		}
	}
}

func (r *registry) manifestOnce(ctx context.Context, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, silenceLimit, errSilent)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.base+"/manifests/"+name, nil)
	if err != nil {
		return nil, final{err}
	}
	for _, kind := range oci.DocumentTypes {
		req.Header.Add("Accept", kind)
	}
	res, err := r.send(req)
	if err != nil {
		return nil, unreachable(cause(ctx, err))
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("manifest %s: %w", name, refusal(res))
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, oci.MaxDocumentBytes+1))
	if err != nil {
		return nil, cause(ctx, err)
	}
	if err := proveManifest(data, name, res.Header.Get("Docker-Content-Digest")); err != nil {
		return nil, final{err}
	}
	if len(data) > oci.MaxDocumentBytes {
		return nil, final{fmt.Errorf("a manifest of more than %d MiB", oci.MaxDocumentBytes>>20)}
	}
	return data, nil
}

// proveManifest compares a manifest with the digest that it was asked for by, and
// with the one that the registry sends along.
func proveManifest(data []byte, name, said string) error {
	got := string(digest.FromBytes(data))
	for _, want := range []string{name, said} {
		if strings.HasPrefix(want, "sha256:") && got != want {
			return fmt.Errorf("the manifest's digest is %s, want %s; another one, or a damaged one", got, printable(want))
		}
	}
	return nil
}

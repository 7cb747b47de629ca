package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	orascontent "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	orasregistry "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"slipway/flash/oci"
	"slipway/layers/plaintext"
)

// registry reads manifests and blobs of one repository, by oras-go.
type registry struct {
	web
	repo *remote.Repository
	hub  *HubAccess // nil of another registry
}

// newRegistry returns a client of a repository, with the user's login. It uses plain HTTP for a
// registry on this machine, as docker does, else TLS. It contacts no server.
func newRegistry(ref reference) *registry {
	at := orasregistry.Reference{Registry: ref.host, Repository: ref.repo}
	r := &registry{hub: ref.hub, repo: &remote.Repository{Reference: at, PlainHTTP: ref.hub == nil && isLoopback(ref.host), ManifestMediaTypes: oci.DocumentTypes, TagListPageSize: 1000, TagListMaxPages: 1000}}
	_ = r.repo.SetReferrersCapability(true) // Slipway's manifests refer to no others
	r.client = newClient()
	transport := r.client.Transport.(*http.Transport)
	if ref.hub != nil {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ref.hub.Roots}
		transport.DialTLSContext = ref.hub.DialTLS
	}
	r.client.Transport = registryTransport{transport, r.repo.PlainHTTP}
	login := &auth.Client{Client: r.client, Cache: auth.NewCache(), Credential: func(ctx context.Context, asked string) (auth.Credential, error) {
		if asked != at.Host() {
			return auth.EmptyCredential, nil
		}
		if ref.hub != nil {
			user, password, err := ref.hub.Login()
			return auth.Credential{Username: user, Password: password}, err
		}
		return findCredentials(ctx, ref.host, ref.repo)
	}}
	r.repo.Client = login
	r.send = func(req *http.Request) (*http.Response, error) {
		res, err := login.Do(req.WithContext(auth.AppendRepositoryScope(req.Context(), at, auth.ActionPull)))
		if err == nil && res.StatusCode == http.StatusUnauthorized && res.Request.URL.Host == req.URL.Host {
			res.Body.Close()
			return nil, r.loginError(errors.New(res.Status))
		}
		return res, r.explainError(req.Context(), err)
	}
	return r
}

// registryTransport refuses requests without TLS, except to this machine. A registry names token
// servers, which receive the password, and upload servers, and they must not be plain HTTP.
type registryTransport struct {
	*http.Transport
	plain bool
}

// RoundTrip sends a request, and restarts the silence timer. It refuses a URL with a user, or one
// without TLS, except to this machine.
func (t registryTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if plain := t.plain && req.URL.Scheme == "http" && isLoopback(req.URL.Host); req.URL.Scheme != "https" && !plain || req.URL.User != nil {
		return nil, permanentError{fmt.Errorf("the registry sends us to %s://%s, which is not https", req.URL.Scheme, plaintext.OneLine(req.URL.Host))}
	}
	if silent, ok := req.Context().Value(silentTimer{}).(*time.Timer); ok {
		silent.Reset(silenceLimit)
	}
	return t.Transport.RoundTrip(req)
}

// silentTimer is the context key of the timer that ends a call of a silent registry.
type silentTimer struct{}

// loginError says how to log in to the registry.
func (r *registry) loginError(err error) error {
	host := r.repo.Reference.Host()
	if r.hub != nil {
		return answerError{permanentError{fmt.Errorf("the hub %s refuses us: %w", host, err)}, http.StatusUnauthorized}
	}
	return answerError{permanentError{fmt.Errorf("%s wants us to log in: %w\n  podman login %s, or docker login, whose files are read", host, err, host)}, http.StatusUnauthorized}
}

const maxWords = 300

// explainError turns an error of oras-go into one that contains the registry's answer but no URL,
// which may hold a token. Its type says whether to try again.
func (r *registry) explainError(ctx context.Context, err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case err == nil, errors.As(err, new(answerError)):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return r.loginError(errors.New("401 Unauthorized"))
	case errors.As(err, &answer):
		return r.explainAnswer(answer)
	case errors.Is(err, errdef.ErrNotFound):
		return r.explainAnswer(&errcode.ErrorResponse{StatusCode: http.StatusNotFound})
	case errors.As(err, new(*url.Error)), errors.As(err, new(net.Error)), errors.Is(err, io.ErrUnexpectedEOF):
		return connectionError(err)
	}
	return permanentError{printableError{err}}
}

// explainAnswer returns the error of a registry's status and first message; for 401 loginError's.
func (r *registry) explainAnswer(answer *errcode.ErrorResponse) error {
	code := answer.StatusCode
	status := fmt.Sprintf("%d %s", code, http.StatusText(code))
	if code == http.StatusUnauthorized && r.hub != nil && len(answer.Errors) > 0 {
		status += ": " + plaintext.OneLine(plaintext.Clean(answer.Errors[0].Message, maxWords))
	}
	if code == http.StatusUnauthorized {
		return r.loginError(errors.New(status))
	}
	err := statusError(&http.Response{StatusCode: code, Status: status, Request: &http.Request{URL: &url.URL{Host: r.repo.Reference.Host()}}})
	if len(answer.Errors) > 0 {
		words := strings.TrimSpace(answer.Errors[0].Code + " " + answer.Errors[0].Message)
		err = fmt.Errorf("%w (%s)", err, plaintext.OneLine(plaintext.Clean(words, maxWords)))
	}
	return answerError{err, code}
}

// try runs call until it succeeds, fails permanently, or fails as often as failuresInARow or
// isRefused say. It waits between tries, and cancels calls of a silent registry. Messages use name.
func (r *registry) try(ctx context.Context, name string, call func(context.Context, *remote.Repository) error) error {
	for failures := 1; ; failures++ {
		err := r.tryOnce(ctx, call)
		if err == nil || errors.As(err, new(permanentError)) || ctx.Err() != nil || failures >= failuresInARow || isRefused(err, failures) {
			return contextCause(ctx, err)
		}
		if err := waitShown(ctx, "for "+name, failures, err); err != nil {
			return err
		}
	}
}

// tryOnce runs call, explains its error, and cancels it when the registry falls silent.
func (r *registry) tryOnce(ctx context.Context, call func(context.Context, *remote.Repository) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	defer silent.Stop()
	ctx = context.WithValue(ctx, silentTimer{}, silent)
	return r.explainError(ctx, call(ctx, r.repo))
}

// openFile requests a blob by its digest, or the rest of a partial one.
func (r *registry) openFile(ctx context.Context, w fileRequest, h cachedPart) (fileResponse, error) {
	scheme := plaintext.Either(r.repo.PlainHTTP, "http", "https")
	at := r.repo.Reference
	w.ref.url = &url.URL{Scheme: scheme, Host: at.Host(), Path: "/v2/" + at.Repository + "/blobs/sha256:" + w.sha256}
	a, err := r.web.openFile(ctx, w, h)
	a.validator = "digest " + w.sha256 // a blob has one version
	return a, err
}

// resolveReference reads and verifies the manifest of ref's digest, or else of its tag, and returns
// its files; of an index those for arch.
func (r *registry) resolveReference(ctx context.Context, ref reference, arch string) (*artifact, error) {
	text, err := r.fetchManifest(ctx, cmp.Or(ref.sum, ref.tag))
	if err != nil {
		return nil, err
	}
	return resolveArtifact(text, ref, arch, func(m v1.Descriptor) ([]byte, error) {
		return r.fetchManifest(ctx, string(m.Digest))
	})
}

// fetchManifest fetches a manifest by tag or digest. It verifies the digest in name, or else the
// one that the registry sends. It refuses one over oci.MaxDocumentBytes.
func (r *registry) fetchManifest(ctx context.Context, name string) (data []byte, err error) {
	err = r.try(ctx, r.repo.Reference.Repository, func(ctx context.Context, repo *remote.Repository) error {
		d, body, err := repo.FetchReference(ctx, name)
		if err != nil {
			return err
		}
		defer body.Close()
		if d.Size > oci.MaxDocumentBytes {
			return fmt.Errorf("a manifest of more than %d MiB", oci.MaxDocumentBytes>>20)
		}
		data, err = orascontent.ReadAll(body, d)
		return err
	})
	if err == nil && strings.Contains(name, ":") && string(digest.FromBytes(data)) != name {
		err = orascontent.ErrMismatchedDigest
	}
	if errors.Is(err, orascontent.ErrMismatchedDigest) {
		err = fmt.Errorf("%w: another one, or a damaged one", err)
	}
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", name, err)
	}
	return data, nil
}

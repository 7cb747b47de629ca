package fetch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/oci"
	"slipway/layers/plaintext"
)

// This file is what package store needs of registries: it writes to them too.

// Place is a folder with an OCI image layout, or a repository of a registry.
type Place struct {
	Folder      string // "" of a registry
	Host, Name  string // of a repository
	Tag, Digest string // "" where the reference has none
}

const wantPlace = "want HOST/REPOSITORY[:TAG], or a folder that begins with / ./ or ../"

// ParsePlace parses a reference to where artifacts are kept. It contacts no server.
func ParsePlace(text string) (Place, error) {
	rest, parse := strings.TrimPrefix(text, "oci://"), parseRepository
	if after, ok := strings.CutPrefix(text, "oci-dir:"); ok || isFolder(text) {
		rest, parse = after, parseLayout
	}
	if len(text) > maxReferenceBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return Place{}, fmt.Errorf("%.80q: %s", text, wantPlace)
	}
	ref, err := parse(text, rest)
	host, _, _ := strings.Cut(rest, "/")
	switch {
	case ref.kind == kindOCI && !strings.ContainsAny(host, ".:") && host != "localhost":
		err = fmt.Errorf("%q: no registry in it; %s", text, wantPlace)
	case err == nil && ref.title != "":
		err = fmt.Errorf("%q: #%s names one file, and an artifact is all of them", text, ref.title)
	}
	return Place{Folder: ref.path, Host: ref.host, Name: ref.repo, Tag: ref.tag, Digest: ref.sum}, err
}

func isFolder(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// CheckTag refuses what no registry takes as a tag.
func CheckTag(tag string) error {
	if !tagPattern().MatchString(tag) {
		return fmt.Errorf("tag %q: want at most 128 letters, digits and . _ -, and no . or - at its beginning", plaintext.OneLine(tag))
	}
	return nil
}

// String returns the place without its tag and digest.
func (p Place) String() string {
	return cmp.Or(p.Folder, p.Host+"/"+p.Name)
}

// Repository is a repository of a registry, with the user's login for it.
type Repository struct {
	Place
	r *registry
}

// Repository returns the place's repository. It contacts no server. actions is what the
// user wants to do there: pull, and push or delete.
func (p Place) Repository(actions string) *Repository {
	r := newRegistry(reference{kind: kindOCI, host: p.Host, repo: p.Name})
	r.actions = actions
	return &Repository{p, r}
}

// Close closes the connections.
func (r *Repository) Close() { r.r.closeConnections() }

// Manifest fetches a manifest by a tag or a digest, and proves it.
func (r *Repository) Manifest(ctx context.Context, name string) ([]byte, error) {
	return r.r.fetchManifest(ctx, name)
}

// Fetch fetches a blob into a file below dir, or goes on after the bytes that an earlier
// run left there. It proves the blob's size and digest. name is for messages.
func (r *Repository) Fetch(ctx context.Context, d v1.Descriptor, name, dir string) (File, error) {
	ref := reference{kind: kindOCI, text: r.String() + "@" + string(d.Digest), host: r.Host, repo: r.Name, sum: string(d.Digest)}
	o := &Origin{ref: ref, opt: Options{Dir: dir}, from: r.r}
	return o.downloadFile(ctx, fileRequest{ref: ref, file: File{Name: name, Reference: ref.text}, sha256: d.Digest.Encoded(), sizeBytes: d.Size, sized: true})
}

// Request is a request to a registry.
type Request struct {
	Method string
	// Address is a path below the repository, which begins with a slash, or where the
	// registry sent us to.
	Address string
	Header  http.Header
	// Body opens what is sent: anew for each try. nil is nothing.
	Body      func() (io.ReadCloser, error)
	SizeBytes int64 // of the body
}

// Answer is a registry's answer of a status below 300.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	url    *url.URL
}

// Location returns the address that the registry names for the next request, or "".
func (a Answer) Location() string {
	u, err := a.url.Parse(a.Header.Get("Location"))
	if err != nil || a.Header.Get("Location") == "" {
		return ""
	}
	return u.String()
}

// answerLimit is how long a registry may take to store what it received.
const answerLimit = 10 * time.Minute

// Send sends a request once, and reads the answer. A status of 300 or more is an error: see
// StatusOf.
func (r *Repository) Send(ctx context.Context, q Request) (Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := silenceLimit
	if q.Method == http.MethodPut && q.Body == nil { // the registry proves a whole upload
		limit = answerLimit
	}
	silent := time.AfterFunc(limit, func() { cancel(errSilent) })
	defer silent.Stop()
	req, err := r.newRequest(ctx, q, silent)
	if err != nil {
		return Answer{}, err
	}
	res, err := r.r.send(req)
	if err != nil {
		return Answer{}, connectionError(contextCause(ctx, err))
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, oci.MaxDocumentBytes+1))
	switch {
	case res.StatusCode >= http.StatusMultipleChoices:
		return Answer{}, newAnswerError(res, body)
	case err != nil:
		return Answer{}, contextCause(ctx, err)
	case len(body) > oci.MaxDocumentBytes:
		return Answer{}, permanentError{fmt.Errorf("%s answers with more than %d MiB", req.URL.Host, oci.MaxDocumentBytes>>20)}
	}
	return Answer{res.StatusCode, res.Header, body, res.Request.URL}, nil
}

func (r *Repository) newRequest(ctx context.Context, q Request, silent *time.Timer) (*http.Request, error) {
	address := q.Address
	if strings.HasPrefix(address, "/") {
		address = r.r.base + address
	}
	req, err := http.NewRequestWithContext(ctx, q.Method, address, nil)
	if err != nil {
		return nil, permanentError{err}
	}
	if plain := req.URL.Scheme == "http" && strings.HasPrefix(r.r.base, "http:") && isLoopback(req.URL.Host); req.URL.Scheme != "https" && !plain || req.URL.User != nil {
		return nil, permanentError{fmt.Errorf("the registry sends us to %s://%s, which is not https", req.URL.Scheme, plaintext.OneLine(req.URL.Host))}
	}
	for name, values := range q.Header {
		req.Header[name] = values
	}
	if q.Body == nil {
		return req, nil
	}
	req.ContentLength = q.SizeBytes
	req.GetBody = func() (io.ReadCloser, error) {
		body, err := q.Body()
		return timedBody{body, silent}, err
	}
	req.Body, err = req.GetBody()
	return req, err
}

// timedBody keeps a request alive for as long as the registry takes its bytes.
type timedBody struct {
	io.ReadCloser
	silent *time.Timer
}

func (b timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.silent.Reset(silenceLimit)
	if err != nil {
		b.silent.Reset(answerLimit)
	}
	return n, err
}

// rewindBody opens a request's body anew for another try.
func rewindBody(req *http.Request, tries int) (err error) {
	if tries > 0 && req.GetBody != nil {
		req.Body, err = req.GetBody()
	}
	return err
}

// answerError is a registry's answer of a status of 300 or more.
type answerError struct {
	error
	status int
}

func (a answerError) Unwrap() error { return a.error }

// StatusOf returns the status of a registry's answer, or 0 for other errors.
func StatusOf(err error) int {
	var a answerError
	errors.As(err, &a)
	return a.status
}

const maxWords = 300

// newAnswerError adds the registry's own words to its status.
func newAnswerError(res *http.Response, body []byte) error {
	err := statusError(res)
	var said struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(body, &said) == nil && len(said.Errors) > 0 {
		words := strings.TrimSpace(said.Errors[0].Code + " " + said.Errors[0].Message)
		err = fmt.Errorf("%w (%s)", err, plaintext.OneLine(plaintext.Clean(words, maxWords)))
	}
	return answerError{err, res.StatusCode}
}

// Permanent marks an error that another try cannot correct.
func Permanent(err error) error { return permanentError{err} }

// Retry repeats try after a pause, until it succeeds or its error is permanent. It ends after
// several tries without progress, which try reports. name is for messages.
func Retry(ctx context.Context, name string, try func() (progressed bool, err error)) error {
	for failures := 1; ; failures++ {
		progressed, err := try()
		var f permanentError
		if err == nil || errors.As(err, &f) || ctx.Err() != nil {
			return contextCause(ctx, err)
		}
		if progressed {
			failures = 1
		}
		if failures >= failuresInARow {
			return err
		}
		if err := waitShown(ctx, name, failures, err); err != nil {
			return err
		}
	}
}

// IsNetworkError reports whether an error is of the way to the registry.
func IsNetworkError(err error) bool {
	var network *net.OpError
	return errors.As(err, &network)
}

package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	orascontent "oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"

	"slipway/layers/plaintext"
)

// This file is what package store needs of registries: it writes to them too.

// Place is a folder with an OCI image layout, or a repository of a registry or of the hub.
type Place struct {
	Folder      string     // "" of a registry
	Host, Name  string     // of a repository
	Tag, Digest string     // "" if the reference has none
	Hub         *HubAccess // nil if it is not in the hub
}

const wantPlace = "want HOST/REPOSITORY[:TAG], hub:[NAME][:TAG], or a folder that begins with / ./ or ../"

// ParsePlace parses a repository (HOST/NAME[:TAG], or that after oci://), a repository of the hub
// (hub:[NAME][:TAG]) or a folder with an OCI layout (oci-dir:PATH, or a path that begins with / ./ or
// ../). It contacts no server. It refuses #FILE, and a host without a dot or a port except localhost.
func ParsePlace(text string) (Place, error) {
	rest, parse := strings.TrimPrefix(text, "oci://"), parseRepository
	if after, ok := strings.CutPrefix(text, "oci-dir:"); ok || isFolder(text) {
		rest, parse = after, parseLayout
	} else if after, ok := strings.CutPrefix(text, "hub:"); ok && !hasPort(after) {
		rest, parse = after, parseHub
	}
	if len(text) > maxReferenceBytes || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return Place{}, fmt.Errorf("%.80q: %s", text, wantPlace)
	}
	ref, err := parse(text, rest)
	host, _, _ := strings.Cut(rest, "/")
	switch {
	case ref.kind == kindOCI && ref.hub == nil && !strings.ContainsAny(host, ".:") && host != "localhost":
		err = fmt.Errorf("%q: no registry in it; %s", text, wantPlace)
	case err == nil && ref.title != "":
		err = fmt.Errorf("%q: #%s names one file, and an artifact is all of them", text, ref.title)
	}
	return Place{Folder: ref.path, Host: ref.host, Name: ref.repo, Tag: ref.tag, Digest: ref.sum, Hub: ref.hub}, err
}

func isFolder(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// CheckTag returns an error for a tag that no registry accepts.
func CheckTag(tag string) error {
	if !tagPattern().MatchString(tag) {
		return fmt.Errorf("tag %q: want at most 128 letters, digits and . _ -, and no . or - at its beginning", plaintext.OneLine(tag))
	}
	return nil
}

// String returns the place without its tag and digest.
func (p Place) String() string {
	if p.Hub != nil {
		return "hub:" + p.Name
	}
	return cmp.Or(p.Folder, p.Host+"/"+p.Name)
}

// Repository is a repository of a registry, with the user's login for it.
type Repository struct {
	Place
	r *registry
}

// Repository returns the place's repository. It contacts no server.
func (p Place) Repository() *Repository {
	return &Repository{p, newRegistry(reference{kind: kindOCI, host: p.Host, repo: p.Name, hub: p.Hub})}
}

// Close closes the connections.
func (r *Repository) Close() { r.r.closeConnections() }

// Manifest fetches a manifest by a tag or a digest, and verifies its digest.
func (r *Repository) Manifest(ctx context.Context, name string) ([]byte, error) {
	return r.r.fetchManifest(ctx, name)
}

// Try runs call, which uses oras-go, as often as a download tries. See StatusOf for its error.
func (r *Repository) Try(ctx context.Context, call func(context.Context, *remote.Repository) error) error {
	return r.r.try(ctx, r.String(), call)
}

// Fetch fetches a blob into the file called name below the folder dir, and verifies its size and
// digest. It reuses the complete file of an earlier run, or resumes the partial one.
func (r *Repository) Fetch(ctx context.Context, d v1.Descriptor, name, dir string) (File, error) {
	ref := reference{kind: kindOCI, text: r.String() + "@" + string(d.Digest), host: r.Host, repo: r.Name, sum: string(d.Digest)}
	o := &Origin{ref: ref, opt: Options{Dir: dir}, from: r.r}
	return o.downloadFile(ctx, fileRequest{ref: ref, file: File{Name: name, Reference: ref.text}, sha256: d.Digest.Encoded(), sizeBytes: d.Size, sized: true})
}

// answerLimit is how long a registry may take to store what it received.
const answerLimit = 10 * time.Minute

// ErrOther is the error of an upload whose file has another digest or size than its descriptor.
var ErrOther = errors.New("it has another digest or size")

// Upload sends a blob, and starts over after a lost connection. Each try calls open. count gets the
// bytes sent, and a negative number after a lost connection. name is for messages.
func (r *Repository) Upload(ctx context.Context, d v1.Descriptor, name string, open func() (io.ReadCloser, error), count func(int64)) error {
	return r.r.try(ctx, name, func(ctx context.Context, repo *remote.Repository) error {
		in, err := open()
		if err != nil {
			return err
		}
		defer in.Close()
		body := &uploadBody{in: orascontent.NewVerifyReader(in, d), silent: ctx.Value(silentTimer{}).(*time.Timer), count: count}
		return body.end(repo.Blobs().Push(ctx, d, body))
	})
}

// uploadBody is the body of an upload request. Each read restarts the timer that ends a silent
// connection. After end, when the HTTP client may still read, Read returns an error.
type uploadBody struct {
	in     *orascontent.VerifyReader
	silent *time.Timer
	count  func(int64)

	mu    sync.Mutex
	sent  int64
	err   error // of the file, or io.EOF
	ended bool
}

// Read reads content, calls count, and restarts the timer, after the last byte with answerLimit.
func (b *uploadBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, errors.New("this request has ended")
	}
	n, err := b.in.Read(p)
	b.sent, b.err = b.sent+int64(n), err
	b.count(int64(n))
	b.silent.Reset(silenceLimit)
	if err != nil {
		b.silent.Reset(answerLimit)
	}
	return n, err
}

// end stops the body and returns the result of the upload: ErrOther or the file's error, if the
// content was wrong, else err, the request's error. If err is not nil, it calls count with -b.sent.
func (b *uploadBody) end(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if err != nil {
		b.count(-b.sent)
	}
	wrong := b.err
	if errors.Is(wrong, io.EOF) {
		wrong = b.in.Verify()
	}
	switch {
	case errors.Is(wrong, io.ErrUnexpectedEOF), errors.Is(wrong, orascontent.ErrTrailingData), errors.Is(wrong, orascontent.ErrMismatchedDigest):
		return permanentError{ErrOther}
	case wrong != nil:
		return permanentError{wrong}
	}
	return err
}

// answerError is the error of a registry's answer with a status of 300 or more.
type answerError struct {
	error
	status int
}

func (a answerError) Unwrap() error { return a.error }

// StatusOf returns the status of a registry's answer, or 0 for other errors.
func StatusOf(err error) int {
	a, _ := errors.AsType[answerError](err)
	return a.status
}

// IsNetworkError reports whether err is a failure of the network connection to the registry.
func IsNetworkError(err error) bool {
	return errors.As(err, new(*net.OpError))
}

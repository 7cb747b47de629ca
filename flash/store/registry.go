package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/fetch"
)

// registry is a repository of a registry as a store.
type registry struct{ *fetch.Repository }

func (r *registry) close() { r.Close() }

// send sends a request, with as many tries as a download.
func (r *registry) send(ctx context.Context, q fetch.Request) (answer fetch.Answer, err error) {
	err = fetch.Retry(ctx, r.String(), func() (bool, error) {
		answer, err = r.Send(ctx, q)
		return false, err
	})
	return answer, err
}

func (r *registry) has(ctx context.Context, d v1.Descriptor) (bool, error) {
	_, err := r.send(ctx, fetch.Request{Method: http.MethodHead, Address: "/blobs/" + string(d.Digest)})
	if fetch.StatusOf(err) == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

// put uploads a blob, and goes on after a cut where the registry kept what it had. Many do
// not, so that the blob begins again.
func (r *registry) put(ctx context.Context, b blob, sent func(int64)) error {
	u := &upload{blob: b, to: r, sent: sent}
	furthest := int64(0)
	err := fetch.Retry(ctx, b.name, func() (bool, error) {
		err := u.run(ctx)
		progressed := u.offset > furthest
		furthest = max(furthest, u.offset)
		return progressed, err
	})
	if err != nil {
		u.cancel(ctx)
	}
	return err
}

// upload is one blob on its way to a registry.
type upload struct {
	blob
	to       *registry
	sent     func(int64)
	location string // "": not begun
	offset   int64  // of what the registry has
	counted  int64  // what sent was told

	mu      sync.Mutex // a request may read on after its end
	current *sender
	wrong   error // of what was read
}

func (u *upload) run(ctx context.Context) error {
	err := u.begin(ctx)
	if err == nil {
		err = u.sendRest(ctx)
	}
	if err := u.proveSent(err); err != nil {
		return err
	}
	address, err := url.Parse(u.location)
	if err != nil {
		return fetch.Permanent(err)
	}
	query := url.Values{"digest": {string(u.Digest)}}.Encode()
	if address.RawQuery != "" { // which the registry may have signed
		query = address.RawQuery + "&" + query
	}
	address.RawQuery = query
	_, err = u.to.Send(ctx, fetch.Request{Method: http.MethodPut, Address: address.String()})
	if err != nil {
		u.location = "" // what came of it is unknown
	}
	return err
}

// proveSent refuses what was read from the file and is not the blob.
func (u *upload) proveSent(err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.wrong != nil:
		return fetch.Permanent(u.wrong)
	case err != nil:
		return err
	case u.current.at < u.Size:
		return errors.New("the registry answers before it has all")
	case hex.EncodeToString(u.current.hash.Sum(nil)) != u.Digest.Encoded():
		return fetch.Permanent(fmt.Errorf("%s: %w", u.name, errChanged))
	}
	return nil
}

// begin starts an upload, or asks how much the registry has of an earlier one.
func (u *upload) begin(ctx context.Context) error {
	if u.location != "" {
		answer, err := u.to.Send(ctx, fetch.Request{Method: http.MethodGet, Address: u.location})
		last, ok := lastOfRange(answer.Header.Get("Range"))
		if err == nil && answer.Status == http.StatusNoContent && ok && last < u.Size {
			u.offset = last + 1
			u.follow(answer)
			return nil
		}
		if err != nil && fetch.StatusOf(err) == 0 {
			return err
		}
	}
	u.location, u.offset = "", 0
	answer, err := u.to.Send(ctx, fetch.Request{Method: http.MethodPost, Address: "/blobs/uploads/"})
	if err != nil {
		return err
	}
	if u.follow(answer); u.location == "" {
		return fetch.Permanent(errors.New("the registry does not say where to upload to"))
	}
	return nil
}

func (u *upload) follow(answer fetch.Answer) {
	if next := answer.Location(); next != "" {
		u.location = next
	}
}

// lastOfRange reads the header of an upload, such as 0-1023.
func lastOfRange(text string) (int64, bool) {
	first, last, _ := strings.Cut(strings.TrimPrefix(text, "bytes="), "-")
	n, err := strconv.ParseInt(last, 10, 64)
	return n, err == nil && first == "0" && n >= 0
}

// sendRest sends what the registry does not have, in one piece, as docker does: not every
// registry takes several.
func (u *upload) sendRest(ctx context.Context) error {
	q := fetch.Request{Method: http.MethodPatch, Address: u.location, Header: http.Header{"Content-Type": {"application/octet-stream"}}, SizeBytes: u.Size - u.offset}
	if u.offset > 0 {
		q.Header.Set("Content-Range", fmt.Sprintf("%d-%d", u.offset, u.Size-1))
	}
	q.Body = func() (io.ReadCloser, error) { return u.openRest() }
	answer, err := u.to.Send(ctx, q)
	if err == nil {
		u.offset = u.Size
		u.follow(answer)
	}
	return err
}

// openRest opens the blob after what the registry has. The hash is of the whole blob.
func (u *upload) openRest() (io.ReadCloser, error) {
	f, err := u.open()
	if err != nil {
		return nil, u.refuse(err)
	}
	s := &sender{u: u, in: f, hash: sha256.New(), at: u.offset}
	if _, err := io.CopyN(s.hash, f, u.offset); err != nil {
		f.Close()
		return nil, u.refuse(err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.current = s
	u.count(u.offset)
	return s, nil
}

func (u *upload) refuse(err error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wrong = err
	return err
}

// count tells how much of the blob is on the way. After a cut that is less than before.
func (u *upload) count(n int64) {
	u.sent(n - u.counted)
	u.counted = n
}

// sender reads a blob that is sent. It fails where the blob ends too early or too late.
type sender struct {
	u    *upload
	in   io.ReadCloser
	hash hash.Hash
	at   int64
}

func (s *sender) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.u.mu.Lock()
	defer s.u.mu.Unlock()
	s.at += int64(n)
	switch {
	case s.u.current != s:
		return 0, errors.New("this request has ended")
	case s.at > s.u.Size, err == io.EOF && s.at < s.u.Size:
		err = fmt.Errorf("%s: %w", s.u.name, errChanged)
	}
	if err != nil && err != io.EOF {
		s.u.wrong = err
		return 0, err
	}
	s.hash.Write(p[:n])
	s.u.count(s.at)
	return n, err
}

func (s *sender) Close() error { return s.in.Close() }

const cancelLimit = 5 * time.Second

// cancel has the registry forget an upload, also after a Ctrl-C.
func (u *upload) cancel(ctx context.Context) {
	if u.location == "" {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelLimit)
	defer stop()
	u.to.Send(ctx, fetch.Request{Method: http.MethodDelete, Address: u.location}) // a registry forgets uploads by itself too
}

func (r *registry) tag(ctx context.Context, manifest []byte, tags []string) error {
	for _, tag := range tags {
		_, err := r.send(ctx, fetch.Request{
			Method: http.MethodPut, Address: "/manifests/" + tag, SizeBytes: int64(len(manifest)),
			Header: http.Header{"Content-Type": {v1.MediaTypeImageManifest}}, Body: bytesBlob("", v1.Descriptor{}, manifest).open,
		})
		if err != nil {
			return fmt.Errorf("tag %s: %w", tag, err)
		}
	}
	return nil
}

func (r *registry) manifest(ctx context.Context, name string) ([]byte, error) {
	return r.Manifest(ctx, name)
}

func (r *registry) read(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	answer, err := r.send(ctx, fetch.Request{Method: http.MethodGet, Address: "/blobs/" + string(d.Digest)})
	if err == nil && digest.FromBytes(answer.Body) != d.Digest {
		err = fmt.Errorf("%s: the registry sends something else", d.Digest)
	}
	return answer.Body, err
}

func (r *registry) get(ctx context.Context, d v1.Descriptor, name, dir string) (string, error) {
	f, err := r.Fetch(ctx, d, name, dir)
	return f.Path, err
}

// maxTags is more than a repository has that somebody cleans.
const maxTags = 20_000

func (r *registry) tags(ctx context.Context) ([]tagged, error) {
	var all []tagged
	next := "/tags/list?n=1000"
	for next != "" {
		answer, err := r.send(ctx, fetch.Request{Method: http.MethodGet, Address: next})
		if err != nil {
			return nil, err
		}
		var list struct{ Tags []string }
		if err := json.Unmarshal(answer.Body, &list); err != nil {
			return nil, errors.New("the registry's list of tags is no JSON")
		}
		slices.Sort(list.Tags)
		for _, tag := range list.Tags {
			if err := fetch.CheckTag(tag); err != nil {
				return nil, err
			}
			all = append(all, tagged{tag: tag})
		}
		if len(all) > maxTags {
			return nil, fmt.Errorf("more than %d tags", maxTags)
		}
		if next = nextPage(answer.Header.Get("Link")); next != "" && len(list.Tags) == 0 {
			return nil, errors.New("the registry's list of tags has no end")
		}
	}
	return all, nil
}

// nextPage returns the rest of a list's address, of which only the query may differ.
func nextPage(link string) string {
	address, _, ok := strings.Cut(strings.TrimPrefix(link, "<"), ">")
	u, err := url.Parse(address)
	if !ok || err != nil || u.RawQuery == "" {
		return ""
	}
	return "/tags/list?" + u.RawQuery
}

func (r *registry) remove(ctx context.Context, digests []string, dry bool) (int64, error) {
	for _, d := range digests {
		if dry {
			break
		}
		_, err := r.send(ctx, fetch.Request{Method: http.MethodDelete, Address: "/manifests/" + d})
		switch fetch.StatusOf(err) {
		case http.StatusNotFound: // somebody else removed it
		case http.StatusMethodNotAllowed:
			return 0, fmt.Errorf("%w: this registry deletes nothing\nnext: repeat the line  # after starting the registry with REGISTRY_STORAGE_DELETE_ENABLED=true (storage: delete: enabled: true in config.yml)", err)
		default:
			if err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

// Package store keeps artifacts in a registry, or in a folder with an OCI image layout. All that it
// reads there is untrusted: names, sizes and digests have limits and are proved.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"slipway/flash/fetch"
)

// Store is a repository of a registry or of the hub, or a folder, with artifacts. Goroutines may share it.
type Store interface {
	// has reports whether the store has a blob.
	has(ctx context.Context, d v1.Descriptor) (bool, error)
	// put copies a blob into the store and verifies its digest. It may open the blob several times.
	put(ctx context.Context, b blob, sent func(int64)) error
	// tag stores a manifest under the tags. All of its blobs must be in the store.
	tag(ctx context.Context, manifest []byte, tags []string) error
	// manifest reads the manifest with a tag or a digest, and verifies its digest.
	manifest(ctx context.Context, name string) ([]byte, error)
	// read reads a small blob, and verifies its digest.
	read(ctx context.Context, d v1.Descriptor) ([]byte, error)
	// get copies a blob to a file below dir, and verifies its digest. It may resume a file that an
	// earlier get left unfinished. name is for messages.
	get(ctx context.Context, d v1.Descriptor, name, dir string) (path string, err error)
	// tags returns all tags. A folder also returns manifests without a tag, and their digests.
	tags(ctx context.Context) ([]tagged, error)
	// remove removes manifests. A folder also removes blobs that no other manifest needs, and
	// returns their size. With dry it removes nothing.
	remove(ctx context.Context, digests []string, dry bool) (freed int64, err error)
	close()
}

// tagged is a tag, and its manifest's digest if the store lists digests.
type tagged struct{ tag, digest string }

// blob is a blob to put.
type blob struct {
	v1.Descriptor
	name string // of the file; "" of the empty configuration
	disk string // the path of a disk image that is packed; "" of all others
	open func() (io.ReadCloser, error)
}

// The actions of a user in a folder. A registry itself decides what it grants.
const (
	toPull  = "pull"
	toPush  = "pull,push"
	toClean = "pull,delete"
)

// open opens a folder for the actions by openFolder, or returns a repository without a request.
func open(place fetch.Place, actions string) (Store, error) {
	if place.Folder == "" {
		return &registry{place.Repository()}, nil
	}
	return openFolder(place.Folder, actions)
}

// openFor opens a store by open, for actions such as toPull. It also returns the parsed reference.
func openFor(reference, actions string) (Store, fetch.Place, error) {
	place, err := fetch.ParsePlace(reference)
	if err != nil {
		return nil, place, err
	}
	s, err := open(place, actions)
	return s, place, err
}

// openWhole opens a store for actions such as toPull, and refuses a reference that has a tag or a
// digest. It also returns the parsed reference.
func openWhole(reference, actions string) (Store, fetch.Place, error) {
	place, err := fetch.ParsePlace(reference)
	if err == nil && (place.Tag != "" || place.Digest != "") {
		return nil, place, fmt.Errorf("%q names one artifact, and %s is the whole store", reference, place)
	}
	return openFor(reference, actions)
}

// meanings maps HTTP status codes of a registry to the next step.
var meanings = map[int]string{
	http.StatusUnauthorized:          "podman login HOST  # or docker login HOST",
	http.StatusForbidden:             "podman login HOST  # as a user who may do that in this repository",
	http.StatusMethodNotAllowed:      "curl -I https://HOST/v2/  # look whether the registry is a read-only one, or a cache of another",
	http.StatusRequestEntityTooLarge: "curl -I https://HOST/v2/  # let the proxy before the registry take large requests (nginx: client_max_body_size 0)",
	http.StatusInsufficientStorage:   "repeat the line  # after making room on the registry's disk",
	http.StatusInternalServerError:   "curl -I https://HOST/v2/  # look into the registry's log; its disk may be full",
}

// hubMeanings are those of a hub.
var hubMeanings = map[int]string{
	http.StatusUnauthorized:        `slipway join HOST TOKEN  # an admin gets the token from "slipway hub invite"`,
	http.StatusForbidden:           "slipway hub people  # by an admin: operators push, admins also remove",
	http.StatusInternalServerError: "df -h  # on the hub; its disk may be full",
}

// explainStoreError adds the next step to an error of a store, unless it has one.
func explainStoreError(place fetch.Place, err error) error {
	next := meanings[fetch.StatusOf(err)]
	if place.Hub != nil {
		next = hubMeanings[fetch.StatusOf(err)]
	}
	switch {
	case err == nil || strings.Contains(err.Error(), "\nnext: "):
		return err
	case next != "":
		return fmt.Errorf("%w\nnext: %s", err, strings.ReplaceAll(next, "HOST", place.Host))
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w\nnext: df -h  # make room, then repeat the line; Slipway keeps the files that are whole", err)
	case fetch.IsNetworkError(err):
		return fmt.Errorf("%w\nnext: curl -I https://%s/v2/", err, place.Host)
	}
	return err
}

// Package artifacts keeps artifacts in NATS, and serves them by the protocol of OCI registries. The
// bucket "blobs" has an entry for each digest, for all repositories, and the stream "artifacts" the
// chunks of the blobs. The bucket "tags" has the tags.
package artifacts

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/flash/oci"
	"slipway/layers/bus"
)

const (
	answerLimit  = 30 * time.Second // of the engine, for one chunk
	maxPathBytes = 600              // more than a repository of 255 bytes with a tag has
	maxUploads   = 64               // at once
)

// Artifacts is a registry.
type Artifacts struct {
	*ociregistry.Funcs // refuses what has no method here
	js                 bus.Engine
	chunks             jetstream.Stream
	blobs, tags        *bus.Bucket
	who                func(*http.Request) (role string, err error)
	protocol           http.Handler
	uploads            chan struct{} // has an entry for each upload
	keepFor, orphanFor time.Duration // see Collect
}

// New opens the store, or makes it for this many bytes, 0 for no limit. A full one refuses what is new.
// who proves who sends a request.
func New(ctx context.Context, e bus.Engine, most int64, who func(*http.Request) (role string, err error)) (*Artifacts, error) {
	a := &Artifacts{who: who, keepFor: keepFor, orphanFor: orphanFor, uploads: make(chan struct{}, maxUploads)}
	a.protocol = ociserver.New(a, &ociserver.Options{DisableSinglePostUpload: true, DisableReferrersAPI: true})
	js, err := jetstream.New(e.Conn(), jetstream.WithPublishAsyncTimeout(answerLimit))
	if err != nil {
		return nil, err
	}
	a.js = bus.Engine{JetStream: js, Replicas: e.Replicas, Theirs: e.Theirs}
	if a.blobs, err = bus.NewBucket(ctx, a.js, "blobs", 0, most/10); err != nil { // a manifest is in its entry
		return nil, err
	}
	if a.tags, err = bus.NewBucket(ctx, a.js, "tags", 0, most/50); err != nil {
		return nil, err
	}
	a.chunks, err = bus.NewStream(ctx, a.js, jetstream.StreamConfig{Name: "artifacts", Subjects: []string{chunkOf("*", "*")}, MaxBytes: most - most/10 - most/50, Discard: jetstream.DiscardNew}) // without AllowDirect, as a follower may be behind
	return a, err
}

// builds is the repository where stations may push, too: jobs name what is there by digest.
const builds = "/v2/builds/"

// readers may read, writers may also push. Only admins delete.
var (
	writers = []string{string(job.Operator), string(job.Admin)}
	readers = append([]string{string(job.Viewer), string(job.AStation)}, writers...)
	allowed = map[string][]string{
		http.MethodGet: readers, http.MethodHead: readers,
		http.MethodPost: writers, http.MethodPut: writers, // no PATCH: a blob comes in one request
		http.MethodDelete: {string(job.Admin)},
	}
)

// ServeHTTP answers the requests below /v2/.
func (a *Artifacts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	role, err := a.who(r)
	switch {
	case err != nil:
		w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
		refuse(w, ociregistry.ErrUnauthorized, err.Error())
	case !slices.Contains(allowed[r.Method], role) && !(role == string(job.AStation) && strings.HasPrefix(r.URL.Path, builds) && slices.Contains(allowed[r.Method], string(job.Operator))):
		refuse(w, ociregistry.ErrDenied, fmt.Sprintf("a %s may not do that", role))
	case len(r.URL.Path) > maxPathBytes:
		refuse(w, ociregistry.ErrNameInvalid, fmt.Sprintf("a name of more than %d bytes", maxPathBytes))
	case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") && (r.ContentLength < 0 || r.ContentLength > oci.MaxDocumentBytes):
		err := fmt.Errorf("a manifest has a Content-Length of at most %d MiB", oci.MaxDocumentBytes>>20)
		_ = ociregistry.WriteError(w, ociregistry.NewHTTPError(err, http.StatusRequestEntityTooLarge, nil, nil))
	case r.Method == http.MethodHead: // is a GET whose answer has no body
		r = r.Clone(r.Context())
		r.Method = http.MethodGet
		fallthrough
	default:
		a.protocol.ServeHTTP(w, r)
	}
}

func refuse(w http.ResponseWriter, kind ociregistry.Error, why string) {
	_ = ociregistry.WriteError(w, ociregistry.NewError(why, kind.Code(), nil))
}

package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"slipway/flash/fetch"
)

// PutFile puts one small file into a store, unless it is there, and returns the digest of a manifest
// that names it. A manifest that is there is put again: a store may count the time from that.
func PutFile(ctx context.Context, place fetch.Place, data []byte) (string, error) {
	s, err := open(place, toPush)
	if err != nil {
		return "", err
	}
	defer s.close()
	file := v1.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromBytes(data), Size: int64(len(data))}
	manifest, err := json.Marshal(v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Config: v1.DescriptorEmptyJSON, Layers: []v1.Descriptor{file},
	})
	if err != nil {
		return "", err
	}
	for _, b := range []blob{bytesBlob("", file, data), bytesBlob("", v1.DescriptorEmptyJSON, v1.DescriptorEmptyJSON.Data)} {
		if _, err := putMissing(ctx, s, b); err != nil {
			return "", explainStoreError(place, err)
		}
	}
	sum := string(digest.FromBytes(manifest))
	return sum, explainStoreError(place, s.tag(ctx, manifest, []string{sum}))
}

// GetFile returns the file of PutFile, of at most most bytes.
func GetFile(ctx context.Context, place fetch.Place, most int64) ([]byte, error) {
	s, err := open(place, toPull)
	if err != nil {
		return nil, err
	}
	defer s.close()
	manifest, err := s.manifest(ctx, place.Digest)
	var m v1.Manifest
	if err == nil {
		err = json.Unmarshal(manifest, &m)
	}
	if err == nil && (len(m.Layers) != 1 || m.Layers[0].Size > most) {
		err = fmt.Errorf("%s names more than a file of %d bytes", place.Digest, most)
	}
	if err != nil {
		return nil, explainStoreError(place, err)
	}
	return s.read(ctx, m.Layers[0])
}

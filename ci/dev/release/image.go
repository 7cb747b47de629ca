package release

import (
	"bytes"
	"encoding/json"
	"path"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// layout collects the files of an OCI image layout.
type layout []file

// put adds a blob and returns its descriptor.
func (l *layout) put(mediaType string, data []byte) v1.Descriptor {
	d := v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	*l = append(*l, file{path: blobPath(d), mode: 0o644, data: data})
	return d
}

func blobPath(d v1.Descriptor) string {
	return path.Join(v1.ImageBlobsDir, d.Digest.Algorithm().String(), d.Digest.Encoded())
}

func (l *layout) putJSON(mediaType string, v any) (v1.Descriptor, error) {
	data, err := json.Marshal(v)
	return l.put(mediaType, data), err
}

// dockerImage is an entry of manifest.json, which Docker reads if it has no containerd store. That
// file has no index, so each architecture has a name of its own.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// packImage returns a tar archive with the container image for all architectures, as an OCI layout
// that Docker can load too.
func (p product) packImage() ([]byte, error) {
	var files layout
	var docker []dockerImage
	index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex}
	for _, arch := range architectures {
		manifest, names, err := p.addImage(&files, arch)
		if err != nil {
			return nil, err
		}
		index.Manifests, docker = append(index.Manifests, manifest), append(docker, names)
	}
	images, err := files.putJSON(v1.MediaTypeImageIndex, index)
	if err != nil {
		return nil, err
	}
	images.Annotations = map[string]string{v1.AnnotationRefName: p.number(), "io.containerd.image.name": "slipway:" + p.number()}
	index.Manifests = []v1.Descriptor{images}
	for name, v := range map[string]any{
		v1.ImageLayoutFile: v1.ImageLayout{Version: v1.ImageLayoutVersion}, v1.ImageIndexFile: index, "manifest.json": docker,
	} {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: name, mode: 0o644, data: data})
	}
	var b bytes.Buffer
	err = writeTar(&b, "", files, p.date)
	return b.Bytes(), err
}

// addImage adds the blobs of one architecture's image to files. It returns the manifest's
// descriptor, and the entry for Docker.
func (p product) addImage(files *layout, arch string) (v1.Descriptor, dockerImage, error) {
	var tree bytes.Buffer
	err := writeTar(&tree, "", []file{
		{path: "usr/bin/slipway", mode: 0o755, data: p.programs[arch].data},
		p.doc(licencePath), p.doc(noticesPath),
		{path: "tmp/", mode: 0o1777},
	}, p.date)
	if err != nil {
		return v1.Descriptor{}, dockerImage{}, err
	}
	layer := files.put(v1.MediaTypeImageLayerGzip, compress(tree.Bytes()))
	platform := v1.Platform{OS: "linux", Architecture: arch}
	config, err := files.putJSON(v1.MediaTypeImageConfig, v1.Image{
		Created: &p.date, Platform: platform, RootFS: v1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(tree.Bytes())}},
		Config: v1.ImageConfig{
			Entrypoint: []string{"/usr/bin/slipway"}, WorkingDir: "/work", Labels: p.labels(),
			Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"},
		},
	})
	if err != nil {
		return v1.Descriptor{}, dockerImage{}, err
	}
	manifest, err := files.putJSON(v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: config, Layers: []v1.Descriptor{layer}, Annotations: p.labels(),
	})
	manifest.Platform = &platform
	return manifest, dockerImage{blobPath(config), []string{"slipway:" + p.number() + "-" + arch}, []string{blobPath(layer)}}, err
}

func (p product) labels() map[string]string {
	return map[string]string{
		v1.AnnotationTitle: "slipway", v1.AnnotationVersion: p.version, v1.AnnotationRevision: p.id, v1.AnnotationLicenses: "Apache-2.0",
	}
}

func (p product) doc(name string) file {
	return p.docs[slices.IndexFunc(p.docs, func(f file) bool { return f.path == name })]
}

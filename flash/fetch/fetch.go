// Package fetch brings an image from where it lies (a path, a web server, an SSH
// server, an OCI registry or layout) to a file of this machine that is whole and
// proved. What it holds and who signed it is for others: see source and sshsig.
//
// Everything that a server says is input from outside: sizes, names, lists and
// redirects have limits, and what arrives gets its name only once it is proved.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// Options says where what is fetched is kept, and for whom.
type Options struct {
	Dir  string // cache folder; delete it at will
	Arch string // Go's name; which image of an OCI index is meant
}

// File is one file on this machine.
type File struct {
	Path      string
	Name      string // as it is called where it comes from
	Reference string // where that is, without passwords
	SizeBytes int64
	SHA256    string // "": a local file that nobody gave a digest for
	Listed    bool   // the digest was known before the file: it was given, or the artifact's manifest has it
}

// Origin is the place of one image and of what lies beside it.
type Origin struct {
	ref  reference
	opt  Options
	from transport // nil: what is there is on this machine already
	oci  *artifact // of OCI registries and layouts
}

// Open looks where a reference leads. It asks a server only where the image's name
// is not in the reference.
func Open(ctx context.Context, text string, o Options) (*Origin, error) {
	ref, err := parse(text)
	if err != nil {
		return nil, err
	}
	origin := &Origin{ref: ref, opt: o}
	switch ref.kind {
	case kindHTTP:
		origin.from = newWeb(ref.login)
	case kindSFTP:
		origin.from = &boardFolder{}
	case kindOCI:
		r := newRegistry(ref)
		origin.from = r
		origin.oci, err = r.resolve(ctx, ref, o.Arch)
	case kindLayout:
		origin.oci, err = openLayout(ctx, ref, o.Arch)
	}
	if err != nil {
		origin.Close()
		return nil, fmt.Errorf("%s: %w", ref.text, err)
	}
	return origin, nil
}

// Close ends connections. Files stay.
func (o *Origin) Close() {
	if o.from != nil {
		o.from.close()
	}
}

// Name is what the image is called there.
func (o *Origin) Name() string {
	if o.oci != nil {
		return o.oci.name()
	}
	return o.ref.name()
}

// Get brings the image here. A digest, 64 hex digits, is proved before the file is
// kept; where the cache has a file with it, nobody is asked.
func (o *Origin) Get(ctx context.Context, digest string) (File, error) {
	file, err := o.get(ctx, o.ref, digest, 0)
	if err == nil && o.oci != nil && o.oci.unpack {
		file, err = o.unpack(ctx, file, digest)
	}
	if err != nil && o.ref.kind == kindPath && errors.Is(err, fs.ErrNotExist) {
		return File{}, err // it has the name
	}
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", o.ref.text, err)
	}
	return file, nil
}

// maxBesideBytes is more than block maps, signatures and lists of digests have.
const maxBesideBytes = 64 << 20

// Beside brings a small file that lies beside the image. The error is
// fs.ErrNotExist where there is none.
func (o *Origin) Beside(ctx context.Context, name string) (File, error) {
	ref := o.ref.beside(name)
	file, err := o.get(ctx, ref, "", maxBesideBytes)
	if errors.Is(err, fs.ErrPermission) && o.ref.kind == kindHTTP {
		err = errors.Join(fs.ErrNotExist, err) // S3 says so of what is not there
	}
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", ref.text, err)
	}
	return file, nil
}

func (o *Origin) get(ctx context.Context, ref reference, digest string, limit int64) (File, error) {
	file := File{Name: ref.name(), Reference: ref.text, Listed: digest != "" || o.oci != nil}
	if o.ref.kind == kindPath {
		path, err := ref.absolute()
		if err != nil {
			return File{}, err
		}
		return prove(ctx, path, file, digest, limit)
	}
	if o.oci == nil {
		return o.download(ctx, wanted{ref: ref, file: file, sha256: digest, limit: limit})
	}
	blob, err := o.oci.find(ref.title)
	if err != nil {
		return File{}, err
	}
	file.Name = blob.name
	if !o.oci.unpack && digest != "" && digest != blob.sha256 {
		return File{}, wrongDigest(blob.sha256, digest)
	}
	if o.from == nil {
		return prove(ctx, filepath.Join(o.oci.dir, "blobs", "sha256", blob.sha256), file, blob.sha256, limit)
	}
	return o.download(ctx, wanted{ref: ref, file: file, sha256: blob.sha256, limit: limit, sizeBytes: blob.sizeBytes, sized: true})
}

func wrongDigest(got, want string) error {
	return fmt.Errorf("sha256 %s, want %s: it is another file, or a damaged one; nothing of it is used", got, want)
}

// prove compares a file of this machine with its digest, if there is one.
func prove(ctx context.Context, path string, file File, digest string, limit int64) (File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return File{}, localfile.NotHere(path, err)
	case !info.Mode().IsRegular():
		return File{}, errors.New("not a regular file")
	case limit > 0 && info.Size() > limit:
		return File{}, tooLarge(info.Size(), limit)
	}
	file.Path, file.SizeBytes = path, info.Size()
	if digest == "" {
		return file, nil
	}
	step := progress.Start(ctx, "prove "+file.Name, file.SizeBytes, progress.Bytes)
	file.SHA256, err = SumOf(ctx, path, step.Add)
	if err == nil && file.SHA256 != digest {
		err = wrongDigest(file.SHA256, digest)
	}
	step.End("sha256 "+file.SHA256, err)
	return file, err
}

func tooLarge(size, limit int64) error {
	return fmt.Errorf("%d bytes, where at most %d make sense", size, limit)
}

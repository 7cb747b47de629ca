// Package fetch turns a reference (a path, web, SSH or OCI address) into a verified file on this
// machine. A server's answers are untrusted: sizes, names, lists and redirects have limits. A file
// gets its name only once its digest is proved. For its content see source, for signatures trust.
package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Options names the cache folder and the architecture to fetch for.
type Options struct {
	Dir  string // cache folder; it may be deleted at any time
	Arch string // Go's name; which image of an OCI index is meant
}

// File is a file on this machine. The caller closes Content and reads it: others may replace Path.
type File struct {
	Content   *sealed.File // sealed if SHA256 is known
	Path      string
	Name      string // its name at the source
	Reference string // its address, without passwords
	SizeBytes int64
	SHA256    string // "": a local file without a given digest
	Listed    bool   // the digest was given, or it is in the artifact's manifest
}

// Origin is the source of one image and of the files beside it.
type Origin struct {
	ref  reference
	opt  Options
	from transport // nil: the files are local
	oci  *artifact // of OCI registries
}

// Open returns the origin that a reference names. It contacts a server only for an OCI registry, to
// fetch the manifest that names the image's file. It refuses an OCI layout.
func Open(ctx context.Context, text string, o Options) (*Origin, error) {
	ref, err := parseReference(text)
	if err != nil {
		return nil, err
	}
	origin := &Origin{ref: ref, opt: o}
	switch ref.kind {
	case kindPath:
		if _, err := ref.absolutePath(); err != nil {
			return nil, err // it names the path
		}
	case kindHTTP:
		origin.from = newWeb(ref.login)
	case kindSFTP:
		origin.from = &sftpHost{}
	case kindOCI:
		r := newRegistry(ref)
		origin.from = r
		origin.oci, err = r.resolveReference(ctx, ref, o.Arch)
	case kindLayout:
		at := ":" + cmp.Or(ref.tag, "latest")
		if ref.sum != "" {
			at = "@" + ref.sum
		}
		err = fmt.Errorf("no image is taken out of a layout; copy its files into a folder first\nnext: oras pull --oci-layout %s  # an artifact that Slipway pushed: pull", plaintext.Quote(ref.path+at))
	}
	if err != nil {
		origin.Close()
		return nil, fmt.Errorf("%s: %w", ref.text, err)
	}
	return origin, nil
}

// Close closes the connections. Files stay.
func (o *Origin) Close() {
	if o.from != nil {
		o.from.closeConnections()
	}
}

// Name returns the image's name at its source; "" if that is no safe file name.
func (o *Origin) Name() string {
	if o.ref.kind == kindStdin {
		return Stdin // as sha256sum calls it
	}
	if o.oci != nil {
		b, _ := o.oci.findFile(o.oci.title) // without a name, if there is an error
		return b.name
	}
	return o.ref.fileName()
}

// ReadAll returns all of a small file, and closes it. More than most bytes are an error.
func (f File) ReadAll(ctx context.Context, most int64) ([]byte, error) {
	defer f.Content.Close()
	return localfile.ReadAll(f.Content.Reader(ctx, func(int64) {}), f.Path, most)
}

// Get fetches the image, or opens it if it is local. If digest, 64 hex digits, is not "", Get
// verifies it, and contacts no server if the cache has that file.
func (o *Origin) Get(ctx context.Context, digest string) (File, error) {
	if o.ref.kind == kindStdin {
		return keepStdin(ctx, os.Stdin, o.opt.Dir, digest)
	}
	file, err := o.fetchReference(ctx, o.ref, digest, 0)
	switch {
	case err == nil:
		return file, nil
	case o.ref.kind == kindPath && errors.Is(err, fs.ErrNotExist):
		return File{}, err // the error names the path
	case ctx.Err() != nil: // the same line continues
		return File{}, fmt.Errorf("%s: %w", o.ref.text, err)
	}
	return File{}, o.ref.explain(err, digest)
}

// explain adds the reference to the error of a failed fetch, and a next step that examines the
// source; none for a registry. If the server speaks http, the step has the address that it serves.
// It advises to fetch from there only if a digest verifies the file.
func (r reference) explain(err error, digest string) error {
	text, plain, step := plaintext.Quote(r.text), plaintext.Quote("http"+strings.TrimPrefix(r.text, "https")), ""
	switch {
	case strings.Contains(err.Error(), "\nnext: "): // it has one
	case errors.Is(err, errPlainHTTP) && r.kind == kindHTTP && digest != "" && r.login == nil && r.url.RawQuery == "": // else the line would show a secret
		step = "\nnext: repeat the line with " + plain + " for " + text
	case errors.Is(err, errPlainHTTP) && r.kind == kindHTTP:
		step = "\nnext: curl -I " + plain
	case errors.Is(err, errMismatch) && r.kind == kindHTTP:
		step = "\nnext: curl -s " + text + " | sha256sum  # compare it with the digest's source"
	case r.kind == kindHTTP:
		step = "\nnext: curl -I " + text
	case r.kind == kindSFTP:
		step = "\nnext: ssh -v " + plaintext.Quote("ssh://"+r.host) + " true"
	case r.kind == kindPath:
		step = "\nnext: " + plaintext.Either(errors.Is(err, errMismatch), "sha256sum ", "ls -l ") + plaintext.Quote(r.path)
	}
	return fmt.Errorf("%s: %w%s", r.text, err, step)
}

// Unreachable reports whether no program of the reference's server answers, or none by TLS.
func Unreachable(err error) bool {
	return !errors.Is(err, errElsewhere) && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, errPlainHTTP))
}

// maxBesideBytes is the size limit for block maps, signatures and lists of digests.
const maxBesideBytes = 64 << 20

// Beside fetches a small file of the image's folder. The error is fs.ErrNotExist if the folder has
// none, or if a web server forbids it. If the server is Unreachable, the error names the image.
func (o *Origin) Beside(ctx context.Context, name string) (File, error) {
	if o.ref.kind == kindStdin {
		return File{}, fmt.Errorf("nothing lies beside standard input: %w", fs.ErrNotExist)
	}
	ref := o.ref.besideFile(name)
	file, err := o.fetchReference(ctx, ref, "", maxBesideBytes)
	if errors.Is(err, fs.ErrPermission) && o.ref.kind == kindHTTP {
		err = errors.Join(fs.ErrNotExist, err) // S3's answer for a missing object
	}
	if err != nil && Unreachable(err) {
		return File{}, o.ref.explain(err, "")
	}
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", ref.text, err)
	}
	return file, nil
}

// ReadBeside reads a file from the image's folder, as Beside does; over maxBesideBytes is an error.
func (o *Origin) ReadBeside(ctx context.Context, name string) ([]byte, error) {
	file, err := o.Beside(ctx, name)
	if err != nil {
		return nil, err
	}
	return file.ReadAll(ctx, maxBesideBytes)
}

// PathOf returns the path of a file beside a local image as the user would type it; only name for
// an image of a server.
func (o *Origin) PathOf(name string) string {
	if o.ref.kind == kindPath {
		return o.ref.besideFile(name).path
	}
	return name
}

// Folder returns the folder of a local image; the cache folder for an image of a server.
func (o *Origin) Folder() string {
	if path, err := o.ref.absolutePath(); err == nil && o.ref.kind == kindPath {
		return filepath.Dir(path)
	}
	return o.opt.Dir
}

// fetchReference fetches a file of the origin, or opens a local one, and verifies its digest if
// there is one: the given one, or an OCI manifest's. A file over limit is refused; 0 is no limit.
func (o *Origin) fetchReference(ctx context.Context, ref reference, digest string, limit int64) (File, error) {
	file := File{Name: ref.fileName(), Reference: ref.text, Listed: digest != "" || o.oci != nil}
	if o.ref.kind == kindPath {
		path, err := ref.absolutePath()
		if err != nil {
			return File{}, err
		}
		return checkLocalFile(ctx, path, file, digest, limit)
	}
	if o.oci == nil {
		return o.downloadFile(ctx, fileRequest{ref: ref, file: file, sha256: digest, limit: limit})
	}
	blob, err := o.oci.findFile(ref.title)
	if err != nil {
		return File{}, err
	}
	file.Name = blob.name
	if digest != "" && digest != blob.sha256 {
		return File{}, wrongDigest(blob.sha256, digest)
	}
	return o.downloadFile(ctx, fileRequest{ref: ref, file: file, sha256: blob.sha256, limit: limit, sizeBytes: blob.sizeBytes, sized: true})
}

// errMismatch is the error of a file with another digest than expected.
var errMismatch = errors.New("it is another file, or a damaged one; nothing of it is used")

func wrongDigest(got, want string) error {
	return fmt.Errorf("sha256 %s, want %s: %w", got, want, errMismatch)
}

// checkLocalFile opens the local file at path, and returns file with it. It refuses more than limit
// bytes, or another digest; 0 and "" accept any.
func checkLocalFile(ctx context.Context, path string, file File, digest string, limit int64) (File, error) {
	f, err := sealed.Open(path)
	if err != nil {
		return File{}, localfile.ExplainUnreadable(path, err)
	}
	file.Content, file.Path, file.SizeBytes = f, path, f.SizeBytes()
	if limit > 0 && f.SizeBytes() > limit {
		err = tooLarge(f.SizeBytes(), limit)
	}
	if digest != "" && err == nil {
		step := progress.Start(ctx, "prove "+file.Name, f.SizeBytes(), progress.Bytes)
		file.SHA256, err = f.Seal(ctx, step.Add)
		if err == nil && file.SHA256 != digest {
			err = wrongDigest(file.SHA256, digest)
		}
		step.End("sha256 "+file.SHA256, err)
	}
	if err != nil {
		f.Close()
		return File{}, err
	}
	return file, nil
}

func tooLarge(size, limit int64) error {
	return fmt.Errorf("%d bytes, where at most %d make sense", size, limit)
}

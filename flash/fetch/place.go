package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"slipway/layers/localfile"
	"slipway/layers/lock"
	"slipway/layers/progress"
)

// place is where the cache keeps one file of one origin:
//
//	NAME.json           the version that is whole
//	HEX/NAME            that version, below its digest: nothing that a flash reads is
//	                    ever replaced by another version
//	NAME.unpacked.json  what it was unpacked to, where it is a container's layer
//	NAME.part           what has come of the next one
//	NAME.part.json      how much of that is proved, and of which version it is
type place struct {
	dir, name string
	lock      *os.File
}

// record says what a file of the cache is.
type record struct {
	Reference string `json:"reference"`
	Validator string `json:"validator,omitempty"`
	SizeBytes int64  `json:"sizeBytes"`
	SHA256    string `json:"sha256"`
}

// key tells origins apart. The user is a part of it: servers show different files
// to different people.
func (r reference) key() string {
	parts := []string{r.kind, r.host, r.path, r.repo, r.tag, r.sum, r.title}
	if r.url != nil {
		parts = append(parts, r.url.String(), r.login.Username())
	}
	text, _ := json.Marshal(parts) // strings always can be
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// openPlace waits while another process fetches from the same origin.
func openPlace(ctx context.Context, cache string, origin reference, name string) (*place, error) {
	if fileName(name) != name {
		return nil, fmt.Errorf("%q is no name for a file here", name)
	}
	p := &place{dir: filepath.Join(cache, origin.key()), name: name}
	if err := localfile.MkdirAll(p.dir); err != nil {
		return nil, err
	}
	var err error
	if p.lock, err = lock.Open(filepath.Join(p.dir, ".lock"), 0o644); err != nil {
		return nil, err
	}
	if err := lock.Wait(ctx, p.lock); err != nil {
		p.lock.Close()
		return nil, err
	}
	return p, nil
}

func (p *place) close() { p.lock.Close() }

func (p *place) path(ending string) string { return filepath.Join(p.dir, p.name+ending) }

// version is where the file with a digest lies.
func (p *place) version(sum string) string { return filepath.Join(p.dir, sum[:16], p.name) }

// whole is what an earlier run brought, nil where there is nothing or it changed
// since.
func (p *place) whole(ctx context.Context) (*record, error) {
	r := p.read(".json")
	if r == nil {
		return nil, nil
	}
	info, err := os.Lstat(p.version(r.SHA256))
	if err != nil || !info.Mode().IsRegular() || info.Size() != r.SizeBytes {
		return nil, nil
	}
	step := progress.Start(ctx, "prove "+p.name, r.SizeBytes, progress.Bytes)
	sum, err := SumOf(ctx, p.version(r.SHA256), step.Add)
	step.End("in the cache", err)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || sum != r.SHA256 {
		return nil, nil
	}
	return r, nil
}

const maxRecordBytes = 64 << 10

// read is a record, nil where there is none that makes sense: the file is fetched
// then.
func (p *place) read(ending string) *record {
	f, err := os.Open(p.path(ending))
	if err != nil {
		return nil
	}
	defer f.Close()
	var r record
	err = json.NewDecoder(io.LimitReader(f, maxRecordBytes)).Decode(&r)
	if err != nil || !hexPattern().MatchString(r.SHA256) || r.SizeBytes < 0 {
		return nil
	}
	return &r
}

func (p *place) write(ending string, r record) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(r); err != nil {
		return err
	}
	return renameio.WriteFile(p.path(ending), b.Bytes(), 0o644)
}

// partial opens what has come, with what is known of it.
func (p *place) partial() (*os.File, record, error) {
	f, err := os.OpenFile(p.path(".part"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, record{}, err
	}
	if r := p.read(".part.json"); r != nil && r.Validator != "" {
		return f, *r, nil
	}
	return f, record{}, nil
}

func (p *place) keep(r record) error { return p.write(".part.json", r) }

func (p *place) forget() { os.Remove(p.path(".part.json")) }

// drop removes what has come.
func (p *place) drop() error {
	p.forget()
	if err := os.Remove(p.path(".part")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// keepFile makes the partial file the whole one, and takes the former version away.
func (p *place) keepFile(r record) (string, error) {
	old := p.read(".json")
	path := p.version(r.SHA256)
	if err := localfile.MkdirAll(filepath.Dir(path)); err != nil {
		return "", err
	}
	if err := os.Rename(p.path(".part"), path); err != nil {
		return "", err
	}
	if err := p.write(".json", r); err != nil {
		return "", err
	}
	p.forget()
	if old != nil && old.SHA256 != r.SHA256 {
		os.Remove(p.version(old.SHA256))
		os.Remove(filepath.Dir(p.version(old.SHA256))) // stays where it holds more
	}
	return path, nil
}

// spare is what a download leaves free for others.
const spare = 16 << 20

// checkSpace says in time that the disk is too small.
func (p *place) checkSpace(need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(p.dir, &st); err != nil {
		return final{err}
	}
	free := int64(min(st.Bavail, 1<<40)) * st.Bsize
	if max(need, 0) > free-spare {
		return final{fmt.Errorf("%d MiB are needed in %s, which has %d MiB free; remove what is not needed there", max(need, 0)>>20+spare>>20, p.dir, free>>20)}
	}
	return nil
}

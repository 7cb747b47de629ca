package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// cacheEntry is the set of cache files of one file of one origin:
//
//	NAME.json       the record of the complete version
//	HEX/NAME        that version, below its digest, so that no other version
//	                replaces a file while a flash reads it
//	NAME.part       the next version, as far as it is fetched
//	NAME.part.json  how many bytes of that are proved, and its version
type cacheEntry struct {
	dir, name string
	lock      *os.File
}

// cacheRecord describes a file of the cache.
type cacheRecord struct {
	Reference string `json:"reference"`
	Validator string `json:"validator,omitempty"`
	SizeBytes int64  `json:"sizeBytes"`
	SHA256    string `json:"sha256"`
}

// cacheKey returns a hash that identifies an origin, as a folder name. It includes the user,
// because a server may show other files to other users.
func (r reference) cacheKey() string {
	parts := []string{r.kind, r.host, r.path, r.repo, r.tag, r.sum, r.title}
	if r.url != nil {
		parts[1] = "" // the address has it; caches of earlier releases are without it
		parts = append(parts, r.url.String(), r.login.Username())
	}
	text, _ := json.Marshal(parts) // strings always marshal
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// openCacheEntry makes and locks the cache folder of an origin, and waits while another process
// fetches from that origin. It refuses an unsafe file name.
func openCacheEntry(ctx context.Context, cache string, origin reference, name string) (*cacheEntry, error) {
	if SafeFileName(name) != name {
		return nil, fmt.Errorf("%q is no name for a file here", name)
	}
	p := &cacheEntry{dir: filepath.Join(cache, origin.cacheKey()), name: name}
	if err := localfile.MkdirAll(p.dir); err != nil {
		return nil, err
	}
	var err error
	if p.lock, err = localfile.Lock(ctx, filepath.Join(p.dir, ".lock"), 0o644); err != nil {
		return nil, err
	}
	return p, nil
}

// filePath returns the path of the entry's file with an ending.
func (p *cacheEntry) filePath(ending string) string { return filepath.Join(p.dir, p.name+ending) }

// versionPath returns the path of the file with a digest.
func (p *cacheEntry) versionPath(sum string) string { return filepath.Join(p.dir, sum[:16], p.name) }

// findWhole opens the complete file of an earlier run and verifies its digest. It returns nil if
// the cache has no such file, or if that changed since. Its only error is the end of ctx.
func (p *cacheEntry) findWhole(ctx context.Context) (*cacheRecord, *sealed.File, error) {
	r := p.readRecord(".json")
	if r == nil {
		return nil, nil, nil
	}
	f, err := sealed.Open(p.versionPath(r.SHA256))
	if err != nil {
		return nil, nil, nil
	}
	step := progress.Start(ctx, "prove "+p.name, r.SizeBytes, progress.Bytes)
	sum, err := f.Seal(ctx, step.Add)
	said := "in the cache"
	if err != nil {
		said = err.Error() // shown, as the file is fetched again
	}
	step.End(said, err)
	if err == nil && sum == r.SHA256 && f.SizeBytes() == r.SizeBytes {
		return r, f, nil
	}
	f.Close()
	return nil, nil, context.Cause(ctx)
}

var hexPattern = plaintext.Regexp(`^[0-9a-f]{64}$`)

const maxRecordBytes = 64 << 10

// readRecord reads the record NAME+ending. It returns nil if there is none, or no valid one.
func (p *cacheEntry) readRecord(ending string) *cacheRecord {
	f, err := os.Open(p.filePath(ending))
	if err != nil {
		return nil
	}
	defer f.Close()
	var r cacheRecord
	err = json.NewDecoder(io.LimitReader(f, maxRecordBytes)).Decode(&r)
	if err != nil || !hexPattern().MatchString(r.SHA256) || r.SizeBytes < 0 {
		return nil
	}
	return &r
}

func (p *cacheEntry) writeRecord(ending string, r cacheRecord) error {
	return localfile.WriteJSON(p.filePath(ending), r, 0o644)
}

// openPartial opens or creates the partial file, with its record if a download can resume from it.
func (p *cacheEntry) openPartial() (*os.File, cacheRecord, error) {
	f, err := os.OpenFile(p.filePath(".part"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, cacheRecord{}, err
	}
	if r := p.readRecord(".part.json"); r != nil && r.Validator != "" {
		return f, *r, nil
	}
	return f, cacheRecord{}, nil
}

func (p *cacheEntry) removePartialRecord() { os.Remove(p.filePath(".part.json")) }

// removePartial removes the partial file with its record.
func (p *cacheEntry) removePartial() error {
	p.removePartialRecord()
	return localfile.Remove(p.filePath(".part"))
}

// keepFile moves the partial file to the path of the complete version, which it returns. It writes
// the record and removes the former version.
func (p *cacheEntry) keepFile(r cacheRecord) (string, error) {
	old := p.readRecord(".json")
	path := p.versionPath(r.SHA256)
	if err := localfile.MkdirAll(filepath.Dir(path)); err != nil {
		return "", err
	}
	if err := os.Rename(p.filePath(".part"), path); err != nil {
		return "", err
	}
	if err := p.writeRecord(".json", r); err != nil {
		return "", err
	}
	p.removePartialRecord()
	if old != nil && old.SHA256 != r.SHA256 {
		os.Remove(p.versionPath(old.SHA256))
		os.Remove(filepath.Dir(p.versionPath(old.SHA256))) // fails if the folder holds other files
	}
	return path, nil
}

// reservedBytes is how much free space a download must leave on the disk.
const reservedBytes = 16 << 20

// checkSpace returns a permanentError if the disk has less than need plus reservedBytes free.
func (p *cacheEntry) checkSpace(need int64) error {
	free, err := localfile.FreeBytes(p.dir)
	if err != nil {
		return permanentError{err}
	}
	if max(need, 0) > free-reservedBytes {
		return permanentError{fmt.Errorf("%d MiB are needed in %s, which has %d MiB free; remove files from it that you do not need", max(need, 0)>>20+reservedBytes>>20, p.dir, free>>20)}
	}
	return nil
}

package fetch

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// transport reads files from a server.
type transport interface {
	// openFile begins to read a file. It continues after the bytes of a partial file only if the
	// server shows that they begin the same version. It may be called again after any error.
	openFile(ctx context.Context, w fileRequest, h cachedPart) (fileResponse, error)
	closeConnections()
}

// fileRequest is a file to fetch.
type fileRequest struct {
	ref       reference
	file      File
	sha256    string // "": not known
	limit     int64  // 0: none
	sizeBytes int64  // if sized
	sized     bool
}

// cachedPart describes the bytes that the cache has already.
type cachedPart struct {
	sizeBytes int64
	whole     bool
	validator string // the server's name of that version, or ""
}

// fileResponse is a server's response to a fileRequest.
type fileResponse struct {
	body      io.ReadCloser // nil: the cached file is complete and current
	from      int64         // where body begins
	size      int64         // of the whole file; -1: unknown until the body ends
	validator string
}

// permanentError is an error that a second try cannot fix.
type permanentError struct{ error }

func (f permanentError) Unwrap() error { return f.error }

// retryLaterError is an error of a server that says when to try again.
type retryLaterError struct {
	error
	after time.Duration
}

func (l retryLaterError) Unwrap() error { return l.error }

// resumeError is an error of a server that cannot resume the partial file.
type resumeError struct{ error }

func (u resumeError) Unwrap() error { return u.error }

// Timing of retries. Tests shorten it.
var (
	firstWait       = 500 * time.Millisecond
	longestWait     = 30 * time.Second
	silenceLimit    = time.Minute // without a byte, a connection counts as lost
	checkpointBytes = int64(16 << 20)
	checkpointAfter = 3 * time.Second
)

// failuresInARow tries without new bytes, or maxRestarts forced by a server, end a download.
const failuresInARow, maxRestarts = 6, 4

// refusalsInARow refused connections end a download without bytes: no program listens there.
const refusalsInARow = 3

// isRefused reports whether the server has refused the connection refusalsInARow times.
func isRefused(err error, failures int) bool {
	return failures >= refusalsInARow && errors.Is(err, syscall.ECONNREFUSED)
}

// download is one file that is being fetched.
type download struct {
	fileRequest
	entry *cacheEntry
	from  transport

	f         *os.File
	hash      *sealed.Digest
	have      int64 // bytes in f and in hash
	size      int64 // -1: not known yet
	validator string
	starts    int  // how often it started over
	resumed   bool // some bytes came from an earlier run or another connection
	proved    int64
	provedAt  time.Time
	cached    *cacheRecord // the complete file of an earlier run
	whole     *sealed.File // that file
	step      *progress.Step
}

// downloadFile returns the file from the cache if it is current there, else fetches it into the
// cache. It holds the lock of the cache entry meanwhile.
func (o *Origin) downloadFile(ctx context.Context, w fileRequest) (File, error) {
	p, err := openCacheEntry(ctx, o.opt.Dir, o.ref, w.file.Name)
	if err != nil {
		return File{}, err
	}
	defer p.lock.Close()
	d := &download{fileRequest: w, entry: p, from: o.from, size: -1}
	if d.cached, d.whole, err = p.findWhole(ctx); err != nil {
		return File{}, err
	}
	file, err := d.reuseOrFetch(ctx)
	if err != nil {
		file.Content = nil
	}
	if d.whole != nil && file.Content != d.whole {
		d.whole.Close()
	}
	if d.f != nil && (file.Content == nil || file.Content == d.whole) {
		d.f.Close()
	}
	return file, err
}

// reuseOrFetch returns the complete file of an earlier run if it has the wanted digest. Else it
// resumes or starts the download; if no digest is wanted, the server may say that it is current.
func (d *download) reuseOrFetch(ctx context.Context) (File, error) {
	if d.cached != nil && d.sha256 != "" {
		if d.cached.SHA256 == d.sha256 {
			return d.reuseCached(ctx), nil
		}
		d.cached = nil
	}
	if err := d.resumePartial(ctx); err != nil {
		return File{}, err
	}
	return d.fetchFile(ctx)
}

// reuseCached returns the file of an earlier run, and shows that as a step.
func (d *download) reuseCached(ctx context.Context) File {
	progress.Start(ctx, "fetch "+d.file.Name, d.cached.SizeBytes, progress.Bytes).Reuse("in the cache, proved by its digest")
	d.file.Content = d.whole
	d.file.Path, d.file.SHA256, d.file.SizeBytes = d.entry.versionPath(d.cached.SHA256), d.cached.SHA256, d.cached.SizeBytes
	return d.file
}

// resumePartial opens an earlier run's partial file, verifies the digest of its recorded bytes, and
// truncates it to them. It empties the file without a record, or if the digest differs.
func (d *download) resumePartial(ctx context.Context) error {
	var left cacheRecord
	var err error
	if d.f, left, err = d.entry.openPartial(); err != nil {
		return err
	}
	if left.SizeBytes > 0 {
		h := sealed.NewDigest()
		n, err := io.Copy(h, localfile.WithContext(ctx, io.LimitReader(d.f, left.SizeBytes), nil))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && n == left.SizeBytes && hex.EncodeToString(h.Sum(nil)) == left.SHA256 {
			d.hash, d.have, d.validator, d.resumed = h, n, left.Validator, true
			return d.truncateToHave()
		}
	}
	return d.restart()
}

// restart discards the partial file's bytes and record. If it had bytes, d.starts grows by one.
func (d *download) restart() error {
	if d.have > 0 {
		d.starts++
	}
	d.countBytes(-d.have)
	d.hash, d.have, d.size, d.validator, d.resumed = sealed.NewDigest(), 0, -1, "", false
	d.entry.removePartialRecord()
	return d.truncateToHave()
}

// truncateToHave truncates the partial file to d.have bytes, now the proved ones, and seeks there.
func (d *download) truncateToHave() error {
	if err := d.f.Truncate(d.have); err != nil {
		return permanentError{err}
	}
	if _, err := d.f.Seek(d.have, io.SeekStart); err != nil {
		return permanentError{err}
	}
	d.proved, d.provedAt = d.have, time.Now()
	return nil
}

// fetchFile downloads the file, or returns the cached one if the server says that it is current. It
// starts over once if the resumed part is of another version.
func (d *download) fetchFile(ctx context.Context) (File, error) {
	err := d.retryUntilDone(ctx)
	if err == nil && d.cached == nil {
		err = d.storeFile(ctx)
	}
	if errors.Is(err, errMismatch) && d.resumed { // the resumed part was of another version
		if err = d.restart(); err == nil {
			err = d.retryUntilDone(ctx)
		}
		if err == nil {
			err = d.storeFile(ctx)
		}
	}
	if err == nil && d.cached != nil {
		return d.reuseCached(ctx), d.entry.removePartial()
	}
	if d.step != nil {
		d.step.End("sha256 "+d.file.SHA256, err)
	}
	return d.file, err
}

// retryUntilDone opens connections until the file is complete, with a checkpoint after each. It
// fails at a permanentError, after failuresInARow tries without further bytes, after maxRestarts,
// or as isRefused says if no byte came. It then removes a partial file that no run can resume.
func (d *download) retryUntilDone(ctx context.Context) error {
	furthest, failures := d.have, 0
	for {
		err := d.readConnection(ctx)
		d.saveCheckpoint()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.As(err, new(permanentError)) {
			return errors.Join(d.dropUnresumable(), contextCause(ctx, err))
		}
		failures++
		if d.have > furthest {
			furthest, failures = d.have, 0
		}
		if failures >= failuresInARow || d.starts > maxRestarts || d.have == 0 && isRefused(err, failures) {
			return d.resumableError(err)
		}
		if err := d.waitForRetry(ctx, failures, err); err != nil {
			return errors.Join(d.dropUnresumable(), err)
		}
	}
}

// contextCause returns the context's cause if the context ended, else err.
func contextCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// dropUnresumable removes the partial file if no later run can resume it.
func (d *download) dropUnresumable() error {
	if d.have == 0 || d.validator == "" {
		return d.entry.removePartial()
	}
	return nil
}

// resumableError adds to err how many bytes the next run resumes from, or removes the partial file.
func (d *download) resumableError(err error) error {
	if d.have > 0 && d.validator != "" {
		return fmt.Errorf("%w\n  %d bytes are here; the next try goes on from there", err, d.have)
	}
	return errors.Join(err, d.dropUnresumable())
}

// waitForRetry waits as waitBackoff does, and shows err as the reason in the progress.
func (d *download) waitForRetry(ctx context.Context, failures int, err error) error {
	if d.step == nil { // no bytes yet, so no step is shown
		return waitShown(ctx, d.ref.host+" for "+d.file.Name, failures, err)
	}
	d.step.Detail("again: " + plaintext.OneLine(err.Error()))
	return waitBackoff(ctx, failures, err)
}

// waitShown is waitBackoff with its own progress step, which always ends as failed, with err.
func waitShown(ctx context.Context, server string, failures int, err error) error {
	step := progress.Start(ctx, "ask "+server, 0, "")
	why := plaintext.OneLine(err.Error())
	step.Detail("again: " + why)
	stopped := waitBackoff(ctx, failures, err)
	step.End(why, cmp.Or(stopped, errors.New(why)))
	return stopped
}

// waitBackoff sleeps randomly: longer per failure, at least Retry-After, at most longestWait.
func waitBackoff(ctx context.Context, failures int, err error) error {
	wait := min(firstWait<<failures, longestWait)
	wait = wait/2 + rand.N(wait/2+1) // many machines lose one server at once
	if l, is := errors.AsType[retryLaterError](err); is {
		wait = min(max(wait, l.after), longestWait)
	}
	return run.Sleep(ctx, wait)
}

var errSilent = errors.New("the server fell silent")

// readConnection opens one connection and appends its bytes to the partial file. It returns nil
// once the file is complete, or if the cached file is current. It ends a silent connection, and
// empties a partial file that the server cannot resume.
func (d *download) readConnection(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	defer silent.Stop()
	if d.sized && d.have == d.sizeBytes {
		return nil // an earlier run ended between the last byte and the rename
	}
	a, err := d.from.openFile(ctx, d.fileRequest, d.cachedPart())
	if errors.As(err, new(resumeError)) && d.have > 0 {
		err = errors.Join(err, d.restart())
	}
	if err != nil {
		return contextCause(ctx, err)
	}
	if a.body == nil {
		if d.cached == nil {
			return permanentError{errors.New("the server says that nothing changed since it was asked never")}
		}
		return nil
	}
	defer a.body.Close()
	if err := d.acceptResponse(ctx, a); err != nil {
		return err
	}
	if err := d.copyBody(a.body, func() { silent.Reset(silenceLimit) }); err != nil {
		return contextCause(ctx, err)
	}
	return nil
}

// cachedPart describes the partial file if it has bytes, else the cached one.
func (d *download) cachedPart() cachedPart {
	if d.have == 0 && d.cached != nil {
		return cachedPart{sizeBytes: d.cached.SizeBytes, whole: true, validator: d.cached.Validator}
	}
	return cachedPart{sizeBytes: d.have, validator: d.validator}
}

// acceptResponse checks a response against the partial file, the expected size and the free space,
// sets d.cached to nil, and begins the progress step. If beginning or size differ, it starts over:
// with this response if that begins at 0, else it returns an error.
func (d *download) acceptResponse(ctx context.Context, a fileResponse) error {
	d.cached = nil // the server has another version
	if a.from != d.have || d.size >= 0 && a.size != d.size {
		if a.from != 0 {
			err := d.restart()
			return errors.Join(err, fmt.Errorf("the server offers byte %d of %d where %d of %d are here", a.from, a.size, d.have, d.size))
		}
		if err := d.restart(); err != nil {
			return err
		}
	}
	d.size, d.validator = a.size, a.validator
	switch {
	case d.sized && a.size >= 0 && a.size != d.sizeBytes:
		return permanentError{fmt.Errorf("the server has %d bytes, its list says %d", a.size, d.sizeBytes)}
	case d.limit > 0 && a.size > d.limit:
		return permanentError{tooLarge(a.size, d.limit)}
	}
	if d.step == nil {
		d.step = progress.Start(ctx, "fetch "+d.file.Name, max(a.size, 0), progress.Bytes)
		d.countBytes(d.have)
	}
	d.resumed = d.resumed || d.have > 0
	return d.entry.checkSpace(a.size - d.have)
}

// countBytes adds n to the progress step, if it has started.
func (d *download) countBytes(n int64) {
	if d.step != nil {
		d.step.Add(n)
	}
}

// spaceCheckBytes is how often the free space is checked if the size is unknown.
const spaceCheckBytes = 64 << 20

// copyBody appends the body to the partial file. Each read calls heard. A short body is an error.
func (d *download) copyBody(body io.Reader, heard func()) error {
	buf := make([]byte, 256<<10)
	for {
		n, err := body.Read(buf)
		heard()
		if err2 := d.addBytes(buf[:n]); err2 != nil {
			return err2
		}
		switch {
		case err == io.EOF && d.size >= 0 && d.have < d.size:
			return fmt.Errorf("the connection ended after %d of %d bytes: %w", d.have, d.size, io.ErrUnexpectedEOF)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// addBytes appends p to the partial file and its digest, and saves a checkpoint from time to time.
// It returns a permanentError if the file becomes too large, a write fails, or space is short.
func (d *download) addBytes(p []byte) error {
	before := d.have
	if most := d.maxBytes(); d.have+int64(len(p)) > most {
		return permanentError{fmt.Errorf("the server sends more than the %d bytes that there are to be", most)}
	}
	if _, err := d.f.Write(p); err != nil {
		return permanentError{err}
	}
	d.hash.Write(p)
	d.have += int64(len(p))
	d.countBytes(int64(len(p)))
	if d.size < 0 && before/spaceCheckBytes != d.have/spaceCheckBytes {
		if err := d.entry.checkSpace(spaceCheckBytes); err != nil {
			return err
		}
	}
	if d.have-d.proved >= checkpointBytes || d.have > d.proved && time.Since(d.provedAt) > checkpointAfter {
		d.saveCheckpoint()
	}
	return nil
}

// maxBytes returns the largest size that the file can have; 1<<62 if nothing limits it.
func (d *download) maxBytes() int64 {
	switch {
	case d.size >= 0:
		return d.size
	case d.sized:
		return d.sizeBytes
	case d.limit > 0:
		return d.limit
	}
	return 1 << 62
}

// saveCheckpoint syncs the partial file and records its size and digest, so that a later run can
// resume it. It does nothing without a validator. After a failure the former checkpoint remains.
func (d *download) saveCheckpoint() {
	if d.have == d.proved || d.validator == "" || d.f.Sync() != nil {
		return
	}
	left := cacheRecord{Reference: d.file.Reference, Validator: d.validator, SizeBytes: d.have, SHA256: hex.EncodeToString(d.hash.Sum(nil))}
	if d.entry.writeRecord(".part.json", left) == nil {
		d.proved, d.provedAt = d.have, time.Now()
	}
}

// storeFile compares the complete file's size and digest with the expected ones and moves it into
// the cache. It removes a file that differs, except a resumed one with another digest: the caller
// starts over. For a resumed SFTP download it has the server compute the digest.
func (d *download) storeFile(ctx context.Context) error {
	sum := hex.EncodeToString(d.hash.Sum(nil))
	// SFTP's times in seconds are too coarse to join parts by.
	if from, ok := d.from.(*sftpHost); ok && d.resumed && d.sha256 == "" {
		d.sha256 = from.remoteDigest(ctx, d.ref)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case d.sized && d.have != d.sizeBytes:
		return errors.Join(fmt.Errorf("%d bytes came, its list says %d", d.have, d.sizeBytes), d.entry.removePartial())
	case d.sha256 != "" && sum != d.sha256 && d.resumed:
		return wrongDigest(sum, d.sha256)
	case d.sha256 != "" && sum != d.sha256:
		return errors.Join(wrongDigest(sum, d.sha256), d.entry.removePartial())
	}
	if err := d.f.Sync(); err != nil {
		return err
	}
	d.file.SHA256, d.file.SizeBytes = sum, d.have
	var err error
	d.file.Path, err = d.entry.keepFile(cacheRecord{Reference: d.file.Reference, Validator: d.validator, SizeBytes: d.have, SHA256: sum})
	if err == nil {
		d.file.Content = sealed.Written(d.f, d.file.Path, d.hash)
	}
	return err
}

package fetch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// transport reads files of a server.
type transport interface {
	// open begins to read a file: from behind what is held, where the server shows
	// that this still is the beginning of the same file, and from its beginning
	// otherwise. It may be called again after any error.
	open(ctx context.Context, w wanted, h held) (answer, error)
	close()
}

// wanted is a file that is to be fetched.
type wanted struct {
	ref       reference
	file      File
	sha256    string // "": not known
	limit     int64  // 0: none
	sizeBytes int64  // where sized
	sized     bool
}

// held is what is here already.
type held struct {
	bytes     int64
	whole     bool
	validator string // what the server called that version; "" where it gave it no name
}

// answer is what a server offers.
type answer struct {
	body      io.ReadCloser // nil: what is held is whole, and what the server has
	from      int64         // where body begins
	size      int64         // of the whole file; -1: the server says where it ends only there
	validator string
}

// final is an error that no second try fixes.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// later is an error of a server that says when it may be asked again.
type later struct {
	error
	after time.Duration
}

func (l later) Unwrap() error { return l.error }

// useless is an error of a server that can go on from nothing that is held.
type useless struct{ error }

func (u useless) Unwrap() error { return u.error }

// How patient a download is. Tests have less time.
var (
	firstWait       = 500 * time.Millisecond
	longestWait     = 30 * time.Second
	silenceLimit    = time.Minute // without a byte, a connection counts as lost
	checkpointBytes = int64(16 << 20)
	checkpointAfter = 3 * time.Second
)

// failuresInARow is how often a download fails without coming further, before it
// is given up; anew how often a server may make it begin from the start.
const failuresInARow, anew = 6, 4

// download is one file on its way.
type download struct {
	wanted
	place *place
	from  transport

	f         *os.File
	hash      hash.Hash
	have      int64 // bytes in f and in hash
	size      int64 // -1: not known yet
	validator string
	starts    int  // how often it began anew
	resumed   bool // what came from an earlier run, or over another connection, is among it
	proved    int64
	provedAt  time.Time
	cached    *record // whole, of an earlier run
	step      *progress.Step
}

func (o *Origin) download(ctx context.Context, w wanted) (File, error) {
	p, err := openPlace(ctx, o.opt.Dir, o.ref, w.file.Name)
	if err != nil {
		return File{}, err
	}
	defer p.close()
	d := &download{wanted: w, place: p, from: o.from, size: -1}
	if d.cached, err = p.whole(ctx); err != nil {
		return File{}, err
	}
	if d.cached != nil && w.sha256 != "" {
		if d.cached.SHA256 == w.sha256 {
			return d.reuse(ctx), nil
		}
		d.cached = nil
	}
	if err := d.pick(ctx); err != nil {
		return File{}, err
	}
	defer d.f.Close()
	return d.fetchFile(ctx)
}

func (d *download) reuse(ctx context.Context) File {
	progress.Start(ctx, "fetch "+d.file.Name, d.cached.SizeBytes, progress.Bytes).Reuse("in the cache, proved by its digest")
	d.file.Path, d.file.SHA256, d.file.SizeBytes = d.place.version(d.cached.SHA256), d.cached.SHA256, d.cached.SizeBytes
	return d.file
}

// pick goes on with what an earlier run left, as far as that is proved.
func (d *download) pick(ctx context.Context) error {
	var left record
	var err error
	if d.f, left, err = d.place.partial(); err != nil {
		return err
	}
	if left.SizeBytes > 0 {
		h := sha256.New()
		n, err := io.Copy(h, &counter{ctx, io.LimitReader(d.f, left.SizeBytes), func(int64) {}})
		if ctx.Err() != nil {
			d.f.Close()
			return context.Cause(ctx)
		}
		if err == nil && n == left.SizeBytes && hex.EncodeToString(h.Sum(nil)) == left.SHA256 {
			d.hash, d.have, d.validator, d.resumed = h, n, left.Validator, true
			return d.cut()
		}
	}
	return d.begin()
}

// begin starts from nothing.
func (d *download) begin() error {
	if d.have > 0 {
		d.starts++
	}
	d.count(-d.have)
	d.hash, d.have, d.size, d.validator, d.resumed = sha256.New(), 0, -1, "", false
	d.place.forget()
	return d.cut()
}

// cut removes what lies behind what is proved, and goes there.
func (d *download) cut() error {
	if err := d.f.Truncate(d.have); err != nil {
		return final{err}
	}
	if _, err := d.f.Seek(d.have, io.SeekStart); err != nil {
		return final{err}
	}
	d.proved, d.provedAt = d.have, time.Now()
	return nil
}

func (d *download) fetchFile(ctx context.Context) (File, error) {
	err := d.tries(ctx)
	if err == nil && d.cached == nil {
		err = d.finish(ctx)
	}
	var wrong *mismatch
	if errors.As(err, &wrong) && wrong.resumed { // a part was of another version
		if err = d.begin(); err == nil {
			err = d.tries(ctx)
		}
		if err == nil {
			err = d.finish(ctx)
		}
	}
	if err == nil && d.cached != nil {
		return d.reuse(ctx), d.place.drop()
	}
	if d.step != nil {
		d.step.End("sha256 "+d.file.SHA256, err)
	}
	return d.file, err
}

// tries asks until all is here, as long as it comes further.
func (d *download) tries(ctx context.Context) error {
	furthest, failures := d.have, 0
	for {
		err := d.once(ctx)
		d.checkpoint()
		if err == nil {
			return nil
		}
		var f final
		if ctx.Err() != nil || errors.As(err, &f) {
			return errors.Join(d.keepable(), cause(ctx, err))
		}
		failures++
		if d.have > furthest {
			furthest, failures = d.have, 0
		}
		if failures >= failuresInARow || d.starts > anew {
			return d.givenUp(err)
		}
		if err := d.wait(ctx, failures, err); err != nil {
			return err
		}
	}
}

func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// keepable drops a partial file that nothing can be made of.
func (d *download) keepable() error {
	if d.have == 0 || d.validator == "" {
		return d.place.drop()
	}
	return nil
}

func (d *download) givenUp(err error) error {
	if d.have > 0 && d.validator != "" {
		return fmt.Errorf("%w\n  %d bytes are here; the next try goes on from there", err, d.have)
	}
	return errors.Join(err, d.keepable())
}

func (d *download) wait(ctx context.Context, failures int, err error) error {
	if d.step == nil { // nothing came yet, so that nothing is shown
		return waitFor(ctx, d.file.Name, failures, err)
	}
	d.step.Detail("again: " + plaintext.OneLine(err.Error()))
	return pause(ctx, failures, err)
}

// waitFor is pause for what a person would otherwise wait without a word.
func waitFor(ctx context.Context, name string, failures int, err error) error {
	step := progress.Start(ctx, "ask for "+name, 0, "")
	why := plaintext.OneLine(err.Error())
	step.Detail("again: " + why)
	stopped := pause(ctx, failures, err)
	step.End(why, cmp.Or(stopped, errors.New(why)))
	return stopped
}

// pause waits before the next try, the longer the more have failed.
func pause(ctx context.Context, failures int, err error) error {
	wait := min(firstWait<<failures, longestWait)
	wait = wait/2 + rand.N(wait/2+1) // many machines lose one server at one moment
	var l later
	if errors.As(err, &l) {
		wait = min(max(wait, l.after), longestWait)
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errSilent = errors.New("the server fell silent")

// once reads over one connection as far as that carries.
func (d *download) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silenceLimit, func() { cancel(errSilent) })
	defer silent.Stop()
	if d.sized && d.have == d.sizeBytes {
		return nil // killed between the last byte and the name
	}
	a, err := d.from.open(ctx, d.wanted, d.held())
	var no useless
	if errors.As(err, &no) && d.have > 0 {
		err = errors.Join(err, d.begin())
	}
	if err != nil {
		return cause(ctx, err)
	}
	if a.body == nil {
		if d.cached == nil {
			return final{errors.New("the server says that nothing changed since it was asked never")}
		}
		return nil
	}
	defer a.body.Close()
	if err := d.accept(ctx, a); err != nil {
		return err
	}
	if err := d.copy(a.body, func() { silent.Reset(silenceLimit) }); err != nil {
		return cause(ctx, err)
	}
	return nil
}

func (d *download) held() held {
	if d.have == 0 && d.cached != nil {
		return held{bytes: d.cached.SizeBytes, whole: true, validator: d.cached.Validator}
	}
	return held{bytes: d.have, validator: d.validator}
}

// accept checks an answer against what is here and what fits.
func (d *download) accept(ctx context.Context, a answer) error {
	d.cached = nil // the server has another version
	if a.from != d.have || d.size >= 0 && a.size != d.size {
		if a.from != 0 {
			err := d.begin()
			return errors.Join(err, fmt.Errorf("the server offers byte %d of %d where %d of %d are here", a.from, a.size, d.have, d.size))
		}
		if err := d.begin(); err != nil {
			return err
		}
	}
	d.size, d.validator = a.size, a.validator
	switch {
	case d.sized && a.size >= 0 && a.size != d.sizeBytes:
		return final{fmt.Errorf("the server has %d bytes, its list says %d", a.size, d.sizeBytes)}
	case d.limit > 0 && a.size > d.limit:
		return final{tooLarge(a.size, d.limit)}
	}
	if d.step == nil {
		d.step = progress.Start(ctx, "fetch "+d.file.Name, max(a.size, 0), progress.Bytes)
		d.count(d.have)
	}
	d.resumed = d.resumed || d.have > 0
	return d.place.checkSpace(a.size - d.have)
}

func (d *download) count(n int64) {
	if d.step != nil {
		d.step.Add(n)
	}
}

// roomEvery is how often room is asked for where the size is not known.
const roomEvery = 64 << 20

func (d *download) copy(body io.Reader, heard func()) error {
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

func (d *download) addBytes(p []byte) error {
	before := d.have
	if most := d.most(); d.have+int64(len(p)) > most {
		return final{fmt.Errorf("the server sends more than the %d bytes that there are to be", most)}
	}
	if _, err := d.f.Write(p); err != nil {
		return final{err}
	}
	d.hash.Write(p)
	d.have += int64(len(p))
	d.count(int64(len(p)))
	if d.size < 0 && before/roomEvery != d.have/roomEvery {
		if err := d.place.checkSpace(roomEvery); err != nil {
			return err
		}
	}
	if d.have-d.proved >= checkpointBytes || d.have > d.proved && time.Since(d.provedAt) > checkpointAfter {
		d.checkpoint()
	}
	return nil
}

// most is how many bytes the file can have.
func (d *download) most() int64 {
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

// checkpoint makes what is here safe against a crash. Where that fails the download
// goes on: it only could not be resumed.
func (d *download) checkpoint() {
	if d.have == d.proved || d.validator == "" || d.f.Sync() != nil {
		return
	}
	left := record{Reference: d.file.Reference, Validator: d.validator, SizeBytes: d.have, SHA256: hex.EncodeToString(d.hash.Sum(nil))}
	if d.place.keep(left) == nil {
		d.proved, d.provedAt = d.have, time.Now()
	}
}

// mismatch is a file with another digest than it should have.
type mismatch struct {
	error
	resumed bool
}

// finish gives the file its name.
func (d *download) finish(ctx context.Context) error {
	sum := hex.EncodeToString(d.hash.Sum(nil))
	// SFTP tells versions apart by the second alone, which is not enough to join parts by.
	if from, ok := d.from.(*boardFolder); ok && d.resumed && d.sha256 == "" {
		d.sha256 = from.digest(ctx, d.ref)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case d.sized && d.have != d.sizeBytes:
		return errors.Join(fmt.Errorf("%d bytes came, its list says %d", d.have, d.sizeBytes), d.place.drop())
	case d.sha256 != "" && sum != d.sha256 && d.resumed:
		return &mismatch{wrongDigest(sum, d.sha256), true}
	case d.sha256 != "" && sum != d.sha256:
		return errors.Join(&mismatch{wrongDigest(sum, d.sha256), false}, d.place.drop())
	}
	if err := d.f.Sync(); err != nil {
		return err
	}
	d.file.SHA256, d.file.SizeBytes = sum, d.have
	var err error
	d.file.Path, err = d.place.keepFile(record{Reference: d.file.Reference, Validator: d.validator, SizeBytes: d.have, SHA256: sum})
	return err
}

package place

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash"
	"slipway/flash/device"
	"slipway/flash/identity"
	"slipway/flash/write"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// errKnown marks the error of a card that is whole already. It has no text.
var errKnown = errors.New("")

// knownError returns an errKnown of the card that this place made as old.
func knownError(old Entry) error {
	return fmt.Errorf("%s; again: true in place.yml writes it again%w", old.madeText(), errKnown)
}

// serveCard proves, writes and records one card, and shows the result at its port.
func (p *Place) serveCard(ctx context.Context, port *Port, d device.Device) {
	e := Entry{Port: port.Port, Label: port.Label, Began: time.Now().UTC()}
	state, err := p.writeCard(ctx, port, d, &e)
	e.Finished = time.Now().UTC()
	e.Seconds = e.Finished.Sub(e.Began).Seconds()
	did := plaintext.SizeText(e.Receipt.ImageBytes)
	if d.Kind != device.Block {
		did = e.Receipt.Verdict
	}
	text := fmt.Sprintf("%s in %.0f s%s", did, e.Seconds, plaintext.Either(e.Before != "", ", before: "+e.Before, ""))
	switch {
	case state == Known:
		text = err.Error()
	case err != nil:
		if ctx.Err() != nil {
			state = Stopped
		}
		e.Error = strings.TrimPrefix(err.Error(), fmt.Sprintf("flash %s to %s: ", p.spec.Board, d.Path))
		e.Cause = cmp.Or(causeOf(err, d.Path), clausesOf(e.Error, d.Kind == device.Block))
		text = plaintext.Either(state == Fail, e.Cause, plaintext.OneLine(plaintext.FirstLine(e.Error)))
	}
	e.Verdict = string(state)
	var notes []string
	recordErr := p.endIf(p.record.add(&e))
	for _, err := range []error{recordErr, eject(ctx, &e), p.runAfter(ctx, &e)} {
		if err != nil {
			notes = append(notes, noteText(err))
		}
	}
	if e.Note = strings.Join(notes, "; "); e.Note != "" {
		_ = p.endIf(p.record.write(&e)) // the run returns it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.show(port, func() { p.finish(port, &e, text) })
}

// noteText returns the last line of a program that failed, or the first line of another error.
func noteText(err error) string {
	if failed, ok := errors.AsType[*run.Failure](err); ok && failed.Tail != "" {
		return plaintext.OneLine(fmt.Sprintf("%s: %s: %s", filepath.Base(failed.Argv[0]), failed.Status, run.LastLine(err)))
	}
	return plaintext.OneLine(plaintext.FirstLine(err.Error()))
}

// clausesOf returns the first line of an error, without "refused", and without names of files and
// ports before it; of a disk's, only the part up to a colon.
func clausesOf(text string, disk bool) string {
	clauses := strings.Split(plaintext.OneLine(plaintext.FirstLine(text)), ": ")
	for len(clauses) > 1 && (clauses[0] == "refused" || strings.ContainsAny(clauses[0], "./") || strings.HasPrefix(clauses[0], "USB port ")) {
		clauses = clauses[1:]
	}
	return plaintext.Either(disk, clauses[0], strings.Join(clauses, ": "))
}

// finish sets the port's result and the totals. The caller holds p.mu.
func (p *Place) finish(port *Port, e *Entry, text string) {
	port.busy, port.State, port.Percent, port.Left, port.served = false, State(e.Verdict), 0, 0, time.Now()
	port.Row, port.Receipt, port.Note, port.Text = e.Row, e.path, e.Note, text
	p.totals.add(*e)
	switch port.State {
	case Pass:
		port.failed, port.ejected = 0, true
		port.speed = float64(e.Receipt.ImageBytes) / max(e.Seconds, 1e-3)
		if slow := p.slowText(port); slow != "" {
			port.Text += ", " + slow
		}
	case Fail:
		if port.failed++; port.failed >= p.config.Failures {
			port.State, port.Text = Closed, fmt.Sprintf("%d failures in a row, the last: %s", port.failed, e.Cause)
		}
	}
}

// slowText returns that a port is less than half as fast as the median of the others; "" if not.
func (p *Place) slowText(port *Port) string {
	var others []float64
	for _, other := range p.ports {
		if other != port && other.speed > 0 {
			others = append(others, other.speed)
		}
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	if median := others[len(others)/2]; port.speed < median/2 {
		return fmt.Sprintf("SLOW: %s/s, the others %s/s", plaintext.SizeText(int64(port.speed)), plaintext.SizeText(int64(median)))
	}
	return ""
}

// writeCard proves and writes the card, and fills e. One that is Refused or Known stays as it is.
func (p *Place) writeCard(ctx context.Context, port *Port, seen device.Device, e *Entry) (State, error) {
	o, claim, err := p.proveCard(ctx, seen, e)
	if p.claims != nil {
		defer p.claims.Release(claim)
	}
	switch {
	case errors.Is(err, errKnown):
		return Known, err
	case err != nil:
		return Refused, err
	}
	p.update(port, func() { port.Row = e.Row })
	o.Complete = func() error { return p.endIf(p.record.take(e)) }
	reporter := progress.New(portSink{p, port})
	defer reporter.Close()
	ctx = progress.With(ctx, reporter)
	if e.Device.Kind == device.Block {
		e.Receipt, err = p.image.Write(ctx, e.Device.Path, o)
	} else {
		e.Receipt, err = flash.WriteMeant(ctx, p.spec, p.artifact, e.Device.Path, p.flashOptions(), o)
	}
	if f := (*flash.Failed)(nil); errors.As(err, &f) && len(f.Receipts) > 0 {
		e.Receipt = f.Receipts[0]
	}
	switch {
	case errors.Is(err, flash.ErrRefused):
		return Refused, err
	case err != nil:
		return Fail, err
	}
	return Pass, nil
}

// proveCard proves that a card may be written, fills e, and writes nothing. It returns how to write
// the card, and its row, which is reserved until p.claims.Release, also after an error.
func (p *Place) proveCard(ctx context.Context, seen device.Device, e *Entry) (o flash.PreparedOptions, claim identity.Claim, err error) {
	d, err := device.Examine(seen.Path)
	if err != nil {
		return o, claim, err
	}
	if d.Port == "" { // of a Jetson or an rshim, which are named by their ports
		d = seen
	}
	e.Device, e.Serial = d, ownSerial(d)
	port := e.Port
	o.Meant = func(now device.Device) error { return meant(port, seen, now) }
	switch {
	case d.Kind != device.Block && p.claims != nil:
		err = errors.New("only disks get files of their own")
	case d.Kind != device.Block:
		err = p.proveBoard(e)
	default:
		if err = p.prepare(); err == nil {
			err = p.proveDisk(seen, e)
		}
		if err == nil && p.options.Identity != nil {
			o.Identity, err = p.options.Identity()
		}
	}
	if err != nil {
		return o, claim, err
	}
	o.Stamp = cmp.Or(e.Stamp, identity.NewStamp())
	if p.claims != nil {
		if claim, err = p.claims.Reserve(e.card()); err != nil {
			return o, claim, err
		}
		own, hostKey, err := p.ownFiles(ctx, claim.Row, o.Identity)
		if err != nil {
			return o, claim, err
		}
		o.Stamp, o.Identity, o.Personal = claim.Card.Stamp, nil, []flash.Personal{own}
		e.Row, e.HostKey = claim.Row.Key, hostKey
	}
	e.Stamp = o.Stamp
	return o, claim, nil
}

// ownFiles makes the files of a row for the image's partition, with the host key of id or else a
// new one, whose fingerprint it returns.
func (p *Place) ownFiles(ctx context.Context, row identity.Row, id *flash.Identity) (own flash.Personal, hostKey string, err error) {
	files, err := p.config.plan.Files(ctx, row, id)
	if err == nil {
		own, err = files.Personal(p.image)
	}
	return own, files.HostKey, err
}

// meant returns an error unless now is what was seen at the named port.
func meant(port string, seen, now device.Device) error {
	switch {
	case now.Kind != device.Block:
		return nil // its path is its port
	case now.Port != port:
		return fmt.Errorf("%s is at port %q by now, which is not %q; nothing was written", now.Path, now.Port, port)
	case now.Medium() != seen.Medium():
		return fmt.Errorf("another card is at port %s by now; nothing was written", port)
	case now.Guarded != "":
		return fmt.Errorf("%s; nothing was written", now.Guarded)
	}
	return nil
}

// proveBoard returns an errKnown for a Jetson with a serial, or a DPU, that this place has flashed.
// An rshim does not tell which DPU is behind it, but the same one as long as this machine runs.
// With again a DPU is flashed once in each run, as it resets itself.
func (p *Place) proveBoard(e *Entry) error {
	if e.Device.Kind == device.RShim {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return err
		}
		e.Boot = strings.TrimSpace(string(id))
	}
	switch old, own := p.record.find(*e); {
	case own && old.Verdict == string(Pass) && (!p.config.Again || e.Boot != "" && old.Began.After(p.began)):
		return knownError(old)
	case own:
		e.Before = old.madeText()
	}
	return nil
}

// proveDisk returns an error unless the disk of e may be written: it fits, is not used, and is
// empty or has the same product. The error is errKnown for a whole one, whose row e gets. It sets
// e.Before, and e.Stamp to that of the disk, or to "" if this place did not make it.
func (p *Place) proveDisk(seen device.Device, e *Entry) error {
	d := e.Device
	if err := p.checkFit(d, seen, e.Port); err != nil {
		return err
	}
	f, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	e.Stamp = write.ReadStamp(f)
	head := make([]byte, 1<<20)
	if _, err = io.ReadFull(io.NewSectionReader(f, 0, d.SizeBytes), head); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	old, own := p.record.find(*e)
	stamped := own && old.Stamp == e.Stamp
	what := p.image.OtherContent(d)
	if d.Table == "" && d.Content.Type == "" && !isBlank(head) {
		what = "data without a partition table"
	}
	switch {
	case stamped && old.Verdict == string(Pass) && what == "" && d.Table != "" && !p.config.Again:
		e.Row = old.Row
		return knownError(old)
	case what != "" && !p.config.Overwrite: // also on a card that this place made, or that has its serial
		return fmt.Errorf("it holds something else: %s; overwrite: true in place.yml allows that", what)
	case own && !stamped && !p.config.Again: // makers give many cards one serial
		return fmt.Errorf("a card with its serial, model and size was %s; if this is that one, erased, again: true in place.yml gives it its row again", old.madeText())
	case own:
		e.Before = old.madeText()
	}
	if !stamped {
		e.Stamp = ""
	}
	return nil
}

// isBlank reports whether the beginning of a card is all zeros or all ones, but for a stamp.
func isBlank(head []byte) bool {
	if write.ReadStamp(bytes.NewReader(head)) != "" {
		head = head[:len(head)-4096]
	}
	return bytes.Count(head, []byte{head[0]}) == len(head) && (head[0] == 0 || head[0] == 0xff)
}

// checkFit returns an error unless d is what was seen at the port, is not used, and has room.
func (p *Place) checkFit(d, seen device.Device, port string) error {
	if err := meant(port, seen, d); err != nil {
		return err
	}
	need := p.image.SizeBytes()
	switch {
	case d.Refused != "":
		return errors.New(d.Refused)
	case d.Unread != "":
		return errors.New("it cannot be read: " + d.Unread)
	case d.SizeBytes < need:
		return fmt.Errorf("too small: it has %s, the image needs %s", device.ExactSize(d.SizeBytes), device.ExactSize(need))
	case d.SizeBytes > p.config.LargestGB*1e9:
		return fmt.Errorf("too large to be a card: it has %s; largestGB in place.yml allows that", device.ExactSize(d.SizeBytes))
	}
	return nil
}

// ownSerial returns the serial of a card, stick or board; "" for what is plugged in by USB, where
// it may be the reader's, and for a card whose maker gave it none.
func ownSerial(d device.Device) string {
	if d.Kind == device.Block && d.Bus == "usb" || strings.Trim(d.Serial, "0x") == "" {
		return ""
	}
	return d.Serial
}

// causeOf names the cause of a failure of the device at path, so that the same causes can be
// counted; "" for an error that says it itself.
func causeOf(err error, path string) string {
	missing := &fs.PathError{}
	switch {
	case errors.Is(err, errRecord):
		return "the record cannot be written"
	case errors.Is(err, write.ErrSmaller), errors.Is(err, unix.ENOSPC):
		return "lies about its size"
	case errors.Is(err, write.ErrLost):
		return "worn out: it reads back something else"
	case errors.Is(err, write.ErrRemoved), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOMEDIUM), errors.Is(err, fs.ErrNotExist) && errors.As(err, &missing) && missing.Path == path:
		return "pulled out"
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EREMOTEIO), errors.Is(err, unix.ETIMEDOUT):
		return "input/output error"
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES):
		return "write-protected"
	case errors.Is(err, context.Canceled):
		return "stopped"
	}
	return ""
}

// eject has the program eject take a whole card or stick out of use. A slot for cards needs none.
func eject(ctx context.Context, e *Entry) error {
	if e.Verdict != string(Pass) || e.Device.Kind != device.Block || e.Device.Bus != "usb" {
		return nil
	}
	return run.Run(ctx, run.Command{Argv: []string{"eject", "--scsi", e.Device.Path}})
}

// maxAfter is how long the program of after may take.
const maxAfter = time.Minute

// runAfter runs the program of after, with values in place of {port}, {verdict} and the like.
func (p *Place) runAfter(ctx context.Context, e *Entry) error {
	if len(p.config.After) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxAfter)
	defer cancel()
	values := strings.NewReplacer("{port}", e.Port, "{label}", e.Label, "{verdict}", e.Verdict, "{cause}", e.Cause, "{serial}", e.Serial, "{row}", e.Row, "{receipt}", e.path)
	argv := slices.Clone(p.config.After)
	for i := range argv[1:] {
		argv[i+1] = values.Replace(argv[i+1])
	}
	return run.Run(ctx, run.Command{Argv: argv})
}

// portSink shows the progress of a flash at its port.
type portSink struct {
	place *Place
	port  *Port
}

// Event sets the port's state by the phase of the step called flash.
func (s portSink) Event(e progress.Event) {
	if e.State != progress.Running || !strings.HasPrefix(e.Step, "flash") || e.Detail == "" {
		return
	}
	s.place.update(s.port, func() {
		s.port.State = Write
		if e.Detail == "reading back" {
			s.port.State = ReadBack
		}
		s.port.Percent, s.port.Left = 0, 0
		if e.Total > 0 {
			s.port.Percent = int(min(100, 100*e.Count/e.Total))
		}
		if e.PerSecond > 0 && e.Total > e.Count {
			s.port.Left = time.Duration(e.Total-e.Count) * time.Second / time.Duration(e.PerSecond)
		}
	})
}

// Close does nothing: the port's result follows.
func (portSink) Close() {}

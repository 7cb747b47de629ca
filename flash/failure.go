package flash

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"slipway/flash/device"
	"slipway/layers/host"
)

// Why a flash failed, as far as scripts need it. Any other error is none of these.
var (
	// ErrRefused: the device must not be written, or nobody confirmed it. Nothing was written.
	ErrRefused = device.ErrRefused
	// ErrImage is for an image that is missing, damaged, or not the one that was asked for.
	ErrImage = errors.New("the image is not what it should be")
	// ErrDevice is for a device that is broken, or that reads back other data than was written.
	ErrDevice = errors.New("the device is faulty")
)

// failureWords are the words in Receipt.Reason for these errors.
var failureWords = []struct {
	err  error
	word string
}{{ErrDevice, "device"}, {ErrImage, "image"}, {ErrRefused, "refused"}}

// Failed is the error of a flash, with a receipt for each device that failed.
type Failed struct {
	Receipts []Receipt
	err      error
}

func (f *Failed) Error() string { return f.err.Error() }
func (f *Failed) Unwrap() error { return f.err }

// Fail returns a *Failed with a receipt, which carries err, for each named device that has none in
// finished. If err wraps a *Failed already, the result has only its receipts.
func Fail(board string, devices []string, err error, finished ...Receipt) error {
	var named []device.Device
	for _, name := range devices {
		named = append(named, device.Device{Path: name})
	}
	return failDevices(board, named, err, finished...)
}

// failDevices is Fail for examined devices. If err is an error of one device, the receipts of the
// others say that nothing was written to them because of that one.
func failDevices(board string, devices []device.Device, err error, finished ...Receipt) error {
	if f, failed := errors.AsType[*Failed](err); failed {
		return &Failed{f.Receipts, err}
	}
	f := &Failed{err: err}
	of, one := errors.AsType[deviceError](err)
	for _, d := range devices {
		if slices.ContainsFunc(finished, func(r Receipt) bool { return r.Device.IsCalled(d.Path) }) {
			continue
		}
		r := Receipt{Board: board, Device: d}.withError(err)
		if one && !d.IsCalled(of.name) {
			r.Error = fmt.Sprintf("nothing was written to %s, because of %s", d.Path, of.name)
		}
		f.Receipts = append(f.Receipts, r)
	}
	return f
}

// deviceError is an error of one device of several.
type deviceError struct {
	name string // of the device
	error
}

func (e deviceError) Unwrap() error { return e.error }

// splitFailed returns the receipts of the devices whose error is nil. If there are others, the
// error is a *Failed with their receipts.
func (r request) splitFailed(receipts []Receipt, errs []error) (finished []Receipt, err error) {
	f := &Failed{}
	for i, receipt := range receipts {
		if errs[i] == nil {
			finished = append(finished, receipt)
			continue
		}
		f.Receipts = append(f.Receipts, receipt.withError(errs[i]))
		err = errors.Join(err, nameDevice(r.devicePaths(), receipt.Device.Path, errs[i]))
	}
	if f.err = err; err == nil {
		return finished, nil
	}
	return finished, f
}

// withError returns the failed device's receipt: err's text and reason, no ReadBack, an end time.
func (r Receipt) withError(err error) Receipt {
	r.ReadBack, r.Error = false, err.Error()
	r.Error = host.TypedSteps(r.Error)
	if r.Finished.IsZero() {
		r.Finished = time.Now().UTC()
	}
	for _, k := range failureWords {
		if errors.Is(err, k.err) {
			r.Reason = k.word
			break
		}
	}
	return r
}

// withKind wraps err so that errors.Is finds kind (ErrRefused, ErrImage or ErrDevice) in it; the
// text stays the same. It returns err itself if that is nil or has a kind, or if ctx has ended.
func withKind(ctx context.Context, kind, err error) error {
	if err == nil || kind == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrImage) || errors.Is(err, ErrDevice) {
		return err
	}
	return kindError{kind, err}
}

// as returns a step whose errors get a kind by withKind.
func as(kind error, step func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return withKind(ctx, kind, step(ctx)) }
}

type kindError struct{ kind, err error }

func (f kindError) Error() string   { return f.err.Error() }
func (f kindError) Unwrap() []error { return []error{f.kind, f.err} }

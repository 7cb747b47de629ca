package flash

import (
	"context"
	"errors"
	"slices"

	"slipway/flash/device"
)

// Why a flash failed, as far as a script has to know. An error that is none of these is
// any other one.
var (
	// ErrRefused is for a device that must not be written, or that nobody confirmed:
	// nothing was written to it.
	ErrRefused = device.ErrRefused
	// ErrImage is for an image that is not there, or is not what it should be.
	ErrImage = errors.New("the image is not what it should be")
	// ErrDevice is for a device that did not keep what was written, or is broken.
	ErrDevice = errors.New("the device is faulty")
)

// failureWords are the words for them in a receipt.
var failureWords = []struct {
	err  error
	word string
}{{ErrDevice, "device"}, {ErrImage, "image"}, {ErrRefused, "refused"}}

// Failed is the error of a flash, with a receipt for each device that is not whole.
type Failed struct {
	Receipts []Receipt
	err      error
}

func (f *Failed) Error() string { return f.err.Error() }
func (f *Failed) Unwrap() error { return f.err }

// Fail is the error of a flash in which each of the named devices, but those that are
// whole, failed with err.
func Fail(board string, devices []string, err error, whole ...Receipt) error {
	f := &Failed{}
	if errors.As(err, &f) {
		return &Failed{f.Receipts, err}
	}
	f = &Failed{err: err}
	for _, name := range devices {
		if slices.ContainsFunc(whole, func(r Receipt) bool { return r.Device.IsCalled(name) }) {
			continue
		}
		f.Receipts = append(f.Receipts, Receipt{Board: board, Device: device.Device{Path: name}}.withError(err))
	}
	return f
}

// withError marks the receipt as that of a device that is not whole.
func (r Receipt) withError(err error) Receipt {
	r.ReadBack, r.Error = false, err.Error()
	for _, k := range failureWords {
		if errors.Is(err, k.err) {
			r.Reason = k.word
			break
		}
	}
	return r
}

// withKind gives an error a kind: ErrRefused, ErrImage or ErrDevice. Its text stays. An
// error that has a kind keeps it, and that of an ended context gets none.
func withKind(ctx context.Context, kind, err error) error {
	if err == nil || kind == nil || ctx.Err() != nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrImage) || errors.Is(err, ErrDevice) {
		return err
	}
	return kindError{kind, err}
}

type kindError struct{ kind, err error }

func (f kindError) Error() string   { return f.err.Error() }
func (f kindError) Unwrap() []error { return []error{f.kind, f.err} }

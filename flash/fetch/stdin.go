package fetch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"slipway/flash/sealed"
	"slipway/layers/localfile"
	"slipway/layers/progress"
)

// StdinAdvice is the next step after standard input that is no image, or not all of one.
const StdinAdvice = "\nnext: repeat the line  # after the program before the pipe ends without an error; set -o pipefail shows one"

// keepStdin copies in to a file without a name in dir, and verifies its digest unless that is "".
// It refuses a terminal, and an input without a byte.
func keepStdin(ctx context.Context, in *os.File, dir, digest string) (_ File, err error) {
	if term.IsTerminal(int(in.Fd())) {
		return File{}, errors.New("standard input is a terminal, and an image is expected from a pipe\nnext: repeat the line with --image=FILE for --image=-")
	}
	if err := localfile.MkdirAll(dir); err != nil {
		return File{}, err
	}
	f, err := os.CreateTemp(dir, ".stdin-")
	if err != nil {
		return File{}, err
	}
	file := File{Path: "standard input", Name: Stdin, Reference: "standard input", Listed: digest != ""}
	if err = os.Remove(f.Name()); err == nil {
		d, copied := sealed.NewDigest(), make(chan error, 1)
		step := progress.Start(ctx, "read standard input", 0, progress.Bytes)
		go func() { // a read of a pipe does not end with ctx: it is left behind
			_, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, d)}, localfile.WithContext(ctx, in, step.Add), make([]byte, 1<<20))
			copied <- err
		}()
		select {
		case err = <-copied:
			file.Content, file.SHA256 = sealed.Written(f, file.Path, d), hex.EncodeToString(d.Sum(nil))
			file.SizeBytes = file.Content.SizeBytes()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		step.End("sha256 "+file.SHA256, err)
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("read standard input: %w", context.Cause(ctx))
	case err != nil:
		err = fmt.Errorf("keep standard input in %s: %w", dir, err)
	case file.SizeBytes == 0:
		err = errors.New("standard input ended without a byte" + StdinAdvice)
	case digest != "" && file.SHA256 != digest:
		err = fmt.Errorf("standard input: %w%s", wrongDigest(file.SHA256, digest), StdinAdvice)
	}
	if err != nil {
		f.Close()
		return File{}, err
	}
	return file, nil
}

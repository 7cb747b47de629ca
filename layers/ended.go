package layers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"slipway/layers/run"
)

// diskFullTexts are what programs print if a disk is full.
var diskFullTexts = []string{"No space left on device", "Out of diskspace", "Disk quota exceeded"}

func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || slices.ContainsFunc(diskFullTexts, func(said string) bool {
		return strings.Contains(err.Error(), said)
	})
}

// explainError adds to an error what a user does about a stop or a full disk, which can
// happen at any step of a checkout.
func (c *checkout) explainError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: the checkout was stopped; run it again, and it goes on: %w", c.ws.Dir, context.Cause(ctx))
	case diskFull(err):
		return fmt.Errorf("%s: the disk is full; make room there, then run it again, and it goes on: %w", c.failedFolder(err), err)
	}
	return err
}

// failedFolder returns the folder where a failed program wrote.
func (c *checkout) failedFolder(err error) string {
	var failure *run.Failure
	inMirrors := func(arg string) bool { return strings.HasPrefix(arg, "--git-dir="+c.ws.Mirrors+"/") }
	if c.ws.Mirrors != "" && errors.As(err, &failure) && slices.ContainsFunc(failure.Argv, inMirrors) {
		return c.ws.Mirrors
	}
	return c.ws.Dir
}

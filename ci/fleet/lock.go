package fleet

import (
	"errors"
	"fmt"
	"path/filepath"

	"slipway/layers/localfile"
)

// lockRun locks the output folder of the run, so that no second run writes there.
func (p *plan) lockRun() (unlock func(), err error) {
	unlock, err = localfile.Hold(p.outputDir() + ".lock")
	if errors.Is(err, localfile.ErrHeld) {
		err = fmt.Errorf("no board was asked: %s is %w\nnext: repeat the line  # when that run has ended", p.outputDir(), err)
	}
	return unlock, localfile.Unwritable(filepath.Dir(filepath.Dir(p.outputDir())), err)
}

// lockHost locks the board's host name, so that no second run on this machine works on that board.
func (t *attempt) lockHost() (unlock func(), err error) {
	unlock, err = localfile.Hold(t.opt.HostLockPath(t.job.host.Name))
	if errors.Is(err, localfile.ErrHeld) {
		err = kindError{Busy, fmt.Errorf("%s is %w", t.job.host.Name, err)}
	}
	return unlock, err
}

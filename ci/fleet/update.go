package fleet

import (
	"context"
	"errors"
	"io"

	"slipway/ci"
	boardupdate "slipway/flash/target/update"
)

// bundled has the board's engine install the bundle. The board's time ends with the
// restart: from there on it is found out what runs, as long as that takes.
func (t *turn) bundled(ctx context.Context) (err error) {
	if t.bundle == nil {
		return nil
	}
	how := ci.UpdateOptions{DryRun: t.ask.DryRun, Downgrade: t.ask.Downgrade, Out: io.Discard, Now: t.ask.Now}
	t.updated, err = t.update(t.watched(ctx, "updating"), t, how)
	t.add(t.updated.Report)
	return t.updateKind(err)
}

func updateBoard(ctx context.Context, t *turn, how ci.UpdateOptions) (ci.Outcome, error) {
	return ci.UpdateOn(ctx, t.conn, t.spec, t.artifact, t.bundle, how)
}

// updateKind tells by what runs on the board how its update ended. Before the restart
// that is the old system, and the error tells.
func (t *turn) updateKind(err error) error {
	o := t.updated
	switch {
	case err == nil:
		return nil
	case o.Restarted && o.System == ci.OldSystem:
		return kinded{WentBack, err}
	case o.Restarted && o.System == ci.NewSystem:
		return kinded{OnTrial, err}
	case o.Restarted:
		return kinded{Unsure, err}
	case errors.Is(err, boardupdate.ErrRefused), errors.Is(err, boardupdate.ErrNoEngine), errors.Is(err, boardupdate.ErrBusy):
		return kinded{NotTaken, err}
	case errors.Is(err, boardupdate.ErrLost):
		return kinded{Lost, err}
	}
	return err
}

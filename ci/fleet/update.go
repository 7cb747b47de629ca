package fleet

import (
	"context"
	"errors"
	"fmt"
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
	if note, ok := t.noteBefore(); ok && note.of(t.job) && note.Bundle == t.work.sha256Of("bundle") {
		how.Earlier = &note.Earlier
	}
	how.Writing = t.writing
	t.updated, err = t.update(t.watched(ctx, "updating"), t, how)
	t.already = t.updated.Already
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
	case errors.Is(err, boardupdate.ErrBusy):
		return kinded{Busy, err}
	case errors.Is(err, boardupdate.ErrRefused), errors.Is(err, boardupdate.ErrNoEngine):
		return kinded{NotTaken, err}
	case errors.Is(err, boardupdate.ErrLost):
		return kinded{Lost, err}
	}
	return err
}

// noteBefore is what is known of the board's system.
func (t *turn) noteBefore() (Note, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	note, ok := t.notes[t.job.host.Name]
	return note, ok
}

// of says whether a note is of the machine that the inventory means now.
func (n Note) of(j *job) bool { return n.Address == j.access.Host && n.Port == j.access.Port }

// writing notes which system runs, before a slot is written. From then on the board
// counts as one that may have the bundle, until it is known what runs.
func (t *turn) writing(before ci.SystemID) error {
	note := Note{t.work.sha256Of("bundle"), t.job.access.Host, t.job.access.Port, ci.Earlier{From: before}}
	if err := t.journal.add(entry{Host: t.job.host.Name, Note: &note}); err != nil {
		err = fmt.Errorf("nothing was written to the board, as the record of the run cannot be: %w", err)
		t.halt(err)
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes[t.job.host.Name] = note
	return nil
}

// noteAfter is what is known after the update.
func (t *turn) noteAfter() *Note {
	note, ok := t.noteBefore()
	o := t.updated
	switch {
	case !ok, o.Restarted && o.System == ci.OldSystem:
		return nil
	case o.Committed && note.Bundle == t.work.sha256Of("bundle"):
		ran := o.SystemID()
		note.To = &ran
	}
	return &note
}

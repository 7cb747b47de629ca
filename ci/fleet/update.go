package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"

	"slipway/ci"
	"slipway/ci/suite"
	boardupdate "slipway/flash/boardssh/update"
)

// installBundle installs the bundle of an update by the board's engine, or checks it in a dry run.
// The time limit is for the time until the restart. Then it waits until it knows which system runs.
func (t *attempt) installBundle(ctx context.Context) (err error) {
	if t.bundle == nil {
		return nil
	}
	how := ci.UpdateOptions{DryRun: t.request.DryRun, Downgrade: t.request.Downgrade, Out: io.Discard, Now: t.request.Now, Metrics: suite.KeepMetrics(t.opt, t.spec)}
	if note, ok := t.noteBefore(); ok && note.isFor(t.job) && note.Bundle == t.bundle.SHA256 {
		how.Earlier = &note.Earlier
	}
	how.Writing = t.recordNote
	t.updated, err = t.update(t.withBoardProgress(ctx, "updating"), t, how)
	t.already = t.updated.Already
	t.mergeReport(t.updated.Report)
	return t.updateKind(err)
}

func updateBoard(ctx context.Context, t *attempt, how ci.UpdateOptions) (ci.Outcome, error) {
	return ci.UpdateOn(ctx, t.conn, t.spec, t.artifact, t.bundle, how)
}

// updateKind returns err with its kind: by err before a restart, after it by the system that runs.
func (t *attempt) updateKind(err error) error {
	o := t.updated
	switch {
	case err == nil:
		return nil
	case o.Restarted && o.System == ci.OldSystem:
		return kindError{WentBack, err}
	case o.Restarted && o.System == ci.NewSystem:
		return kindError{OnTrial, err}
	case o.Restarted:
		return kindError{Unsure, err}
	case errors.Is(err, boardupdate.ErrBusy):
		return kindError{Busy, err}
	case errors.Is(err, boardupdate.ErrRefused), errors.Is(err, boardupdate.ErrNoEngine):
		return kindError{NotTaken, err}
	case errors.Is(err, boardupdate.ErrLost):
		return kindError{Lost, err}
	}
	return err
}

// noteBefore returns the note of an earlier update of this board, if there is one.
func (t *attempt) noteBefore() (Note, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	note, ok := t.notes[t.job.host.Name]
	return note, ok
}

// isFor reports whether the note's address and port are those of the job.
func (n Note) isFor(j *job) bool { return n.Address == j.access.Host && n.Port == j.access.Port }

// recordNote writes a note with the running system to the journal, before the update writes a slot.
// If that fails, it stops the run and the update.
func (t *attempt) recordNote(running ci.SystemID) error {
	note := Note{t.bundle.SHA256, t.job.access.Host, t.job.access.Port, ci.Earlier{From: running}}
	if err := t.journal.appendEntry(entry{Host: t.job.host.Name, Note: &note}); err != nil {
		err = fmt.Errorf("nothing was written to the board, as the record of the run cannot be: %w", err)
		t.stopRun(err)
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notes[t.job.host.Name] = note
	return nil
}

// noteAfter returns the note to keep after the attempt, with the new system if that was marked
// good. It returns nil if there is no note or the old system runs again.
func (t *attempt) noteAfter() *Note {
	note, ok := t.noteBefore()
	o := t.updated
	switch {
	case !ok, o.Restarted && o.System == ci.OldSystem:
		return nil
	case o.Committed && note.Bundle == t.bundle.SHA256:
		ran := o.SystemID()
		note.To = &ran
	}
	return &note
}

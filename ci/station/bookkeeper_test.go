package station

import (
	"path/filepath"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
)

func (w *world) audit() []hub.Record {
	w.t.Helper()
	all, err := bookstest.Audit(w.t.Context(), w.admin)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// keepBooks reads the boards' files, the hub's jobs and the audit, and checks that they agree.
func (w *world) keepBooks(benches ...*bench) {
	w.t.Helper()
	list, err := access.Ask[job.Changes](w.t.Context(), w.admin, job.VerbJobList, struct{}{})
	if err != nil {
		w.t.Fatal(err)
	}
	files := map[string][]bookstest.Event{}
	for _, b := range benches {
		for _, name := range b.names {
			files[name] = b.events(name)
		}
	}
	if err := bookstest.Check(list.Jobs, w.audit(), files); err != nil {
		w.t.Error(err)
	}
}

func (b *bench) events(board string) []bookstest.Event {
	b.w.t.Helper()
	all, err := bookstest.Read(filepath.Join(b.boards, board, "file"))
	if err != nil {
		b.w.t.Fatal(err)
	}
	return all
}

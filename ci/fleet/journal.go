package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"slipway/ci"
	"slipway/layers/localfile"
)

// The journal of a run has one JSON value per line. newJournal writes the head, which names all
// boards, before the run contacts the first one. The first line says how many lines the head has:
// a journal with fewer has lost boards. Then lines are only appended: one before each attempt, one
// before an update writes a slot, one after the attempt. Each line is on the disk before the run
// continues. All other files of a run are made from the journal.
const journalName = "journal.jsonl"

const (
	journalVersion  = 2
	maxJournalBytes = 256 << 20
)

// entry is a line of a journal.
type entry struct {
	At      time.Time `json:"at"`
	Version int       `json:"journal,omitempty"` // with Run, in the first line
	Head    int       `json:"head,omitempty"`    // lines that newJournal wrote, in the first line
	Run     *Outcome  `json:"run,omitempty"`     // without results
	Host    string    `json:"host,omitempty"`
	Begun   int       `json:"begun,omitempty"` // number of the attempt that begins
	Note    *Note     `json:"note,omitempty"`
	Result  *Result   `json:"result,omitempty"`
	End     *runEnd   `json:"end,omitempty"` // the last line
}

// runEnd says how a run ended. A run that was killed has none.
type runEnd struct {
	ElapsedMS int64  `json:"elapsedMs"`
	Stopped   string `json:"stopped,omitempty"`
}

// Note records that an update of a board began. It is kept until the old system runs again.
type Note struct {
	Bundle     string `json:"bundle"` // digest
	Address    string `json:"address"`
	Port       int    `json:"port,omitempty"`
	ci.Earlier        // what the engine said
}

// journal is a journal that is being written. Its methods may be called from any goroutine.
type journal struct {
	sync func() error

	mu      sync.Mutex
	file    io.WriteCloser
	written int64
	err     error // the first error; no line is written after it

	flush  sync.Mutex // held while syncing all that was written before
	synced int64
}

// newJournal writes a new journal with entries as its head, replaces the folder's old one, and
// returns the new one to append to. Between the new file's sync and its rename, it calls onSynced.
func newJournal(dir string, entries []entry, onSynced func() error) (*journal, error) {
	if err := localfile.MkdirAll(dir); err != nil {
		return nil, err
	}
	pending, err := renameio.NewPendingFile(filepath.Join(dir, journalName), renameio.WithTempDir(dir), renameio.WithPermissions(0o644))
	if err != nil {
		return nil, err
	}
	defer pending.Cleanup()
	enc := json.NewEncoder(pending)
	for _, e := range entries {
		e.At = time.Now().UTC()
		if err := enc.Encode(e); err != nil {
			return nil, err
		}
	}
	if err := pending.Sync(); err != nil {
		return nil, err
	}
	if err := onSynced(); err != nil {
		return nil, err
	}
	if err := pending.CloseAtomicallyReplace(); err != nil {
		return nil, err
	}
	if err := localfile.SyncFolder(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, journalName), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	return &journal{file: f, sync: f.Sync}, nil
}

// writeFile replaces a file atomically, and first creates its folder if that is missing.
func writeFile(dir, name string, data []byte) error {
	if err := localfile.MkdirAll(dir); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, name), data, 0o644)
}

// appendEntry appends a line to the journal and waits until the line is on the disk. Concurrent
// calls share one fsync. After an error, all later calls return that error.
func (j *journal) appendEntry(e entry) error {
	e.At = time.Now().UTC()
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	upTo, err := j.writeLine(append(text, '\n'))
	if err != nil {
		return err
	}
	j.flush.Lock()
	defer j.flush.Unlock()
	if j.synced >= upTo {
		return nil
	}
	j.mu.Lock()
	upTo, err = j.written, j.err
	j.mu.Unlock()
	if err != nil { // after a failed sync the content on the disk is unknown
		return err
	}
	if err := j.sync(); err != nil {
		return j.setError(err)
	}
	j.synced = upTo
	return nil
}

// writeLine writes a line, unsynced, unless an earlier one failed. upTo is the bytes of all so far.
func (j *journal) writeLine(line []byte) (upTo int64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return 0, j.err
	}
	n, err := j.file.Write(line)
	j.written += int64(n)
	if err != nil {
		j.err = err
	}
	return j.written, err
}

// setError keeps an error, after which no line is written, and returns it.
func (j *journal) setError(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
	return err
}

// hasFailed reports whether an entry could not be written.
func (j *journal) hasFailed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err != nil
}

func (j *journal) close() error { return j.file.Close() }

// history is the content of a journal.
type history struct {
	outcome Outcome
	at      map[string]int // of each host, in outcome.Results
	notes   map[string]Note
}

// killedWords is Result.Saw of a board whose attempt did not end because the run was killed.
const killedWords = "the run ended before this board's turn did"

// readHistory reads and parses the journal in a folder.
func readHistory(dir string) (*history, error) {
	file := filepath.Join(dir, journalName)
	text, err := localfile.Read(file, maxJournalBytes)
	if err != nil {
		return nil, err
	}
	h, err := parseJournal(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}

// parseJournal parses a journal. It ignores an incomplete last line, which a killed run leaves, and
// refuses a journal whose head is incomplete.
func parseJournal(text []byte) (*history, error) {
	h := &history{at: map[string]int{}, notes: map[string]Note{}}
	number, whole, head := 0, 0, 0
	for line := range bytes.Lines(text) {
		if number++; !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		e, err := parseEntry(line)
		if err == nil {
			err = h.applyEntry(e, number == 1)
		}
		if whole = number; number == 1 {
			head = e.Head
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if h.outcome.Started.IsZero() {
		return nil, errors.New("line 1: no run")
	}
	if whole < head || head < 1 {
		return nil, fmt.Errorf("it is cut: it holds only %d of the %d lines that name the boards", whole, head)
	}
	return h, nil
}

// parseEntry parses a line: one JSON value, without unknown fields.
func parseEntry(line []byte) (e entry, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return e, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("more than one value")
	}
	return e, nil
}

// applyEntry updates the history by one entry. It refuses a run that is not in the first line,
// another version, an attempt on an unknown host, and an entry without content.
func (h *history) applyEntry(e entry, first bool) error {
	i, known := h.at[e.Host]
	switch {
	case first != (e.Run != nil):
		return errors.New("the run must be in the first line, and only in that line")
	case first && e.Version != journalVersion:
		return fmt.Errorf("version %d; this Slipway reads version %d", e.Version, journalVersion)
	case first:
		h.outcome, h.outcome.Results = *e.Run, nil
		h.outcome.Stopped = "it was killed, or its machine lost its power"
	case e.End != nil:
		h.outcome.ElapsedMS, h.outcome.Stopped = e.End.ElapsedMS, e.End.Stopped
		return nil
	case e.Host == "":
		return errors.New("no host")
	case e.Result != nil:
		return h.applyResult(e, i, known)
	case e.Begun > 0 && known:
		r := &h.outcome.Results[i]
		*r = Result{Host: r.Host, Address: r.Address, Port: r.Port, Canary: r.Canary, Kind: Stopped, Saw: killedWords, Tries: e.Begun}
	case e.Begun > 0:
		return fmt.Errorf("host %s is not one of the run's", oneLine(e.Host))
	case e.Note != nil:
		h.notes[e.Host] = *e.Note
	default:
		return errors.New("it says nothing")
	}
	h.outcome.ElapsedMS = max(h.outcome.ElapsedMS, e.At.Sub(h.outcome.Started).Milliseconds())
	return nil
}

// applyResult replaces a host's result, which has the index i if known, and its note by those of e,
// or adds the host. It refuses a result of another host or of an unknown kind.
func (h *history) applyResult(e entry, i int, known bool) error {
	if e.Result.Host != e.Host || !e.Result.Kind.Known() {
		return fmt.Errorf("the result of %s is of %q and of kind %q", oneLine(e.Host), oneLine(e.Result.Host), oneLine(e.Result.Kind))
	}
	if !known {
		i = len(h.outcome.Results)
		h.at[e.Host] = i
		h.outcome.Results = append(h.outcome.Results, Result{})
	}
	h.outcome.Results[i] = *e.Result
	delete(h.notes, e.Host)
	if e.Note != nil {
		h.notes[e.Host] = *e.Note
	}
	return nil
}

// journalEntries returns the entries of the head of a new journal with the same results and notes.
func (h *history) journalEntries() []entry {
	head := h.outcome
	head.Results = nil
	all := []entry{{Version: journalVersion, Run: &head}}
	for _, r := range h.outcome.Results {
		e := entry{Host: r.Host, Result: &r}
		if note, ok := h.notes[r.Host]; ok {
			e.Note = &note
		}
		all = append(all, e)
	}
	for _, host := range slices.Sorted(maps.Keys(h.notes)) {
		if _, ok := h.at[host]; !ok {
			note := h.notes[host]
			all = append(all, entry{Host: host, Note: &note})
		}
	}
	all[0].Head = len(all)
	return all
}

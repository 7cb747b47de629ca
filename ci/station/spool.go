package station

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// A log's piece has the place where it begins in the file, and the hub takes it only if its own copy
// ends there. Each answer says where that is, and the next piece is cut from there. So no piece needs
// to be remembered here: not over a restart, a lost answer, or a hub that lost its data.

// sendLog sends the log as it grows, once.
func (w *work) sendLog(ctx context.Context) {
	w.logOnce.Do(func() { w.s.running.Go(func() { w.spool(ctx) }) })
}

// endLog has the log sent to its end: nothing is written into it any more.
func (w *work) endLog(ctx context.Context) {
	w.final.Store(true)
	w.sendLog(ctx)
	notify(w.whole)
}

// spool sends the log until the hub has all of it, or ctx ends. The first piece, and an empty last
// one, only ask where the hub's copy ends if it has more or less than was known here.
func (w *work) spool(ctx context.Context) {
	defer close(w.logged)
	hide := w.hider()
	for at := uint64(0); ctx.Err() == nil; {
		final := w.final.Load()
		piece, err := readPiece(w.folder.Log(), w.id, at, final)
		piece.Text = hide(piece.Text)
		if err == nil && (piece.Text != "" || final) {
			var answer job.Log
			answer, err = ask[job.Log](ctx, w.s, job.VerbLog, piece)
			if err == nil && piece.Text == "" && answer.N == at {
				if err = localfile.Replace(filepath.Join(string(w.folder), keptName), nil); err == nil {
					return
				}
			}
			if err == nil {
				at = answer.N
			}
		}
		w.s.sayError(ctx, "job "+w.id, err)
		if err != nil || !final {
			pause(ctx, w.whole, w.s.tick)
		}
	}
}

// minSecret is how long a word of power: or recovery: is that no log may have. Shorter ones, such as
// "cycle", are in what others say too.
const minSecret = 6

// hider returns a function that hides the secrets in a text: those that have a known form, and the
// words of the station's own programs, which can be passwords.
func (w *work) hider() func(string) string {
	o, _ := w.folder.Order() // none: no program ran
	var words []string
	for _, program := range [][]string{o.How.Power, o.How.Recovery} {
		for _, word := range program[min(1, len(program)):] {
			if _, value, found := strings.Cut(word, "="); found {
				word = value
			}
			if len(word) >= minSecret {
				words = append(words, word, "[hidden]")
			}
		}
	}
	own := strings.NewReplacer(words...)
	return func(text string) string { return plaintext.HideSecrets(own.Replace(text)) }
}

// maxPieceBytes is what a hub takes.
const maxPieceBytes = 32 << 10

// readPiece reads a piece of a log from a place on. It ends with a line, unless the line does not fit,
// or the log has ended: a secret in two pieces would not be found.
func readPiece(name, id string, at uint64, final bool) (job.Log, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return job.Log{ID: id, N: at, To: at}, nil
	}
	if err != nil {
		return job.Log{}, err
	}
	defer f.Close()
	data := make([]byte, maxPieceBytes)
	n, err := f.ReadAt(data, int64(at))
	if err != nil && !errors.Is(err, io.EOF) {
		return job.Log{}, err
	}
	data = data[:n]
	full, end := n == maxPieceBytes, bytes.LastIndexByte(data, '\n')+1
	if full && end > 0 || !full && !final {
		data = data[:end]
	}
	return job.Log{ID: id, N: at, To: at + uint64(len(data)), Text: strings.ToValidUTF8(string(data), "?")}, nil
}

// maxReportBytes limits a report, packed; JSON makes four bytes of three, and a hub takes 8 MiB.
const maxReportBytes = 5 << 20

// sendReport sends the report that a result names, if there is one.
func (w *work) sendReport(ctx context.Context, r job.Result) error {
	if r.Report == "" || !filepath.IsLocal(r.Report) {
		return nil
	}
	data, err := localfile.Read(filepath.Join(w.folder.Work(w.name), r.Report), job.MaxReportBytes)
	var packed []byte
	if err == nil {
		packed, err = pack(data)
	}
	if err == nil && len(packed) > maxReportBytes {
		err = errors.New("it is longer than a hub takes")
	}
	if err != nil {
		w.s.say("job %s: its report is not sent: %v", w.id, err)
		return nil
	}
	_, err = ask[struct{}](ctx, w.s, job.VerbReport, job.Report{ID: w.id, Name: w.name, Zstd: packed})
	return err
}

func pack(data []byte) ([]byte, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.EncodeAll(data, nil), nil
}

// tail reads the events of a job, and keeps the newest of each step.
type tail struct {
	name   string
	at     int64
	newest map[string]event
}

type event struct {
	line        []byte
	ended, sent bool
	at          time.Time // when one of this step was sent last
}

// progressEvery limits the events of a step, progressAgain is after which time an event that holds is
// sent again, and maxEventsBytes is what is read at once.
const progressEvery, progressAgain, maxEventsBytes = 500 * time.Millisecond, 10 * time.Second, 1 << 20

// publish sends the newest event of each step, at most two a second and the end of the step. Nobody
// keeps them. A hub that has restarted hears again of a step that waits, as a port of a place does.
func (t *tail) publish(w *work) {
	t.read()
	c := w.s.client.Load()
	for _, step := range slices.Sorted(maps.Keys(t.newest)) {
		e := t.newest[step]
		again := progressEvery
		if e.sent {
			again = progressAgain
		}
		if c == nil || !c.IsConnected() || !e.ended && time.Since(e.at) < again {
			continue
		}
		_ = c.Publish("prog."+bus.Key(w.s.Identity.Name, w.name, w.id), e.line) // or nobody sees it
		if e.sent, e.at = true, time.Now(); e.ended {
			delete(t.newest, step)
			continue
		}
		t.newest[step] = e
	}
}

// read reads the lines that were added.
func (t *tail) read() {
	f, err := os.Open(t.name)
	if err != nil {
		return // there is none yet
	}
	defer f.Close()
	data := make([]byte, maxEventsBytes)
	n, _ := f.ReadAt(data, t.at)
	end := bytes.LastIndexByte(data[:n], '\n') + 1
	if end == 0 && n == len(data) { // no event is so long
		end = n
	}
	t.at += int64(end)
	for line := range bytes.Lines(data[:end]) {
		var e progress.Event
		if json.Unmarshal(line, &e) == nil && e.Step != "" {
			t.newest[e.Step] = event{line: bytes.TrimSpace(line), ended: e.State != progress.Running, at: t.newest[e.Step].at}
		}
	}
}

package hub

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// verb is one request that a hub answers.
type verb struct {
	audited bool // it changes something
	polls   bool // it waits for a change
	answer  func(h *Hub, ctx context.Context, who string, request []byte) (any, error)
}

// handle makes a verb of a function over forms.
func handle[In, Out any](audited bool, answer func(h *Hub, ctx context.Context, who string, in In) (Out, error)) verb {
	return verb{audited: audited, answer: func(h *Hub, ctx context.Context, who string, request []byte) (any, error) {
		var in In
		switch err := json.Unmarshal(request, &in); {
		case errors.Is(err, job.ErrNewer):
			return nil, fmt.Errorf("the request: %w\nnext: upgrade the hub first", err)
		case err != nil:
			return nil, fmt.Errorf("the request is not readable: %w", err)
		}
		return answer(h, ctx, who, in)
	}}
}

// poll makes a verb that waits for a change.
func poll[In, Out any](answer func(h *Hub, ctx context.Context, who string, in In) (Out, error)) verb {
	v := handle(false, answer)
	v.polls = true
	return v
}

// nothing is the form of a request or an answer without content.
type nothing struct{}

// verbs are all requests, by name.
var verbs = map[string]verb{
	job.VerbHello:   handle(true, (*Hub).hello),
	job.VerbAlive:   handle(false, (*Hub).renew),
	job.VerbAway:    handle(true, (*Hub).away),
	job.VerbBoards:  handle(false, (*Hub).setBoards),
	job.VerbMine:    poll((*Hub).jobsOf),
	job.VerbClaim:   handle(false, (*Hub).claim), // it writes the audit itself, without conflicts
	job.VerbEnd:     handle(true, (*Hub).end),
	job.VerbRestore: handle(true, (*Hub).restore),
	job.VerbLog:     handle(false, (*Hub).keepLog),
	job.VerbReport:  handle(false, (*Hub).keepReport),
	job.VerbCard:    handle(false, (*Hub).keepCard),
	job.VerbRows:    handle(false, (*Hub).takeRows),

	job.VerbRenewStation: handle(false, (*Hub).renewIdentity),
	job.VerbRenew:        handle(false, (*Hub).renewIdentity),

	job.VerbBoardList:   handle(false, (*Hub).listBoards),
	job.VerbStationList: handle(false, (*Hub).listStations),
	job.VerbJobList:     handle(false, (*Hub).listJobs),
	job.VerbJobWait:     poll((*Hub).waitForJob),
	job.VerbJobLog:      poll((*Hub).readLog),
	job.VerbOpen:        handle(true, (*Hub).open),
	job.VerbJobAdd:      handle(true, (*Hub).addJob),
	job.VerbJobStop:     handle(true, (*Hub).stopJob),
	job.VerbRollouts:    handle(false, (*Hub).listRollouts),
	job.VerbRolloutShow: poll((*Hub).showRollout),
	job.VerbRolloutAdd:  handle(true, (*Hub).addRollout),
	job.VerbRolloutWish: handle(true, (*Hub).wishRollout),
	job.VerbRolloutBack: handle(true, (*Hub).takeBack),
	job.VerbReportList:  handle(false, (*Hub).listReports),
	job.VerbReportGet:   handle(false, (*Hub).getReport),
	job.VerbAbandon:     handle(true, (*Hub).abandonJob),
	job.VerbDrain:       handle(true, (*Hub).drain),
	job.VerbNameDevice:  handle(true, (*Hub).nameDevice),
	job.VerbInvite:      handle(true, (*Hub).invite),
	job.VerbRemove:      handle(true, (*Hub).remove),
	job.VerbPeople:      handle(false, (*Hub).listPeople),
	job.VerbAudit:       handle(false, (*Hub).readAudit),
	job.VerbCards:       handle(false, (*Hub).listCards),
	job.VerbTables:      handle(false, (*Hub).listTables),
	job.VerbTable:       handle(false, (*Hub).showTable),
	job.VerbTableAdd:    handle(false, (*Hub).addTable), // it writes the audit itself, without the cells
	job.VerbTableFree:   handle(true, (*Hub).freeRows),
}

// atOnce is how many requests a hub works at. More wait in the subscription's own queue, in their order,
// because an error would make all clients ask again at once. Polls wait for most of their time, and
// are counted apart: more than maxPolls, or maxPollsOf of one name, are refused, as they would hold up
// the others.
const (
	atOnce      = 256
	maxPolls    = 16384
	maxPollsOf  = 1024
	answerLimit = patience + 5*time.Second // longer than a poll
)

// accept returns a function that answers requests api.<role>.<who>.<verb>, a limited number at a time.
// NATS has proved role and name. It drops a request whose answer would go to another's inbox, or to a
// subject that means something: a client may name any subject there, and this hub may write to all.
func (h *Hub) accept(ctx context.Context) nats.MsgHandler {
	working, polling := make(chan struct{}, atOnce), &polls{of: map[string]int{}}
	return func(m *nats.Msg) {
		parts := strings.SplitN(m.Subject, ".", 4)
		if len(parts) != 4 || !strings.HasPrefix(m.Reply, "_INBOX_"+parts[2]+".") {
			return
		}
		role, who, verb := job.Role(parts[1]), bus.Name(parts[2]), parts[3]
		leave := func() { <-working }
		switch isPoll := verbs[verb].polls; {
		case isPoll && !polling.enter(who):
			respond(m, bus.Refusal{Text: "the hub is busy: too many wait here for changes", Away: true})
			return
		case isPoll:
			leave = func() { polling.leave(who) }
		default:
			working <- struct{}{}
		}
		go func() {
			defer leave()
			h.answer(ctx, m, role, who, verb)
		}()
	}
}

// polls counts who waits for changes.
type polls struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// enter counts one more of a name, unless there are too many.
func (p *polls) enter(who string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == maxPolls || p.of[who] == maxPollsOf {
		return false
	}
	p.all, p.of[who] = p.all+1, p.of[who]+1
	return true
}

func (p *polls) leave(who string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all, p.of[who] = p.all-1, p.of[who]-1
	if p.of[who] == 0 {
		delete(p.of, who)
	}
}

// answer answers one request.
func (h *Hub) answer(ctx context.Context, m *nats.Msg, role job.Role, who, verb string) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answer, err := h.Call(ctx, role, who, verb, m.Data)
	if err != nil {
		answer = refusal(err)
	}
	respond(m, answer)
}

// refusal is the answer for an error: one line, of which a request's own words are but a part.
func refusal(err error) bus.Refusal {
	text, next, _ := strings.Cut(err.Error(), "\nnext: ")
	line := func(text string) string { return plaintext.Shorten(plaintext.OneLine(text), 600) }
	return bus.Refusal{
		Text: line(strings.ReplaceAll(text, "\n", "; ")), Next: line(next),
		Conflict: errors.Is(err, bus.ErrConflict), Away: errors.Is(err, bus.ErrAway) || bus.IsUnsure(err),
	}
}

func respond(m *nats.Msg, answer any) {
	if data, err := json.Marshal(answer); err == nil {
		_ = m.Respond(fitAnswer(data)) // without a connection, the client asks again
	}
}

// fitAnswer returns an answer, or a refusal instead of one that NATS would drop without a word.
func fitAnswer(data []byte) []byte {
	if len(data) <= bus.MaxPayload {
		return data
	}
	text := fmt.Sprintf("the answer has %s, and one has at most %s", plaintext.SizeText(int64(len(data))), plaintext.SizeText(bus.MaxPayload))
	data, _ = json.Marshal(bus.Refusal{Text: text, Next: "slipway hub open  # the page shows what does not fit here"}) // never fails
	return data
}

// Call answers a request of somebody who was proved to be who, with this role. It writes each request
// that changes something into the audit, before it is done and again if it is refused.
func (h *Hub) Call(ctx context.Context, role job.Role, who, name string, request []byte) (any, error) {
	v, known := verbs[name]
	if !h.Majority() {
		return nil, h.folder.away()
	}
	if !known || job.RoleOf(name) != role {
		err := fmt.Errorf("a %s cannot ask for %q", role, plaintext.OneLine(name))
		if v.audited {
			err = h.refuse(ctx, role, who, name, request, err)
		}
		return nil, err
	}
	if v.audited {
		if err := h.audit(ctx, Record{Who: who, Role: role, Verb: name, What: shorten(request)}); err != nil {
			return nil, fmt.Errorf("write the audit: %w", err)
		}
	}
	told := h.index.heard()
	answer, err := v.answer(h, ctx, who, request)
	if err != nil && h.folder.replicas() > 1 { // the refusal may be wrong: another hub had changed the key
		if behind := h.index.catchUp(ctx); behind != nil {
			return nil, fmt.Errorf("this hub does not know what the others have answered: %w", behind)
		}
		if h.index.heard() != told {
			answer, err = v.answer(h, ctx, who, request)
		}
	}
	if err != nil && v.audited {
		err = h.refuse(ctx, role, who, name, request, err)
	}
	return answer, err
}

// check returns an error unless this hub can change what all hubs have. Then it knows all that they
// have answered until now.
func (h *Hub) check(ctx context.Context) error {
	switch {
	case !h.Majority():
		return h.folder.away()
	case h.folder.replicas() == 1:
		return nil
	}
	return h.index.catchUp(ctx)
}

func (h *Hub) refuse(ctx context.Context, role job.Role, who, name string, request []byte, why error) error {
	return errors.Join(why, h.audit(ctx, Record{Who: who, Role: role, Verb: name, What: shorten(request), Refused: why.Error()}))
}

// Record is one line of the audit.
type Record struct {
	At      time.Time `json:"at"` // of the engine
	Who     string    `json:"who"`
	Role    job.Role  `json:"role"`
	Verb    string    `json:"verb"`
	What    string    `json:"what,omitempty"`
	Refused string    `json:"refused,omitempty"`
}

// maxRecordBytes limits a request in the audit.
const maxRecordBytes = 4 << 10

func shorten(request []byte) string { return string(request[:min(len(request), maxRecordBytes)]) }

func (h *Hub) audit(ctx context.Context, r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	id := jetstream.WithMsgID(rand.Text()) // the engine drops a second one of an attempt that it kept
	_, err = bus.Agree(ctx, func(ctx context.Context) (*jetstream.PubAck, error) {
		return h.js.Publish(ctx, "audit."+bus.Token(r.Who), data, id)
	})
	return err
}

// Audit is what the audit has, the newest last.
type Audit struct {
	Records []Record `json:"records"`
	First   uint64   `json:"first"` // number of the first record
}

// readFrom returns the first message of a subject from a number on, "" for any subject. The engine answers
// nobody for a moment after a removal, which changes the account.
func readFrom(ctx context.Context, s jetstream.Stream, n uint64, subject string) (*jetstream.RawStreamMsg, error) {
	return bus.Agree(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		if subject == "" {
			return s.GetMsg(ctx, n)
		}
		return s.GetMsg(ctx, n, jetstream.WithGetMsgSubject(subject))
	})
}

// lastOf returns the last message of a subject, an empty one if there is none.
func lastOf(ctx context.Context, s jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := bus.Agree(ctx, func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
		return s.GetLastMsgForSubject(ctx, subject)
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return &jetstream.RawStreamMsg{}, nil
	}
	return m, err
}

// auditShown is how many records readAudit returns.
const auditShown = 500

func (h *Hub) readAudit(ctx context.Context, _ string, in job.ListWish) (Audit, error) {
	info, err := bus.Agree(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return h.records.Info(ctx) })
	if err != nil {
		return Audit{}, err
	}
	var a Audit
	last := info.State.LastSeq
	if in.Before > 0 {
		last = min(last, in.Before-1)
	}
	for seq := last; seq > 0 && seq+auditShown > last; seq-- {
		m, err := readFrom(ctx, h.records, seq, "")
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break // older ones are gone
		}
		if err != nil {
			return Audit{}, err
		}
		var r Record
		if err := json.Unmarshal(m.Data, &r); err == nil {
			r.At = m.Time
			a.Records, a.First = append(a.Records, r), seq
		}
	}
	slices.Reverse(a.Records)
	return a, nil
}

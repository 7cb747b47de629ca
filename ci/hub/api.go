package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// verb is one request that a hub answers.
type verb struct {
	audited bool // it changes something
	answer  func(h *Hub, ctx context.Context, who string, request []byte) (any, error)
}

// handle makes a verb of a function over forms.
func handle[In, Out any](audited bool, answer func(h *Hub, ctx context.Context, who string, in In) (Out, error)) verb {
	return verb{audited, func(h *Hub, ctx context.Context, who string, request []byte) (any, error) {
		var in In
		if err := json.Unmarshal(request, &in); err != nil {
			return nil, fmt.Errorf("the request is not readable: %w", err)
		}
		return answer(h, ctx, who, in)
	}}
}

// nothing is the form of a request or an answer without content.
type nothing struct{}

// verbs are all requests, by name.
var verbs = map[string]verb{
	job.VerbHello:   handle(true, (*Hub).hello),
	job.VerbAlive:   handle(false, (*Hub).renew),
	job.VerbAway:    handle(true, (*Hub).away),
	job.VerbBoards:  handle(false, (*Hub).setBoards),
	job.VerbMine:    handle(false, (*Hub).jobsOf),
	job.VerbClaim:   handle(true, (*Hub).claim),
	job.VerbEnd:     handle(true, (*Hub).end),
	job.VerbRestore: handle(true, (*Hub).restore),
	job.VerbLog:     handle(false, (*Hub).keepLog),
	job.VerbReport:  handle(false, (*Hub).keepReport),

	job.VerbBoardList:   handle(false, (*Hub).listBoards),
	job.VerbStationList: handle(false, (*Hub).listStations),
	job.VerbJobList:     handle(false, (*Hub).listJobs),
	job.VerbJobWait:     handle(false, (*Hub).waitForJob),
	job.VerbJobLog:      handle(false, (*Hub).readLog),
	job.VerbOpen:        handle(true, (*Hub).open),
	job.VerbJobAdd:      handle(true, (*Hub).addJob),
	job.VerbJobStop:     handle(true, (*Hub).stopJob),
	job.VerbRollouts:    handle(false, (*Hub).listRollouts),
	job.VerbRolloutShow: handle(false, (*Hub).showRollout),
	job.VerbRolloutAdd:  handle(true, (*Hub).addRollout),
	job.VerbRolloutWish: handle(true, (*Hub).wishRollout),
	job.VerbAbandon:     handle(true, (*Hub).abandonJob),
	job.VerbDrain:       handle(true, (*Hub).drain),
	job.VerbInvite:      handle(true, (*Hub).invite),
	job.VerbRemove:      handle(true, (*Hub).remove),
	job.VerbPeople:      handle(false, (*Hub).listPeople),
	job.VerbAudit:       handle(false, (*Hub).readAudit),
}

// answer answers one request api.<role>.<who>.<verb>. NATS has proved role and name. It drops a
// request whose answer would go to another's inbox, or to a subject that means something: a client
// may name any subject there, and this hub may write to all.
func (h *Hub) answer(ctx context.Context, m *nats.Msg) {
	parts := strings.SplitN(m.Subject, ".", 4)
	if len(parts) != 4 || !strings.HasPrefix(m.Reply, "_INBOX_"+parts[2]+".") {
		return
	}
	role, who := job.Role(parts[1]), bus.Name(parts[2])
	answer, err := h.Call(ctx, role, who, parts[3], m.Data)
	if err != nil {
		text, next, _ := strings.Cut(err.Error(), "\nnext: ")
		answer = bus.Refusal{Text: plaintext.Printable(text), Conflict: errors.Is(err, bus.ErrConflict), Next: next}
	}
	data, err := json.Marshal(answer)
	if err == nil {
		_ = m.Respond(data) // without a connection, the client asks again
	}
}

// Call answers a request of somebody who was proved to be who, with this role. It writes each request
// that changes something into the audit, before it is done and again if it is refused.
func (h *Hub) Call(ctx context.Context, role job.Role, who, name string, request []byte) (any, error) {
	v, known := verbs[name]
	if !known || job.RoleOf(name) != role {
		return nil, h.refuse(ctx, role, who, name, nil, fmt.Errorf("a %s cannot ask for %q", role, plaintext.OneLine(name)))
	}
	if v.audited {
		if err := h.audit(ctx, Record{Who: who, Role: role, Verb: name, What: shorten(request)}); err != nil {
			return nil, fmt.Errorf("write the audit: %w", err)
		}
	}
	answer, err := v.answer(h, ctx, who, request)
	if err != nil && v.audited {
		err = h.refuse(ctx, role, who, name, request, err)
	}
	return answer, err
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
	_, err = h.js.Publish(ctx, "audit."+bus.Token(r.Who), data)
	return err
}

// Audit is what the audit has, the newest last.
type Audit struct {
	Records []Record `json:"records"`
	First   uint64   `json:"first"` // number of the first record
}

// AuditWish asks for the records before one, or for the newest.
type AuditWish struct {
	Before uint64 `json:"before,omitempty"`
}

// auditShown is how many records readAudit returns.
const auditShown = 500

func (h *Hub) readAudit(ctx context.Context, _ string, in AuditWish) (Audit, error) {
	stream, err := h.js.Stream(ctx, "AUDIT")
	if err != nil {
		return Audit{}, err
	}
	var a Audit
	last := stream.CachedInfo().State.LastSeq
	if in.Before > 0 {
		last = min(last, in.Before-1)
	}
	for seq := last; seq > 0 && seq+auditShown > last; seq-- {
		m, err := stream.GetMsg(ctx, seq)
		if err != nil {
			break // older ones are gone
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

package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// Contact is one board's host key, and whether that key is known.
type Contact struct {
	Host        string `json:"host"`
	State       State  `json:"state"`
	Machine     string `json:"machine,omitempty"` // that showed the key: the board, or a jump host
	Fingerprint string `json:"fingerprint,omitempty"`
	Key         string `json:"key,omitempty"` // as slipway_host_key has it
	Saw         string `json:"saw,omitempty"`

	unknown *boardssh.UnknownKey
	next    string // what the error of a changed key says to type
}

// State says whether a board's host key is known.
type State string

// The states.
const (
	Known  State = "known"
	New    State = "new"
	Pinned State = "pinned" // by this run
	Unmet  State = "not met"
)

// Pin connects to all boards, lists their unknown host keys, asks the user, and then adds the keys
// to the user's known_hosts. After keys of jump hosts are added, it repeats this for the boards
// behind them. A dry run adds no key. A board that showed no usable key is an error.
func Pin(ctx context.Context, w io.Writer, opt images.Options, spec images.Spec, request Request, confirm func(question string) error) ([]Contact, error) {
	p, notes, err := newPlan(ctx, opt, spec, request)
	if err != nil {
		return nil, err
	}
	defer p.close()
	writeNotes(w, notes)
	if err := p.unlockKeys(ctx); err != nil {
		return nil, err
	}
	met, jobs := p.initialContacts(), p.jobs
	for len(jobs) > 0 && err == nil {
		p.fetchHostKeys(ctx, jobs, met)
		if err = context.Cause(ctx); err == nil {
			jobs, err = p.pinNew(w, jobs, met, confirm)
		}
	}
	return met, errors.Join(err, writeContacts(ctx, w, met))
}

// initialContacts returns a Contact in the state Unmet for each board.
func (p *plan) initialContacts() []Contact {
	met := make([]Contact, len(p.jobs))
	for i, j := range p.jobs {
		met[i] = Contact{Host: j.host.Name, State: Unmet, Saw: string(NotBegun)}
	}
	return met
}

// fetchHostKeys connects to boards in parallel, and writes the result of each to its index in met.
func (p *plan) fetchHostKeys(ctx context.Context, jobs []*job, met []Contact) {
	step := progress.Start(ctx, "host keys", int64(len(jobs)), progress.Tasks)
	forEachJob(ctx, p.request.Parallel, jobs, func(j *job) {
		met[slices.Index(p.jobs, j)] = p.fetchHostKey(ctx, j)
		step.Add(1)
	})
	step.End(report.Boards(len(jobs))+" asked", context.Cause(ctx))
}

// fetchHostKey connects to a board and returns its contact: Known, New with the key, or Unmet with
// the reason. A refused login is Known, because the board proves its key before the login.
func (p *plan) fetchHostKey(ctx context.Context, j *job) Contact {
	c := Contact{Host: j.host.Name, State: Known}
	limited, cancel := p.limit(ctx, j)
	defer cancel()
	conn, err := p.dial(limited, j)
	if err == nil {
		conn.Close()
	}
	switch {
	case errors.As(err, &c.unknown):
		c.State, c.Machine, c.Fingerprint, c.Key = New, c.unknown.Machine(), c.unknown.Fingerprint(), c.unknown.Line()
	case err != nil && !boardssh.HostProved(err):
		kind := kindOf(ctx, limited, err, connecting, false)
		c.State, c.Saw = Unmet, fmt.Sprintf("%s: %s", kind, sawOf(err))
		if kind == HostKey {
			_, c.next = report.SplitNext(err, "")
		}
	}
	return c
}

// pinNew lists the unknown keys, asks the user, pins them, and marks their boards in met as Pinned.
// It returns the boards whose jump hosts it pinned, which now can be reached. A dry run only lists.
func (p *plan) pinNew(w io.Writer, jobs []*job, met []Contact, confirm func(string) error) (behind []*job, err error) {
	fresh := markConflicts(met)
	if len(fresh) == 0 {
		return nil, nil
	}
	if err := writeNewKeys(w, fresh); err != nil || p.request.DryRun {
		return nil, err
	}
	question := fmt.Sprintf("Compare them with the boards' own consoles, or with what their flashes recorded. Pin %d %s in %s?", len(fresh), plaintext.Either(len(fresh) == 1, "key", "keys"), fresh[0].unknown.File())
	if err := confirm(question); err != nil {
		return nil, err
	}
	pinned := map[string]bool{} // by name
	var failed error
	for _, c := range fresh {
		if failed = c.unknown.Pin(); failed != nil {
			break
		}
		pinned[c.unknown.Name()] = true
	}
	for _, j := range jobs {
		c := &met[slices.Index(p.jobs, j)]
		if c.State != New || !pinned[c.unknown.Name()] {
			continue
		}
		c.State = Pinned
		if c.unknown.ByJumpHost() {
			behind = append(behind, j)
		}
	}
	return behind, failed
}

// markConflicts returns one contact for each new name: boards behind one jump host share its name.
// Boards with two keys for one name become Unmet in met, because nobody can say which key is right.
func markConflicts(met []Contact) (fresh []Contact) {
	keys := map[string][]string{} // by name
	for _, c := range met {
		if c.State == New && !slices.Contains(keys[c.unknown.Name()], c.Key) {
			keys[c.unknown.Name()] = append(keys[c.unknown.Name()], c.Key)
		}
	}
	shown := map[string]bool{}
	for i := range met {
		c := &met[i]
		switch {
		case c.State != New:
		case len(keys[c.unknown.Name()]) > 1:
			c.State, c.Saw = Unmet, fmt.Sprintf("several hosts of the inventory are reached as %s, and show different keys; give each its slipway_host_key", oneLine(c.unknown.Name()))
		case !shown[c.unknown.Name()]:
			shown[c.unknown.Name()] = true
			fresh = append(fresh, *c)
		}
	}
	return fresh
}

// writeNewKeys writes a table of unknown keys, and warns of a key that several machines showed.
func writeNewKeys(w io.Writer, fresh []Contact) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NEW HOST\tREACHED AS\tKEY")
	by := map[string][]string{}
	for _, c := range fresh {
		name := plaintext.Either(c.unknown.ByJumpHost(), "(jump host)", c.Host)
		fmt.Fprintf(tw, "%s\t%s\t%s\n", oneLine(name), oneLine(c.Machine), c.Fingerprint)
		by[c.Key] = append(by[c.Key], oneLine(c.Machine))
	}
	err := tw.Flush()
	for _, c := range fresh {
		if same := by[c.Key]; len(same) > 1 {
			fmt.Fprintf(w, "warning: one key is shown by %d machines: %s\n  one machine answers for all of them, or their image was copied with its keys: make new ones on each (ssh-keygen -A), as any of them can pose as the others\n",
				len(same), strings.Join(same[:min(len(same), 10)], ", "))
			delete(by, c.Key)
		}
	}
	return err
}

// writeContacts writes the boards that showed no key, which are an error, and the counts by state.
func writeContacts(ctx context.Context, w io.Writer, met []Contact) error {
	n := map[State]int{}
	var forget []string
	for _, c := range met {
		n[c.State]++
		if c.next != "" && !slices.Contains(forget, c.next) {
			forget = append(forget, c.next)
		}
		if c.State == Unmet && c.Saw != string(NotBegun) {
			fmt.Fprintf(w, "%s  %s\n", oneLine(c.Host), c.Saw)
		}
	}
	fmt.Fprintf(w, "%s: %d known before, %d pinned, %d new and not pinned, %d not met\n", report.Boards(len(met)), n[Known], n[Pinned], n[New], n[Unmet])
	if n[Unmet] == 0 {
		return nil
	}
	next := "repeat the line  # when they are on"
	if len(forget) > 0 {
		next = strings.Join(forget[:min(len(forget), shownHosts)], " && ") + "  # if you know that they were flashed again; then change slipway_host_key, or repeat the line"
	}
	return report.Because(ctx, report.ErrUnreachable, fmt.Errorf("%d of %s showed no host key that could be pinned\nnext: %s", n[Unmet], report.Boards(len(met)), next))
}

package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"slipway/images/bitbake"
	"slipway/layers/plaintext"
)

// Report lists the tasks that a build found in shared state, and those that it missed.
type Report struct {
	Board   string        `json:"board"`
	State   bitbake.State `json:"state"` // of the build
	Started time.Time     `json:"started"`
	Hits    []Lookup      `json:"hits"`
	Misses  []Lookup      `json:"misses"`
	LostMS  int64         `json:"lostMs"` // what the missed tasks took, one after the other
}

// Lookup is one task that was looked for in shared state.
type Lookup struct {
	Recipe string `json:"recipe"`
	Task   string `json:"task"`
	TookMS int64  `json:"tookMs"`
	Hash   string `json:"hash,omitempty"`
	Why    string `json:"why,omitempty"` // it missed
}

// Why a task was not taken from shared state, as far as that can be known afterwards.
const (
	whyBroken  = "fetch failed: it was there, but could not be fetched or unpacked"
	whyGone    = "not on the mirror: the cache knows its hash, but no sstate of it"
	whyOther   = "other hash: no build that filled the cache had this recipe, these settings and these layers"
	whyNoCache = "not there; this build had no cache to ask about it"
	whyAlone   = "not there; the cache does not answer why"
)

// ReportOf reads the record of a board's last build, and asks the cache why tasks were missed.
func ReportOf(ctx context.Context, board, dir string, setting Setting) (Report, error) {
	r, err := bitbake.Open(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Report{}, fmt.Errorf("no build of %s is recorded in %s\nnext: build %[1]s", board, dir)
	case err != nil:
		return Report{}, err
	case r.Parse || r.DryRun:
		return Report{}, fmt.Errorf("the last build of %s ran no tasks: it was asked only to parse, or for a dry run; run build %s first", board, board)
	}
	report := newReport(board, r)
	report.explainMisses(ctx, setting)
	return report, context.Cause(ctx)
}

// newReport sorts the tasks of a build record into hits and misses.
func newReport(board string, r bitbake.Record) Report {
	report := Report{Board: board, State: r.State, Started: r.Started, Hits: []Lookup{}, Misses: []Lookup{}}
	for _, t := range r.Tasks {
		l := Lookup{Recipe: t.Recipe, Task: t.Task, TookMS: t.TookMS}
		if t.Config != "" {
			l.Recipe = "mc:" + t.Config + ":" + t.Recipe
		}
		switch t.Shared {
		case bitbake.Hit:
			report.Hits = append(report.Hits, l)
			continue
		case bitbake.Miss:
			l.Hash = t.Hash
		case bitbake.Broken:
			l.Why = whyBroken
		default:
			continue
		}
		report.Misses = append(report.Misses, l)
		report.LostMS += t.TookMS
	}
	byName := func(a, b Lookup) int { return cmp.Or(cmp.Compare(a.Recipe, b.Recipe), cmp.Compare(a.Task, b.Task)) }
	slices.SortFunc(report.Hits, byName)
	slices.SortFunc(report.Misses, byName)
	return report
}

// explainMisses sets the reason of each miss, from what the hash equivalence server knows. If the
// cache does not answer, the reason says so.
func (r *Report) explainMisses(ctx context.Context, setting Setting) {
	reason := func(string) string { return whyNoCache }
	if !setting.isNone() {
		reason = func(string) string { return whyAlone }
		c, err := resolveCache(ctx, setting)
		if known, errQuery := c.knownHashes(ctx, r.missedHashes()); err == nil && errQuery == nil {
			reason = func(hash string) string {
				if known[hash] {
					return whyGone
				}
				return whyOther
			}
		}
	}
	for i, l := range r.Misses {
		if l.Why == "" {
			r.Misses[i].Why = reason(l.Hash)
		}
	}
}

func (r *Report) missedHashes() []string {
	var hashes []string
	for _, l := range r.Misses {
		if l.Why == "" && isHash(l.Hash) {
			hashes = append(hashes, l.Hash)
		}
	}
	return hashes
}

func isHash(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

const hashesAtOnce = 256

// knownHashes asks the hash equivalence server which of the hashes it knows.
func (c Cache) knownHashes(ctx context.Context, hashes []string) (map[string]bool, error) {
	if c.Hashserv == "" || strings.Contains(c.Hashserv, "://") {
		return nil, errors.New("the cache has no hash equivalence server at a HOST:PORT")
	}
	known := map[string]bool{}
	for chunk := range slices.Chunk(hashes, hashesAtOnce) {
		var asked []string
		for _, hash := range chunk {
			asked = append(asked, `{"get": {"method": "oe.sstatesig.OEOuthashBasic", "taskhash": "`+hash+`", "all": false}}`)
		}
		heard, err := queryHashserv(ctx, c.Hashserv, asked)
		if err != nil {
			return nil, err
		}
		for i, line := range heard {
			known[chunk[i]] = line != "null"
		}
	}
	return known, nil
}

// maxMissLines limits the misses that a person reads; --json has all of them.
const maxMissLines = 40

// Write prints the report as text: the counts, and the misses that took longest.
func (r Report) Write(w io.Writer) error {
	total := len(r.Hits) + len(r.Misses)
	if total == 0 {
		_, err := fmt.Fprintf(w, "%s: the last build %s, and looked for nothing in shared state: all was in place, or nothing of it is shared.\n", r.Board, r.buildOutcome())
		return err
	}
	fmt.Fprintf(w, "%s: %d of %d tasks came from shared state (%d %%), %d did not and took %.0f s of work. The build %s.\n",
		r.Board, len(r.Hits), total, 100*len(r.Hits)/total, len(r.Misses), float64(r.LostMS)/1000, r.buildOutcome())
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	byTime := slices.Clone(r.Misses)
	slices.SortStableFunc(byTime, func(a, b Lookup) int { return cmp.Compare(b.TookMS, a.TookMS) })
	for i, l := range byTime[:min(maxMissLines, len(byTime))] {
		if i == 0 {
			fmt.Fprintln(tw, "RECIPE\tTASK\tSECONDS\tWHY")
		}
		fmt.Fprintf(tw, "%s\t%s\t%.1f\t%s\n", plaintext.OneLine(l.Recipe), plaintext.OneLine(l.Task), float64(l.TookMS)/1000, l.Why)
	}
	if more := len(byTime) - maxMissLines; more > 0 {
		fmt.Fprintf(tw, "and %d more that took less; --json has all of them\n", more)
	}
	return tw.Flush()
}

// buildOutcome returns how the build ended, as the end of a sentence.
func (r Report) buildOutcome() string {
	switch r.State {
	case bitbake.Succeeded, bitbake.Failed:
		return string(r.State)
	case bitbake.Running:
		return "is running, or was cut off"
	}
	return "was " + plaintext.OneLine(string(r.State))
}

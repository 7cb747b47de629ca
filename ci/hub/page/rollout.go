package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/fleet"
	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/layers/plaintext"
)

func (v *view) rolloutList() bool {
	v.head("", "Rollouts", "", count(len(v.Rollouts), "rollout"))
	return v.show(limited("rollouts", "Rollouts", "No rollout yet. Next: slipway fleet update BOARD hub: BUNDLE", v.rolloutRows(func(job.RolloutState) bool { return true })))
}

// rolloutRows returns the lines of rollouts that fit, the newest first.
func (v *view) rolloutRows(fits func(job.RolloutState) bool) (all []row) {
	for _, s := range slices.Backward(v.Rollouts) {
		if !fits(s) {
			continue
		}
		class, word := wordOf(s)
		r := row{Class: class, Name: s.Board + ": " + steps(s.Steps), Link: "/rollouts/" + s.ID, Took: word}
		r.Saw = join(" · ", count(s.Boards, "board"), kindWords(s.Counts), "by "+s.By, s.Why)
		if !s.Ended {
			r.Max, r.Value = int64(s.Boards), int64(sumOf(s.Counts))
		}
		all = append(all, r)
	}
	return all
}

// wordOf returns the state of a rollout in a word, and the class of its colour.
func wordOf(s job.RolloutState) (class, word string) {
	failed := false
	for kind := range s.Counts {
		failed = failed || kind.Failed()
	}
	switch {
	case s.Ended && s.Wish == job.Cancel:
		return "skipped", "stopped"
	case s.Ended:
		return plaintext.Either(failed, "failed", "passed"), "ended"
	case s.Wish == job.Pause:
		return "failed", "paused"
	case s.Wish == job.Cancel:
		return "cached", "stops"
	}
	return "cached", waveName(s.Wave, s.LastWave())
}

func waveName(wave, last int) string {
	switch wave {
	case 0:
		return "canaries"
	case last:
		return "boards that came later"
	}
	return fmt.Sprintf("wave %d", wave)
}

func sumOf(counts map[fleet.Kind]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

func kindWords(counts map[fleet.Kind]int) string {
	words := map[string]int{}
	for kind, n := range counts {
		words[string(kind)] = n
	}
	return countWords(words)
}

// number returns a number for facts, "" for 0.
func number(n int) string { return strings.TrimPrefix(strconv.Itoa(n), "0") }

// loadRollout reads the results of the page's rollout.
func loadRollout(ctx context.Context, p *Page, who job.Person, v *view) (err error) {
	if !slices.ContainsFunc(v.Rollouts, func(s job.RolloutState) bool { return s.ID == v.Args[0] }) {
		return errUnknown
	}
	v.Rollout, err = ask[job.RolloutState](ctx, p.h, who, job.VerbRolloutShow, job.RolloutWish{ID: v.Args[0], Results: true})
	return err
}

// CanGoBack reports whether the page's rollout brought something onto boards.
func (v *view) CanGoBack() bool {
	return v.Rollout.Ended && job.Job{Steps: v.Rollout.Steps}.ChangesBoard()
}

func (v *view) rolloutPage() bool {
	s := v.Rollout
	class, word := wordOf(s)
	v.head(class, s.Board+": "+steps(s.Steps), word, join(" · ", count(s.Boards, "board"), kindWords(s.Counts)))
	about := section{ID: "rollout", Title: "The rollout", Facts: facts("State", join(": ", word, s.Why), "By", s.By, "Changed by", s.WishBy, "Began", clock(s.Began), "Artifact", s.Artifact, "Boards", plaintext.Either(s.Pattern == "", "all of the kind", s.Pattern),
		"Takes back", s.From, "Boards not heard", number(s.Unheard), "Canaries", number(s.Canary), "Pauses after failures", number(s.StopAfter))}
	if v.May(job.VerbRolloutWish) {
		about.Form = "rollout"
	}
	waves, boards := v.waveRows()
	return v.show(section{ID: "waves", Title: "Waves", Rows: waves}, about, limited("causes", "Failures by cause", "No board failed.", v.causeRows()), limited("boards", "Boards", "", boards), section{ID: "outcome", Title: "All boards and checks", Form: "outcome", Still: true})
}

// waveRows returns a line for each wave of the page's rollout, and one for each board.
func (v *view) waveRows() (waves, boards []row) {
	s := v.Rollout
	counts := make([]map[string]int, s.LastWave()+1)
	for wave := range counts {
		counts[wave] = map[string]int{}
		waves = append(waves, row{Class: plaintext.Either(wave <= s.Wave, "passed", "skipped"), Name: waveName(wave, s.LastWave())})
	}
	for _, r := range s.Results {
		b, word := boardRow(r)
		b.Took = waves[r.Wave].Name
		boards = append(boards, b)
		counts[r.Wave][word]++
		w := &waves[r.Wave]
		w.Max++
		if r.Result != nil {
			w.Value++
		}
		if b.Class == "failed" || w.Class == "passed" && r.Result == nil {
			w.Class = plaintext.Either(b.Class == "failed", "failed", "cached")
		}
	}
	for i := range waves {
		waves[i].Saw, waves[i].Took = countWords(counts[i]), fmt.Sprintf("%d of %d", waves[i].Value, waves[i].Max)
	}
	slices.SortStableFunc(boards, func(a, b row) int { return strings.Compare(orderOf(a), orderOf(b)) })
	return slices.DeleteFunc(waves, func(w row) bool { return w.Max == 0 }), boards
}

// boardRow returns the line of a board in a rollout, and its state in a word.
func boardRow(r job.RolloutResult) (b row, word string) {
	b = row{Class: "skipped", Name: r.Name, Link: "/boards/" + r.Station + "/" + r.Name}
	switch {
	case r.Result != nil:
		word = string(r.Result.Kind)
		b.Class, b.Saw = plaintext.Either(r.Result.Kind.Done(), "passed", "failed"), plaintext.ShortLine(r.Result.Saw)
	case r.State == job.Running:
		b.Class, word = "cached", "at work"
	default:
		word = plaintext.Either(r.State == "", "to come", "waiting")
	}
	if r.Job != "" {
		b.Link = "/jobs/" + r.Job
	}
	b.Saw = join(" · ", word, r.Station, b.Saw)
	return b, word
}

// orderOf puts lines that failed first, then those of boards at work.
func orderOf(r row) string {
	return map[string]string{"failed": "0", "cached": "1", "skipped": "2", "passed": "3"}[r.Class]
}

// causeRows groups the failures of the page's rollout, as fleet's page does.
func (v *view) causeRows() (all []row) {
	noReport := func(job.ReportWish) (job.Report, error) {
		return job.Report{}, errors.New("the page of all boards reads them")
	}
	o, reports := v.Rollout.Outcome(noReport)
	for _, c := range o.Page(reports).Causes {
		var names []string
		for _, b := range c.Boards[:min(len(c.Boards), 10)] {
			names = append(names, b.Board)
		}
		all = append(all, row{Class: string(c.Status), Name: c.Name, Saw: join(" · ", strings.Join(names, ", "), plaintext.ShortLine(c.Saw)), Next: c.Next, Took: report.Boards(len(c.Boards))})
	}
	return all
}

// outcome is fleet's page of a rollout, with the reports of its boards.
func (p *Page) outcome(r *http.Request, who job.Person) ([]byte, error) {
	s, err := ask[job.RolloutState](r.Context(), p.h, who, job.VerbRolloutShow, job.RolloutWish{ID: r.PathValue("id"), Results: true})
	if err != nil {
		return nil, err
	}
	o, reports := s.Outcome(func(w job.ReportWish) (job.Report, error) {
		return ask[job.Report](r.Context(), p.h, who, job.VerbReportGet, w)
	})
	page := o.Page(reports)
	page.Files = nil // beside a page of fleet, which "rollout show --to" writes
	return page.Render()
}

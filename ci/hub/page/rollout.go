package page

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/layers/plaintext"
)

func (v *view) rolloutList() error {
	v.head("", "Rollouts", "", count(len(v.rollouts), "rollout"))
	return v.show(limited("rollouts", "Rollouts", "No rollout yet. Next: slipway fleet update BOARD hub: BUNDLE", v.rolloutRows(func(job.RolloutState) bool { return true })))
}

// rolloutRows returns the lines of rollouts that fit, the newest first.
func (v *view) rolloutRows(fits func(job.RolloutState) bool) (all []row) {
	for _, s := range slices.Backward(v.rollouts) {
		if !fits(s) {
			continue
		}
		r := row{Class: rolloutClass(s), Name: s.Board + ": " + job.StepNames(s.Steps), Link: "/rollouts/" + s.ID, Took: s.Word()}
		r.Saw = join(" · ", count(s.Boards, "board"), s.Counts.String(), "by "+s.By, s.Why)
		if !s.Ended {
			r.Max, r.Value = int64(s.Boards), int64(s.Counts.Sum())
		}
		all = append(all, r)
	}
	return all
}

// rolloutClass returns the class of the colour of a rollout's state.
func rolloutClass(s job.RolloutState) string {
	switch {
	case s.Ended && s.Wish == job.Cancel:
		return "skipped"
	case s.Ended && s.Counts.Failed() == 0:
		return "passed"
	case s.Ended || s.Wish == job.Pause:
		return "failed"
	}
	return "cached"
}

// number returns a number for facts, "" for 0.
func number(n int) string { return strings.TrimPrefix(strconv.Itoa(n), "0") }

// canGoBack reports whether the page's rollout brought something onto boards.
func (v *view) canGoBack() bool {
	return v.Rollout.Ended && job.Job{Steps: v.Rollout.Steps}.ChangesBoard()
}

func (v *view) rolloutPage() error {
	if !slices.ContainsFunc(v.rollouts, func(s job.RolloutState) bool { return s.ID == v.Args[0] }) {
		return errUnknown
	}
	s, err := ask[job.RolloutState](v.ctx, v.h, v.Who, job.VerbRolloutShow, job.RolloutWish{ID: v.Args[0], Results: true})
	if err != nil {
		return err
	}
	v.Rollout = s
	v.head(rolloutClass(s), s.Board+": "+job.StepNames(s.Steps), s.Word(), join(" · ", count(s.Boards, "board"), s.Counts.String()))
	about := section{ID: "rollout", Title: "The rollout", Facts: facts("State", join(": ", s.Word(), s.Why), "By", s.By, "Changed by", s.WishBy, "Began", clock(s.Began), "Artifact", s.Artifact, "Boards", plaintext.Either(s.Pattern == "", "all of the kind", s.Pattern),
		"Takes back", s.From, "Boards not heard", number(s.Unheard), "Canaries", number(s.Canary), "Failures until it pauses", number(s.StopAfter))}
	if v.May(job.VerbRolloutWish) {
		about.Form = "rollout"
	}
	waves, boards := v.waveRows()
	all := []section{{ID: "waves", Title: "Waves", Rows: waves}, about}
	if v.canGoBack() && v.May(job.VerbRolloutBack) { // it stays, as it has the ID of what it begins
		all = append(all, section{ID: "back", Title: "Go back", Form: "back", Still: true})
	}
	return v.show(append(all, limited("causes", "Failures by cause", "No board failed.", v.causeRows()), limited("boards", "Boards", "", boards), section{ID: "outcome", Title: "All boards and checks", Form: "outcome", Still: true})...)
}

// waveRows returns a line for each wave of the page's rollout, and one for each board, those that
// failed first.
func (v *view) waveRows() (waves, boards []row) {
	last := v.Rollout.LastWave()
	counts := make([]map[string]int, last+1)
	for wave := range counts {
		counts[wave] = map[string]int{}
		waves = append(waves, row{Class: plaintext.Either(wave <= v.Rollout.Wave, "passed", "skipped"), Name: v.Rollout.WaveName(wave)})
	}
	for _, r := range v.Rollout.Results {
		class, word, link := "skipped", plaintext.Either(r.State == "", "to come", string(r.State)), "/boards/"+r.Station+"/"+r.Name
		saw := ""
		if r.Result != nil {
			class, word, saw = plaintext.Either(r.Result.Kind.Done(), "passed", "failed"), string(r.Result.Kind), plaintext.ShortLine(r.Result.Saw)
			waves[r.Wave].Value++
		} else if r.State == job.Running {
			class = "cached"
		}
		if r.Job != "" {
			link = "/jobs/" + r.Job
		}
		boards = append(boards, row{Class: class, Name: r.Name, Link: link, Saw: join(" · ", word, r.Station, saw), Took: waves[r.Wave].Name})
		counts[r.Wave][word]++
		waves[r.Wave].Max++
	}
	for i := range waves {
		w := &waves[i]
		w.Saw, w.Took = countWords(counts[i]), fmt.Sprintf("%d of %d", w.Value, w.Max)
		if slices.ContainsFunc(boards, func(b row) bool { return b.Took == w.Name && b.Class == "failed" }) {
			w.Class = "failed"
		} else if w.Class == "passed" && w.Value < w.Max {
			w.Class = "cached"
		}
	}
	order := map[string]int{"failed": 0, "cached": 1, "skipped": 2, "passed": 3}
	slices.SortStableFunc(boards, func(a, b row) int { return order[a.Class] - order[b.Class] })
	return slices.DeleteFunc(waves, func(w row) bool { return w.Max == 0 }), boards
}

// causeRows groups the failures of the page's rollout, as fleet's page does.
func (v *view) causeRows() (all []row) {
	noReport := func(job.ReportWish) (r report.Report, _ error) { return } // the page of all boards reads them
	o, reports, _ := v.Rollout.Outcome(noReport)
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
	o, reports, err := s.Outcome(func(w job.ReportWish) (report.Report, error) { return p.readReport(r.Context(), who, w) })
	if err != nil {
		return nil, err
	}
	page := o.Page(reports)
	page.Files = nil // beside a page of fleet, which "rollout show --to" writes
	return page.Render()
}

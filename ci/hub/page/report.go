package page

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"slipway/ci/job"
	"slipway/ci/report"
	"slipway/ci/trends"
)

// framed answers with a page whose text comes from boards, for a frame.
func framed(draw func(r *http.Request, who job.Person) ([]byte, error)) handler {
	return func(w http.ResponseWriter, r *http.Request, who job.Person) error {
		w.Header().Set("Content-Security-Policy", reportPolicy) // an error is shown in the frame, too
		page, err := draw(r, who)
		if err == nil {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(page) // or the reader is gone
		}
		return err
	}
}

// report is a report of a board: the one with the query's number, or the newest.
func (p *Page) report(r *http.Request, who job.Person) ([]byte, error) {
	n, _ := strconv.ParseUint(r.URL.Query().Get("n"), 10, 64) // 0 is the newest
	one, err := p.readReport(r.Context(), who, job.ReportWish{Station: r.PathValue("station"), Name: r.PathValue("name"), N: n})
	if err != nil {
		return nil, err
	}
	return report.HTML([]report.Report{one})
}

func (p *Page) readReport(ctx context.Context, who job.Person, wish job.ReportWish) (report.Report, error) {
	sent, err := ask[job.Report](ctx, p.h, who, job.VerbReportGet, wish)
	if err != nil && !p.isAway(err) {
		err = fmt.Errorf("%w: %w", errUnknown, err)
	}
	if err != nil {
		return report.Report{}, err
	}
	return sent.Only()
}

// trends are the charts of a board over its reports.
func (p *Page) trends(r *http.Request, who job.Person) ([]byte, error) {
	wish := job.ReportWish{Station: r.PathValue("station"), Name: r.PathValue("name")}
	all, err := ask[job.Reports](r.Context(), p.h, who, job.VerbReportList, wish)
	if err != nil {
		return nil, err
	}
	runs, err := trends.FromReports(r.Context(), func(yield func(trends.Found, error) bool) {
		for _, one := range slices.Backward(all.Reports) {
			wish.N = one.N
			got, err := p.readReport(r.Context(), who, wish)
			found := trends.Found{Name: "job " + one.ID, Report: &got}
			if err != nil { // one that is gone meanwhile, or not readable
				found = trends.Found{Note: found.Name + ": " + err.Error()}
			}
			if !yield(found, r.Context().Err()) {
				return
			}
		}
	})
	if err == nil && len(runs.All) == 0 {
		err = errUnknown
	}
	if err != nil {
		return nil, err
	}
	found, err := trends.Of(runs, trends.Options{Last: trends.MaxLast})
	if err != nil {
		return nil, err
	}
	return found.Page()
}

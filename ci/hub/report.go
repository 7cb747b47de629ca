package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"slipway/ci/job"
	"slipway/layers/bus"
	"slipway/layers/plaintext"
)

// keepReport keeps a report of a station's board, or of its job. Its ID says which job it is of.
func (h *Hub) keepReport(ctx context.Context, who string, in job.Report) (nothing, error) {
	j, _, err := h.findJob(in.ID)
	if _, known := h.index.get("boards", bus.Key(who, in.Name)); !known && (err != nil || j.Station != who || j.Name != in.Name) {
		return nothing{}, fmt.Errorf("%s has no board %s, and no job %s on it", who, in.Name, plaintext.OneLine(in.ID))
	}
	_, err = h.js.Publish(ctx, "report."+bus.Key(who, in.Name), in.Zstd, jetstream.WithMsgID(who+"/"+in.ID))
	return nothing{}, err
}

// reportOf returns a report without its content.
func reportOf(in job.ReportWish, header nats.Header, n uint64, at time.Time) job.Report {
	return job.Report{ID: strings.TrimPrefix(header.Get(jetstream.MsgIDHeader), in.Station+"/"), Name: in.Name, N: n, At: at}
}

// reportsAt returns the subject of a board's reports. The engine does not answer for what is none.
func reportsAt(in job.ReportWish) (subject string, err error) {
	return "report." + bus.Key(in.Station, in.Name), cmp.Or(job.CheckName("the station", in.Station), job.CheckName("the board's name", in.Name))
}

// listReports lists the reports of a board.
func (h *Hub) listReports(ctx context.Context, _ string, in job.ReportWish) (all job.Reports, err error) {
	subject, err := reportsAt(in)
	if err != nil {
		return all, err
	}
	of := jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}, HeadersOnly: true, InactiveThreshold: 10 * time.Second}
	reader, err := bus.Agree(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return h.reports.OrderedConsumer(ctx, of) })
	if err != nil {
		return all, err
	}
	batch, err := reader.FetchNoWait(reportsOf)
	if err != nil {
		return all, err
	}
	for m := range batch.Messages() {
		about, err := m.Metadata()
		if err != nil {
			return all, err
		}
		all.Reports = append(all.Reports, reportOf(in, m.Headers(), about.Sequence.Stream, about.Timestamp))
	}
	slices.Reverse(all.Reports)
	return all, batch.Error()
}

// getReport returns a report of a board: by its number, that of a job, or the newest.
func (h *Hub) getReport(ctx context.Context, who string, in job.ReportWish) (job.Report, error) {
	subject, err := reportsAt(in)
	if err != nil {
		return job.Report{}, err
	}
	read := func() (*jetstream.RawStreamMsg, error) { return lastOf(ctx, h.reports, subject) }
	if in.N > 0 {
		read = func() (*jetstream.RawStreamMsg, error) { return readFrom(ctx, h.reports, in.N, subject) }
	}
	m, err := read()
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && (m.Sequence == 0 || in.N > 0 && m.Sequence != in.N) {
		return job.Report{}, fmt.Errorf("%s of %s has no such report\nnext: slipway hub report %s --list", in.Name, in.Station, in.Name)
	}
	if err != nil {
		return job.Report{}, err
	}
	found := reportOf(in, m.Header, m.Sequence, m.Time)
	if in.Job == "" || found.ID == in.Job {
		found.Zstd = m.Data
		return found, nil
	}
	all, err := h.listReports(ctx, who, in)
	if err != nil {
		return job.Report{}, err
	}
	i := slices.IndexFunc(all.Reports, func(r job.Report) bool { return r.ID == in.Job })
	if i < 0 {
		return job.Report{}, fmt.Errorf("the job %s left no report, or the hub has it no more", in.Job)
	}
	return h.getReport(ctx, who, job.ReportWish{Station: in.Station, Name: in.Name, N: all.Reports[i].N})
}

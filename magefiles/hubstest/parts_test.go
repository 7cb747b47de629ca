package hubstest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"slipway/ci/hub/access"
	"slipway/ci/job"
	"slipway/layers/localfile"
	"slipway/layers/run"
)

// doJobs adds a job to a random board, and breaks its station or the hub meanwhile, again and again.
func (s *soakedHub) doJobs(ctx context.Context) error {
	s.done = map[string]int{}
	for range s.Rounds {
		m, f := s.lab.Stations[s.random.IntN(s.Stations)], s.choose()
		name, d := m.Boards[s.random.IntN(s.Boards)], time.Duration(s.random.Int64N(int64(s.Longest)))
		c, err := s.add(ctx, Job(m, name))
		if err != nil {
			return err
		}
		if err := run.Sleep(ctx, time.Duration(s.random.Int64N(int64(time.Second)))); err != nil {
			return err
		}
		if s.note(f.name); f.hub {
			m = s.lab.Hubs[0]
		}
		err = f.do(ctx, m, d)
		if _, waited := access.Wait(ctx, s.lab.Admin, c.Job.ID); err != nil || waited != nil {
			return errors.Join(err, waited, s.lab.Alive())
		}
	}
	if err := s.lab.WaitForBoards(ctx); err != nil {
		return err
	}
	jobs, err := s.lab.KeepBooks(ctx)
	if err == nil && len(jobs) != s.Rounds {
		err = fmt.Errorf("%d jobs were added, and the hub has %d", s.Rounds, len(jobs))
	}
	fmt.Fprintf(s.w, "%d jobs, one after the other; faults: %s\n", len(jobs), counts(s.done))
	return err
}

// add adds a job, again if the hub's answer is lost: the ID says that it is the same one.
func (s *soakedHub) add(ctx context.Context, j job.Job) (job.Change, error) {
	for {
		c, err := Ask[job.Change](ctx, s.lab, job.VerbJobAdd, j)
		if err == nil || !isAway(err) || ctx.Err() != nil {
			return c, err
		}
	}
}

// The slow link, and how much of a hub's memory slow readers may take.
const (
	slowKbit    = 64
	chatSeconds = 20
	mostGrown   = 100 << 20
)

// beSlow has a board say 1,000 lines a second behind a slow link, while browsers and commands follow it
// that read nothing. The hub's memory stays, and the state of jobs overtakes the log.
func (s *soakedHub) beSlow(ctx context.Context) error {
	m, hub := s.lab.Stations[0], s.lab.Hubs[0]
	chatty := filepath.Join(filepath.Dir(s.lab.BoardFile(m.Boards[0])), chattyName)
	if err := errors.Join(os.WriteFile(chatty, []byte(strconv.Itoa(chatSeconds)), 0o600), m.Slow(ctx, slowKbit)); err != nil {
		return err
	}
	before := hub.MemoryBytes()
	c, err := s.add(ctx, Job(m, m.Boards[0]))
	if err != nil {
		return err
	}
	for range 20 {
		if err := s.lab.readNothing(ctx, "/jobs/"+c.Job.ID); err != nil {
			return err
		}
	}
	overtook := false
	for {
		now, err := Ask[job.Change](ctx, s.lab, job.VerbJobWait, job.Wait{ID: c.Job.ID})
		if err != nil && !isAway(err) {
			return err
		}
		if now.Job.State == job.Ended {
			break
		}
		if j, err := s.lab.RunJob(ctx, m, m.Boards[1]); err == nil && j.State == job.Ended {
			overtook = true // while the first one talks
		}
	}
	most := hub.PeakBytes()
	local, err := os.Stat(job.Folder(filepath.Join(m.Jobs(), c.Job.ID)).Log())
	if err != nil {
		return err
	}
	sent, err := s.lab.logBytes(ctx, c.Job.ID)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.w, "memory of the hub: %d MiB, and %d at most; at the job's end the hub had %d of %d bytes of its log\n", before>>20, most>>20, sent, local.Size())
	switch {
	case most > before+mostGrown:
		return errors.New("the hub's memory grew too much")
	case !overtook || sent >= local.Size():
		return errors.New("the state did not overtake the log")
	}
	return nil
}

// logBytes returns how much of a job's log the hub has.
func (l *Lab) logBytes(ctx context.Context, id string) (n int64, err error) {
	for wish := (job.LogWish{ID: id, N: 1, Now: true}); ; {
		piece, err := Ask[job.Log](ctx, l, job.VerbJobLog, wish)
		if err != nil || piece.Text == "" {
			return n, err
		}
		n, wish.N = n+int64(len(piece.Text)), piece.N
	}
}

// readNothing opens the events of a page, as a browser does that then reads nothing.
func (l *Lab) readNothing(ctx context.Context, page string) error {
	i, err := Ask[job.Invitation](ctx, l, job.VerbOpen, struct{}{})
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(l.Admin.Authority))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	if client.Jar, err = cookiejar.New(nil); err != nil {
		return err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base := "https://" + l.Admin.Hub
	signIn, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/in", strings.NewReader(url.Values{"secret": {i.Secret}}.Encode()))
	if err != nil {
		return err
	}
	signIn.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := client.Do(signIn)
	if err != nil {
		return err
	}
	answer.Body.Close()
	events, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/events?page="+url.QueryEscape(page), nil)
	if err != nil {
		return err
	}
	stream, err := client.Do(events)
	if err == nil && stream.StatusCode != http.StatusOK {
		err = fmt.Errorf("the events of %s: %s", page, stream.Status)
	}
	return err
}

// The clocks of "soak hub --part=clocks": seconds that each is off, and in brackets after how many more
// seconds it steps. clockVariable tells a program, whose package time is another one: see soak.Hub.
const (
	clockVariable = "SLIPWAY_SOAK_CLOCK"
	hubClock      = 3 * 24 * 3600
	stationClock  = -365 * 24 * 3600
	clockStep     = 3600
	stepAfter     = 20
)

// setClocks returns the environment of a machine whose clock is off.
func setClocks(seconds int) []string {
	return []string{fmt.Sprintf("%s=%d %d %d", clockVariable, seconds, stepAfter, clockStep)}
}

// checkClocks does rollouts before and after the clocks step. No job expires, no lease is lost, and
// times are of the hub's clock.
func (s *soakedHub) checkClocks(ctx context.Context) error {
	for range 2 {
		if err := s.round(ctx); err != nil {
			return err
		}
		if err := run.Sleep(ctx, 40*time.Second); err != nil { // longer than a lease
			return err
		}
	}
	list, err := Ask[job.StationList](ctx, s.lab, job.VerbStationList, struct{}{})
	if err != nil {
		return err
	}
	want := time.Now().Add((hubClock + clockStep) * time.Second)
	for _, st := range list.Stations {
		if !st.Heard || st.At.Sub(want).Abs() > time.Minute {
			return fmt.Errorf("%s was heard %v, and the hub's clock says %v", st.Name, st.At, want)
		}
	}
	for _, m := range s.lab.Stations {
		if text := string(localfile.Tail(m.LogPath(), 1<<20)); strings.Contains(text, "the lease was lost") {
			return fmt.Errorf("%s: %s", m.Name, text)
		}
	}
	_, err = fmt.Fprintf(s.w, "clocks: the hub %+d s, the first station %+d s, steps of %d s: no lease was lost\n", hubClock, stationClock, clockStep)
	return err
}

// upgrade does a rollout with stations of the last release and this hub, and the reverse.
func (s *soakedHub) upgrade(ctx context.Context, old string) error {
	s.FaultsFor, s.SSH, s.kind = 0, true, sshKind
	for _, way := range []struct{ what, hub, station string }{{"stations of the last release", "", old}, {"a hub of the last release", old, ""}} {
		o := s.labOptions
		o.Dir, o.Slipway, o.StationProgram = filepath.Join(s.Dir, strings.Fields(way.what)[0]), way.hub, way.station
		err := os.Mkdir(o.Dir, 0o755)
		if err == nil {
			s.lab, err = newLab(ctx, o)
		}
		if err == nil {
			s.artifact, err = s.lab.makeProject(ctx)
		}
		if err == nil {
			err = s.round(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", way.what, err)
		}
		fmt.Fprintf(s.w, "%s: all jobs ended\n", way.what)
		if err := s.lab.Close(); err != nil {
			return err
		}
	}
	return nil
}

package ci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"slipway/ci/report"
	"slipway/ci/suite"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
	boardupdate "slipway/flash/boardssh/update"
	"slipway/images"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// onRAUC is an update of a board with a real RAUC. The restart is simulated: RAUC's service
// is started again as if the boot loader's slot ran.
func onRAUC(t *testing.T, r *boardtest.RAUC, conn *boardssh.Conn, bundle string) *updateRun {
	u := &updateRun{
		spec: images.Spec{Board: "test", Suites: suite.Names()[:1]}, conn: conn, pause: 10 * time.Millisecond, idle: installationLimit,
		how: UpdateOptions{Out: io.Discard},
		restart: func(context.Context) error {
			r.Restart(t)
			return nil
		},
		prove: func(context.Context) (report.Report, error) {
			if strings.Contains(r.Slot(r.Booted()), "broken") {
				return report.Report{}, report.ErrFailed
			}
			return report.Report{}, nil
		},
	}
	u.find = func(ctx context.Context) (boardupdate.Engine, error) { return boardupdate.FindEngine(ctx, conn, r.Bus) }
	u.initOutcome("here", bundle)
	return u
}

func connectedAlready(context.Context) error { return nil }

// TestUpdate runs updates with all kinds of faults.
func TestUpdate(t *testing.T) {
	board := t // the service outlives the cases
	r := boardtest.StartRAUC(t)
	r.Key(t, "unknown-signer")
	bundle := func(b boardtest.Bundle) string { return r.Make(t, b) }
	good := bundle(boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
	for _, tt := range []struct {
		name   string
		bundle string
		change func(*updateRun)
		want   string // system, slot, what the slot holds, then the stages that passed
		err    error
		why    string
	}{
		{
			name: "a suite that is not there", bundle: good, change: func(u *updateRun) { u.spec.Suites = []string{"nowhere"} },
			err: report.ErrWrong, want: "unknown A: system 1; connect", why: "nowhere", // the board was not contacted
		},
		{name: "dry run", bundle: good, change: func(u *updateRun) { u.how.DryRun = true }, want: "old A: system 1; connect preflight"},
		{
			name: "another board's", bundle: bundle(boardtest.Bundle{Name: "toaster", Compatible: "toaster", Version: "2", Content: "crumbs"}),
			err: boardupdate.ErrRefused, want: "old A: system 1; connect preflight", why: "toaster",
		},
		{
			name: "an unknown signer's", bundle: bundle(boardtest.Bundle{Name: "unknown-signer", Key: "unknown-signer", Version: "2", Content: "system 3"}),
			err: boardupdate.ErrRefused, want: "old A: system 1; connect preflight", why: "signature",
		},
		{
			name: "not confirmed", bundle: good, want: "old A: system 1; connect",
			change: func(u *updateRun) { u.how.Confirm = AskYes(strings.NewReader("no\n"), io.Discard, "not confirmed") }, why: "not confirmed", err: report.ErrNotBegun,
		},
		{
			name: "does not boot", bundle: good, want: "old A: system 1; connect preflight install", why: "the boot loader went back",
			change: func(u *updateRun) {
				restart := u.restart
				u.restart = func(ctx context.Context) error {
					giveUp(board, r)
					return restart(ctx)
				}
			},
		},
		{
			name: "fails its checks", bundle: bundle(boardtest.Bundle{Name: "broken", Version: "2", Content: "broken system"}),
			err: report.ErrFailed, want: "old A: system 1; connect preflight install restart roll back",
		},
		{name: "good", bundle: good, want: "new B: system 2; connect preflight install restart smoke commit"},
		{
			name: "older", bundle: bundle(boardtest.Bundle{Name: "one", Version: "1.9", Content: "system 1.9"}),
			err: boardupdate.ErrRefused, want: "old B: system 2; connect preflight", why: "--downgrade",
		},
		{
			name: "and back", bundle: bundle(boardtest.Bundle{Name: "back", Version: "1.9", Content: "system 1.9 again"}), change: func(u *updateRun) { u.how.Downgrade = true },
			want: "new A: system 1.9 again; connect preflight install restart smoke commit",
		},
		{
			name: "without a restart", bundle: good, change: func(u *updateRun) { u.how.NoReboot = true },
			want: "old A: system 1.9 again; connect preflight install",
		},
		{
			name: "another one waits", bundle: bundle(boardtest.Bundle{Name: "another", Version: "2", Content: "system 2 of another"}),
			err: boardupdate.ErrRefused, want: "old A: system 1.9 again; connect preflight", why: "earlier update",
		},
		{name: "it waits, dry run", bundle: good, change: func(u *updateRun) { u.how.DryRun = true }, want: "old A: system 1.9 again; connect preflight"},
		{
			name: "it waits, not confirmed", bundle: good, want: "old A: system 1.9 again; connect",
			change: func(u *updateRun) { u.how.Confirm = AskYes(strings.NewReader("no\n"), io.Discard, "not confirmed") }, why: "not confirmed", err: report.ErrNotBegun,
		},
		{
			name: "it waits, without a restart", bundle: good, change: func(u *updateRun) { u.how.NoReboot = true },
			want: "old A: system 1.9 again; connect preflight install",
		},
		{name: "it waits", bundle: good, want: "new B: system 2; connect preflight install restart smoke commit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := onRAUC(board, r, boardtest.Connect(t, r.Program()), tt.bundle)
			if tt.change != nil {
				tt.change(u)
			}
			err := u.runAllStages(t.Context(), connectedAlready)
			if (err == nil) != (tt.err == nil && tt.why == "") || tt.err != nil && !errors.Is(err, tt.err) || err != nil && !strings.Contains(err.Error(), tt.why) {
				t.Errorf("run() = %v; want %v, and %q in it", err, tt.err, tt.why)
			}
			got := fmt.Sprintf("%s %s: %s; %s", u.outcome.System, r.Booted(), r.Slot(r.Booted()), strings.Join(passedStages(u.outcome.Report), " "))
			if got != tt.want {
				t.Errorf("it ended with %q; want %q\n%+v", got, tt.want, u.outcome)
			}
		})
	}
}

// A board without a root login is updated by sudo, also if the connection breaks. A Ctrl-C
// stops root's engine there.
func TestUpdateBySudo(t *testing.T) {
	for name, rights := range sshtest.SudoRights {
		t.Run(name, func(t *testing.T) {
			r := boardtest.StartRAUC(t)
			conn, relay := connectBySudo(t, rights, systemctlOf(t, r))
			begin := func(name string) (*updateRun, context.CancelFunc, <-chan error) {
				u := onRAUC(t, r, conn, r.Make(t, boardtest.Bundle{Name: name, Version: "2", Content: "system 2", Hook: waitingHook(r)}))
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- u.runAllStages(ctx, connectedAlready) }()
				awaitHook(t, r)
				return u, stop, ended
			}
			_, stop, ended := begin("one")
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) || !isStopped(r) {
				t.Errorf("run() = %v, and the engine was stopped: %v; want %v, true", err, isStopped(r), context.Canceled)
			}
			r.Boot(t, "A")
			u, stop, ended := begin("two")
			defer stop()
			relay.Cut()
			releaseHook(t, r)
			if err := <-ended; err != nil || r.Slot(r.Booted()) != "system 2" || u.outcome.System != NewSystem || !u.outcome.Committed {
				t.Errorf("run() = %v, %+v; want the new system to run and stay", err, u.outcome)
			}
		})
	}
}

func passedStages(r report.Report) (passed []string) {
	for _, s := range r.Stages {
		if s.Status == report.Passed {
			passed = append(passed, s.Name)
		}
	}
	return passed
}

// The connection breaks while the engine installs from a file on the board. The engine
// continues, and the update does not start it again.
func TestUpdateCut(t *testing.T) {
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)})
	conn, relay := connectBy(t)
	u := onRAUC(t, r, conn, bundle)
	ended := make(chan error, 1)
	go func() { ended <- u.runAllStages(t.Context(), connectedAlready) }()
	awaitHook(t, r)
	relay.Cut()
	releaseHook(t, r)
	if err := <-ended; err != nil {
		t.Fatalf("run() = %v", err)
	}
	if got := r.Slot("B"); got != "system 2" || u.outcome.System != NewSystem || !u.outcome.Committed {
		t.Errorf("slot B holds %q; the outcome is %v", got, u.outcome)
	}
	if saw := u.outcome.Report.Stages[2].Saw; !strings.Contains(saw, "broke 1 times") {
		t.Errorf("the stage says %q; want that the connection broke once", saw)
	}
}

// The connection breaks between the preflight and the installation.
func TestUpdateCutBefore(t *testing.T) {
	r := boardtest.StartRAUC(t)
	conn, relay := connectBy(t)
	u := onRAUC(t, r, conn, r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"}))
	defer u.close()
	if _, err := u.runPreflight(t.Context()); err != nil {
		t.Fatal(err)
	}
	relay.Cut()
	if saw, err := u.installBundle(t.Context()); err != nil || !u.outcome.Waiting || !strings.Contains(saw, "broke 1 times") {
		t.Errorf("installBundle = %q, %v, waiting %v; want it installed after one more try", saw, err, u.outcome.Waiting)
	}
}

// alwaysCutEngine is an engine whose connection breaks during each installation.
type alwaysCutEngine struct {
	boardupdate.Engine
	times int
}

func (c *alwaysCutEngine) Install(context.Context, *boardupdate.Source, func(int, string)) error {
	c.times++
	return fmt.Errorf("%w: cut %d", boardupdate.ErrLost, c.times)
}

// A board that never got a whole bundle has no new system that a restart would start.
func TestUpdateCutEachTime(t *testing.T) {
	r := boardtest.StartRAUC(t)
	u := onRAUC(t, r, boardtest.Connect(t), r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"}))
	defer u.close()
	if _, err := u.runPreflight(t.Context()); err != nil {
		t.Fatal(err)
	}
	u.engine = &alwaysCutEngine{Engine: u.engine}
	saw, err := u.installBundle(t.Context())
	if !errors.Is(err, boardupdate.ErrLost) || u.outcome.Waiting {
		t.Errorf("installBundle = %q, %v, waiting %v; want %v", saw, err, u.outcome.Waiting, boardupdate.ErrLost)
	}
	for _, text := range []string{saw, fmt.Sprint(err)} {
		if first := strings.Index(text, "cut 1"); !strings.Contains(text, "broke 5 times") || first < 0 || first > strings.Index(text, "cut 5") {
			t.Errorf("installBundle says %q; want what broke first, and what broke last", text)
		}
	}
}

// A second Ctrl-C also ends the wait for a board.
func TestUpdateEnded(t *testing.T) {
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)})
	u := onRAUC(t, r, boardtest.Connect(t), bundle)
	now := make(chan struct{})
	u.how.Now = now
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- u.runAllStages(ctx, connectedAlready) }()
	awaitHook(t, r)
	close(now)
	stop()
	if err := <-ended; err == nil {
		t.Error("run() = nil; want an error")
	}
	if _, err := u.conn.Run(t.Context(), "true"); err == nil {
		t.Error("the connection is still there")
	}
	os.Remove(u.source.Where) // the update could not remove it any more
}

// Ctrl-C during the installation.
func TestUpdateStopped(t *testing.T) {
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2", Hook: waitingHook(r)})
	u := onRAUC(t, r, boardtest.Connect(t, systemctlOf(t, r)), bundle)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- u.runAllStages(ctx, connectedAlready) }()
	awaitHook(t, r)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("run() = %v; want %v", err, context.Canceled)
	}
	if !isStopped(r) {
		t.Error("the engine was not stopped")
	}
	if u.outcome.System != OldSystem || u.outcome.Waiting || r.Next() != "A" {
		t.Errorf("the outcome is %v, and slot %s is next; want the old system to run and stay", u.outcome, r.Next())
	}
}

// Ctrl-C after the board was told to restart. After the first one, the update waits until the
// state of the new system is known. The second one ends it.
func TestUpdateStoppedLate(t *testing.T) {
	board := t // the service outlives the cases
	r := boardtest.StartRAUC(t)
	for i, tt := range []struct {
		name      string
		twice     bool
		committed bool
	}{
		{name: "once", committed: true},
		{name: "twice", twice: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bundle := r.Make(t, boardtest.Bundle{Name: tt.name, Version: fmt.Sprint(i + 2), Content: "system " + tt.name})
			u := onRAUC(board, r, boardtest.Connect(t), bundle)
			now := make(chan struct{})
			u.how.Now = now
			ctx, stop := context.WithCancel(t.Context())
			prove := u.prove
			u.prove = func(ctx context.Context) (report.Report, error) {
				stop()
				if tt.twice {
					close(now)
					<-ctx.Done()
					return report.Report{}, context.Cause(ctx)
				}
				return prove(ctx)
			}
			err := u.runAllStages(ctx, connectedAlready)
			if (err == nil) != tt.committed || u.outcome.Committed != tt.committed || !u.outcome.Restarted {
				t.Errorf("run() = %v, the outcome is %+v; want it committed: %v", err, u.outcome, tt.committed)
			}
			if got := r.Slot(r.Booted()); got != "system "+tt.name {
				t.Errorf("%q runs; want the new system, whoever marks it", got)
			}
		})
	}
}

// The progress of a repeated installation is what its engine says.
func TestPercentOfAnInstallationThatIsDoneAgain(t *testing.T) {
	log := &progresstest.Recorder{}
	step := progress.Start(progress.With(t.Context(), progress.New(log)), "install", 100, progress.Tasks)
	for _, percents := range [][]int{{20, 80}, {5, 19}} {
		tell := reportProgress(step)
		for _, percent := range percents {
			tell(percent, "copies")
		}
	}
	step.End("", nil)
	if last := log.Last("install"); last.Count != 19 || last.Total != 100 {
		t.Errorf("%d of %d; want 19 of 100", last.Count, last.Total)
	}
}

// The connection breaks before or after the installation. The stage is repeated, unless the board
// restarted by itself meanwhile and runs the old system.
func TestUpdateCutAround(t *testing.T) {
	board := t // the service outlives the cases
	r := boardtest.StartRAUC(t)
	for i, tt := range []struct {
		name  string
		cutIn string
		back  bool // the board restarts, and the boot loader rolls back
		want  string
	}{
		{name: "before it is looked at", cutIn: "connect", want: "new B, committed"},
		{name: "while it is asked what runs", cutIn: "restart", want: "new A, committed"},
		{name: "while it is proved", cutIn: "smoke", want: "new B, committed"},
		{name: "and it goes back", cutIn: "smoke", back: true, want: "old B"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, relay := connectBy(t)
			u := onRAUC(board, r, conn, r.Make(t, boardtest.Bundle{Name: fmt.Sprint("late", i), Version: fmt.Sprint(i + 2), Content: "system"}))
			cuts := 0
			cut := func(stage string) {
				if stage != tt.cutIn || cuts > 0 {
					return
				}
				if cuts++; tt.back {
					giveUp(board, r)
					r.Restart(board)
				}
				relay.Cut()
			}
			restart, prove := u.restart, u.prove
			u.restart = func(ctx context.Context) error {
				defer cut("restart")
				return restart(ctx)
			}
			u.prove = func(ctx context.Context) (report.Report, error) {
				cut("smoke")
				if _, err := conn.Run(ctx, "true"); err != nil {
					return report.Report{}, err
				}
				return prove(ctx)
			}
			err := u.runAllStages(t.Context(), func(context.Context) error {
				cut("connect")
				return nil
			})
			got := fmt.Sprintf("%s %s", u.outcome.System, r.Booted())
			if u.outcome.Committed {
				got += ", committed"
			}
			if got != tt.want || cuts != 1 || (err == nil) != u.outcome.Committed {
				t.Errorf("it ended with %q after %d cuts: %v; want %q", got, cuts, err, tt.want)
			}
		})
	}
}

// An update continues from where a recorded update got to. A board that runs the bundle is not
// written again.
func TestUpdateGoesOn(t *testing.T) {
	board := t // the service outlives the cases
	const (
		killedBefore = iota // before the engine installs
		killedInstalled
		killedStarted
		killedCommitted
	)
	for _, tt := range []struct {
		name    string
		killed  int
		commits bool // the record says that the update was committed
		since   func(r *boardtest.RAUC)
		want    string // system, slot; the stages that passed
		already bool
		err     string
	}{
		{name: "before it was installed", killed: killedBefore, want: "new B; connect preflight install restart smoke commit"},
		{name: "before the restart", killed: killedInstalled, want: "new B; connect preflight install restart smoke commit"},
		{
			name: "and somebody installed another of that version", killed: killedInstalled, err: "it is not certain that this bundle is in it",
			since: func(r *boardtest.RAUC) {
				installAnyway(board, r, r.Make(board, boardtest.Bundle{Name: "same-version", Version: "2", Content: "another system 2"}))
			},
		},
		{name: "before it was proved", killed: killedStarted, want: "new B; connect preflight smoke commit", already: true},
		{name: "before the record says so", killed: killedCommitted, want: "new B; connect preflight smoke commit", already: true},
		{name: "afterwards", killed: killedCommitted, commits: true, want: "new B; connect preflight smoke", already: true},
		{
			name: "and the board went back", killed: killedInstalled, want: "new B; connect preflight install restart smoke commit",
			since: func(r *boardtest.RAUC) {
				giveUp(board, r)
				r.Restart(board)
			},
		},
		{
			name: "and somebody installed another", killed: killedCommitted, commits: true, want: "new B; connect preflight install restart smoke commit",
			since: func(r *boardtest.RAUC) {
				u := onRAUC(board, r, boardtest.Connect(board), r.Make(board, boardtest.Bundle{Name: "other", Version: "3", Content: "system 3"}))
				if err := u.runAllStages(board.Context(), connectedAlready); err != nil {
					board.Fatal(err)
				}
			},
			err: "--downgrade",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := boardtest.StartRAUC(t)
			bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
			first := onRAUC(t, r, boardtest.Connect(t), bundle)
			var noted Earlier
			first.how.Writing = func(ran SystemID) error {
				noted.From = ran
				return map[bool]error{true: errors.New("killed")}[tt.killed == killedBefore]
			}
			first.how.NoReboot = tt.killed < killedCommitted
			if err := first.runAllStages(t.Context(), connectedAlready); err != nil && tt.killed != killedBefore {
				t.Fatal(err)
			}
			if tt.killed == killedStarted {
				r.Restart(t)
			}
			if tt.commits {
				ran := first.outcome.SystemID()
				noted.To = &ran
			}
			if tt.since != nil {
				tt.since(r)
			}
			u := onRAUC(t, r, boardtest.Connect(t, r.Program()), bundle)
			u.how.Earlier = &noted
			err := u.runAllStages(t.Context(), connectedAlready)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("run() = %v; want %q", err, tt.err)
				}
				return
			}
			got := fmt.Sprintf("%s %s; %s", u.outcome.System, r.Booted(), strings.Join(passedStages(u.outcome.Report), " "))
			if err != nil || got != tt.want || u.outcome.Already != tt.already || !u.outcome.Committed {
				t.Errorf("run() = %v, %s, already %v; want %s, %v", err, got, u.outcome.Already, tt.want, tt.already)
			}
		})
	}
}

// A system that a board has already is checked, and not rolled back if it fails.
func TestUpdateAlreadyFails(t *testing.T) {
	r := boardtest.StartRAUC(t)
	bundle := r.Make(t, boardtest.Bundle{Name: "two", Version: "2", Content: "system 2"})
	first := onRAUC(t, r, boardtest.Connect(t), bundle)
	var noted Earlier
	first.how.Writing = func(ran SystemID) error { noted.From = ran; return nil }
	if err := first.runAllStages(t.Context(), connectedAlready); err != nil {
		t.Fatal(err)
	}
	ran := first.outcome.SystemID()
	noted.To = &ran
	u := onRAUC(t, r, boardtest.Connect(t), bundle)
	u.how.Earlier = &noted
	u.prove = func(context.Context) (report.Report, error) { return report.Report{}, report.ErrFailed }
	if err := u.runAllStages(t.Context(), connectedAlready); !errors.Is(err, report.ErrFailed) || r.Booted() != "B" || u.outcome.System != NewSystem || !u.outcome.Committed {
		t.Errorf("run() = %v, slot %s, %v; want the check's failure, and the system left as it is", err, r.Booted(), u.outcome)
	}
}

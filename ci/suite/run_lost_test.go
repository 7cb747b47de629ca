package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/images"
)

const lostSuite = `
command:
  first: {exec: "true", alone: true}
  lost: {exec: "$HOW", timeout: $LIMIT}
  beside: {exec: sleep 60}
  also beside: {exec: sleep 60, teardown: [touch /nowhere]}
  later: {exec: "true", alone: true}
  skipped anyway: {exec: "false", skip: true}
`

// A connection that ends or hangs during a check is no failed check.
func TestLostBoard(t *testing.T) {
	for _, tt := range []struct{ name, how, limit, want string }{
		{"the connection ends", "kill -9 $PPID; sleep 60", "30000", "did not restart: its boot id is the same"},
		{"the connection hangs", "setsid sh -c 'sleep 20; kill -9 $0' $PPID >/dev/null 2>&1 & kill -STOP $PPID; sleep 60", "500", "and then not to anything else: the board stopped answering"},
		{"its shutdown ends programs first", "( sleep 1; kill -9 $PPID ) >/dev/null 2>&1 & kill -STOP $PPID; exit 143", "1500", "did not restart"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := connect(t)
			soon := func(s *Session) { s.limits = lostLimits{2 * time.Second, 20 * time.Second} }
			suite := strings.NewReplacer("$HOW", tt.how, "$LIMIT", tt.limit).Replace(lostSuite)
			r, err := Run(t.Context(), conn, specOf(t, suite), images.Artifact{}, soon)
			if !errors.Is(err, report.ErrUnreachable) || errors.Is(err, report.ErrFailed) || report.ExitStatus(err) != 3 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Run = %v; want %q", err, tt.want)
			}
			checkLossReport(t, r, err)
		})
	}
}

// checkLossReport checks the report of a run whose board was lost at check 2 of 6.
func checkLossReport(t *testing.T, r report.Report, err error) {
	t.Helper()
	if !strings.Contains(fmt.Sprint(err), "lost at check 2 of 6 (lost): ") {
		t.Errorf("the error is %v", err)
	}
	want := []string{"first passed", "lost skipped", "beside skipped", "also beside skipped", "later skipped", "skipped anyway skipped"}
	if diff := cmp.Diff(want, checkStatuses(r)); diff != "" {
		t.Error(diff)
	}
	n := r.Counts()
	if n.Stages[report.Failed] != 1 || n.Checks[report.Failed] != 0 || r.Reason != "unreachable" || !r.Failed() {
		t.Errorf("%d failed stages, %d failed checks, reason %q; want one stage, unreachable", n.Stages[report.Failed], n.Checks[report.Failed], r.Reason)
	}
	junit := junitText(t, r)
	if strings.Count(junit, "<failure") != 1 || strings.Count(junit, "<skipped") != 5 {
		t.Errorf("JUnit:\n%s", junit)
	}
	later := r.Suites[0].Checks[4].Saw
	if later != "not run: the board stopped answering" {
		t.Errorf("a check after the loss saw %q", later)
	}
}

// fragileBoard is a board that goes down during the check "lost".
type fragileBoard struct {
	restartingBoard
	state struct {
		sync.Mutex
		down bool
	}
	stays bool // down
}

func (b *fragileBoard) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	b.state.Lock()
	b.state.down = b.state.down || slices.Contains(argv, "go down")
	down := b.state.down
	b.state.Unlock()
	switch {
	case down:
		return boardssh.Result{}, io.EOF
	case slices.Contains(argv, "sleep 60"):
		<-ctx.Done()
		return boardssh.Result{}, ctx.Err()
	}
	return b.restartingBoard.Run(ctx, argv...)
}

func (b *fragileBoard) redial(ctx context.Context, within time.Duration) error {
	if b.stays {
		return fmt.Errorf("connection refused")
	}
	b.state.Lock()
	b.state.down = false
	b.state.Unlock()
	return b.reboot(ctx, within)
}

func TestBoardThatRestartsByItself(t *testing.T) {
	for _, tt := range []struct {
		stays bool
		want  string
	}{
		{false, "it restarted by itself: its boot id was boot0 and is boot1"},
		{true, "it did not answer again within 1m0s: connection refused"},
	} {
		b := &fragileBoard{stays: tt.stays}
		suite := strings.NewReplacer("$HOW", "go down", "$LIMIT", "30000").Replace(lostSuite)
		r, err := runSuites(t.Context(), &Session{Board: b, redial: b.redial}, specOf(t, suite), images.Artifact{})
		if !errors.Is(err, report.ErrUnreachable) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("runSuites = %v; want %q", err, tt.want)
		}
		checkLossReport(t, r, err)
	}
}

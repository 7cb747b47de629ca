package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"slipway/ci/report"
	"slipway/flash/boardssh"
	"slipway/flash/boardssh/container"
	"slipway/flash/boardssh/files"
	"slipway/images"
	"slipway/layers/host"
)

// Run runs the board's suites over an SSH connection and returns their report. The report is
// complete after nil or report.ErrFailed. After another error it has the results until then.
func Run(ctx context.Context, conn *boardssh.Conn, spec images.Spec, a images.Artifact, options ...Option) (report.Report, error) {
	open := func(ctx context.Context) (containerEngine, error) { return container.OpenContainerd(ctx, conn) }
	put := func(ctx context.Context, local, remote string, mode fs.FileMode) error {
		_, err := files.Put(ctx, conn, local, remote, mode)
		return err
	}
	s := &Session{Board: guardedBoard{conn}, name: conn.Address().Name(), open: open, dial: conn.DialContext, put: put, reboot: conn.Reboot, redial: conn.Redial, Stream: conn.Stream, Terminal: conn.Terminal}
	for _, option := range options {
		if option != nil {
			option(s)
		}
	}
	return runSuites(ctx, s, spec, a)
}

// Option changes how suites are run.
type Option func(*Session)

// AllowReboots sets whether checks may restart the board. If not, Run skips such checks.
func AllowReboots(may bool) Option { return func(s *Session) { s.noReboot = !may } }

// KeepMetrics makes Run compare the board's metrics with its last good run, and save them beside
// its reports. It does nothing if the board has no build folder.
func KeepMetrics(opt images.Options, spec images.Spec) Option {
	return func(s *Session) {
		if _, none := os.Stat(opt.BoardDir(spec)); spec.Board != "" && none == nil {
			s.metrics = opt.ReportDir(spec)
		}
	}
}

// EndTeardown cancels teardowns that still run after a Ctrl-C once now is closed.
func EndTeardown(now <-chan struct{}) Option { return func(s *Session) { s.now = now } }

// runSuites loads the suites, reads the board's identity, runs all checks, and returns the report.
// After a failure the report has the board's logs. After a success it saves the metrics.
func runSuites(ctx context.Context, s *Session, spec images.Spec, a images.Artifact) (report.Report, error) {
	r := report.New(spec)
	r.Source = a.Source
	defer s.closeEngine()
	suites, err := LoadAll(spec)
	if err != nil {
		err = report.Because(ctx, report.ErrWrong, err)
		r.AddFailure("smoke", err, SuitesNext)
		return r, err
	}
	s.artifact, s.DPU = a, spec.DPU
	if s.identity, err = s.readIdentity(ctx, a); err != nil {
		err = report.Because(ctx, report.ErrUnreachable, fmt.Errorf("smoke %s: %w%s", r.Board, err, nextIfSilent(err)))
		r.AddFailure("smoke", err, LostNext)
		return r, err
	}
	file := report.HistoryFile(s.metrics, s.identity, s.name)
	if s.last, err = report.ReadHistory(file); err != nil {
		r.AddFailure("smoke", err, "remove that file; metrics are then compared again after the next run that passes")
		return r, err
	}
	run, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.end = end
	for _, suite := range suites {
		r.Suites = append(r.Suites, s.runSuite(run, suite))
	}
	r.Identity = s.identity // a restart may change it
	lost := s.lossError(ctx, r)
	if lost != nil {
		r.AddFailure("smoke", lost, LostNext)
	}
	if r.Failed() && ctx.Err() == nil {
		r.Logs = s.readLogs(ctx, r.Identity.BootID)
	}
	r.ElapsedMS = time.Since(r.Started).Milliseconds()
	if lost != nil {
		return r, lost
	}
	if err = reportError(ctx, &r); err == nil {
		err = s.last.Save(file, r)
	}
	return r, err
}

// SuitesNext is the next step to show after LoadAll failed.
const SuitesNext = "correct the suite, or the list of suites in the board's board.yml"

// LoadAll loads all suites that a board.yml lists. An empty list is an error.
func LoadAll(spec images.Spec) ([]Suite, error) {
	if len(spec.Suites) == 0 && spec.TypedName() == spec.Project {
		return nil, fmt.Errorf("%s is a project file, which the command build takes; only a board lists its suites\nnext: suites  # then add --suite=NAME to smoke, or name a board", spec.Project)
	}
	if len(spec.Suites) == 0 {
		return nil, listError{fmt.Errorf("board %s has no suites, so nothing would be proved; add suites: to its board.yml (have %s)",
			spec.Board, strings.Join(Names(), ", "))}
	}
	var suites []Suite
	for _, name := range spec.Suites {
		suite, err := Load(name)
		if err != nil {
			return nil, err
		}
		suites = append(suites, suite)
	}
	return suites, nil
}

// CheckListed returns an error if a suite that board.yml lists cannot be loaded. If the list itself
// is wrong, the error names the line of board.yml.
func CheckListed(spec images.Spec) error {
	_, err := LoadAll(spec)
	if errors.As(err, new(listError)) {
		return fmt.Errorf("%s: suites: %w", spec.PlaceOf("suites"), err)
	}
	return err
}

// reportError returns the error of a run that was stopped, failed or passed no check. If no failed
// check shows that error, it adds a failed stage to the report.
func reportError(ctx context.Context, r *report.Report) (err error) {
	switch n := r.Counts(); {
	case ctx.Err() != nil:
		err = fmt.Errorf("smoke %s: stopped: %w", r.Board, context.Cause(ctx))
		r.AddFailure("smoke", err, host.TypedStep("repeat the line"))
	case n.Checks[report.Failed] > 0:
		err = fmt.Errorf("smoke %s: %d of %d checks failed: %w", r.Board, n.Checks[report.Failed], n.TotalChecks(), report.ErrFailed)
		r.Reason = report.ReasonFor(err)
	case n.Checks[report.Passed] == 0:
		err = fmt.Errorf("smoke %s: none of %d checks passed: %w", r.Board, n.TotalChecks(), report.ErrFailed)
		r.AddFailure("smoke", err, "take skip out of the suites, or name others in the board's board.yml")
	}
	return err
}

// Session is one board during one run of its suites.
type Session struct {
	Board Board
	name  string // of the target, for the history of a board without an identity
	// metrics is the folder of the board's reports; "": none are kept.
	metrics string
	open    func(context.Context) (containerEngine, error)
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // from the board
	put     func(ctx context.Context, local, remote string, mode fs.FileMode) error
	reboot  func(ctx context.Context, timeout time.Duration) error
	redial  func(ctx context.Context, timeout time.Duration) error
	limits  lostLimits

	Stream   func(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (status int, err error)
	Terminal func(ctx context.Context, talk func(keys io.Writer, screen io.Reader) error, argv ...string) error

	DPU      *images.DPU
	noReboot bool
	now      <-chan struct{}
	artifact images.Artifact
	identity report.Identity

	last report.History

	mu     sync.Mutex
	opened containerEngine
	lost   bool
	why    error                   // why it was lost in the middle of a run
	end    context.CancelCauseFunc // ends the run

	container sync.Mutex // containers run one at a time
}

// closeEngine closes the connection to containerd, if one is open.
func (s *Session) closeEngine() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened != nil {
		s.opened.Close()
		s.opened = nil
	}
}

package suite

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/suitetest"
	"slipway/flash/boardssh"
	"slipway/images"
)

// restartingBoard is a board that counts its restarts. It logs commands and restarts.
type restartingBoard struct {
	mu    sync.Mutex
	boots int
	log   []string
	fails error
}

func (b *restartingBoard) Run(_ context.Context, argv ...string) (boardssh.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	line := strings.Join(argv, " ")
	if strings.Contains(line, identityScript) {
		return boardssh.Result{Stdout: fmt.Appendf(nil, "/proc/sys/kernel/random/boot_id:boot%d\n/proc/cmdline:quiet rauc.slot=%c\n", b.boots, 'A'+rune(b.boots%2))}, nil
	}
	b.log = append(b.log, line)
	return boardssh.Result{}, nil
}

func (b *restartingBoard) reboot(ctx context.Context, _ time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, "restart")
	if b.fails == nil {
		b.boots++
	}
	return b.fails
}

const acrossReboot = `
command:
  before: {argv: [write], needs: {file: /a}, teardown: [[tidy]]}
reboot:
  it comes back:
    then:
      command:
        after: {argv: [read], needs: {file: /a}}
      container:
        again: {image: x}
file:
  /unrelated: {exists: false, skip: true}
`

func TestReboot(t *testing.T) {
	for _, tt := range []struct {
		name     string
		noReboot bool
		fails    error
		want     []string
		log      []string
	}{
		{
			name: "it comes back",
			want: []string{
				"before: passed: exit status 0", "it comes back: passed: boot id boot1; back after a while; slot A before, B now",
				"after: passed: exit status 0", "again: passed: exit status 0", "/unrelated: skipped: the suite says skip",
			},
			// Slipway tests needs again after a restart.
			log: []string{`sh -c test -e "$1" sh /a`, "write", "tidy", "restart", `sh -c test -e "$1" sh /a`, "read"},
		},
		{
			name: "it refuses", fails: errors.New("reboot: not permitted"),
			want: []string{
				"before: passed: exit status 0", "it comes back: failed: reboot: not permitted / an answer",
				`after: skipped: it needs "it comes back", which failed`, `again: skipped: it needs "it comes back", which failed`, "/unrelated: skipped: the suite says skip",
			},
			log: []string{`sh -c test -e "$1" sh /a`, "write", "tidy", "restart", "true"},
		},
		{
			name: "nobody may", noReboot: true,
			want: []string{
				"before: passed: exit status 0", "it comes back: skipped: " + string(errNoReboot),
				`after: skipped: it needs "it comes back", which was skipped`, `again: skipped: it needs "it comes back", which was skipped`, "/unrelated: skipped: the suite says skip",
			},
			log: []string{`sh -c test -e "$1" sh /a`, "write", "tidy"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &restartingBoard{fails: tt.fails}
			closed := 0
			opened := &closeCounter{n: &closed}
			s := &Session{
				Board: b, reboot: b.reboot, noReboot: tt.noReboot, opened: opened,
				open: func(context.Context) (containerEngine, error) { return opened, nil },
			}
			r, err := runSuites(t.Context(), s, specOf(t, acrossReboot), images.Artifact{})
			if (err != nil) != (tt.fails != nil) {
				t.Errorf("runSuites = %v", err)
			}
			got := resultTexts(r.Suites[0])
			for i := range got {
				got[i] = regexp.MustCompile(`back after \S+;`).ReplaceAllString(got[i], "back after a while;")
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			log := b.log
			if r.Failed() { // then Slipway also reads the board's logs
				log = log[:len(tt.log)]
			}
			if diff := cmp.Diff(tt.log, log); diff != "" {
				t.Error(diff)
			}
			if boot := fmt.Sprintf("boot%d", b.boots); r.Identity.BootID != boot {
				t.Errorf("the report is of boot %q; want %q", r.Identity.BootID, boot)
			}
			if want := 2 - map[bool]int{true: 1}[tt.noReboot || tt.fails != nil]; closed != want {
				t.Errorf("containerd's connection was closed %d times; want %d", closed, want)
			}
		})
	}
}

// closeCounter counts how often it is closed.
type closeCounter struct {
	recordedContainers
	n *int
}

func (c *closeCounter) Close() error {
	*c.n++
	return nil
}

// The check fails if the boot id stays the same.
func TestRebootWithSameBootID(t *testing.T) {
	b := &restartingBoard{}
	s := &Session{Board: b, reboot: func(context.Context, time.Duration) error { return nil }}
	r, err := runSuites(t.Context(), s, specOf(t, "reboot: {x: }"), images.Artifact{})
	if !errors.Is(err, report.ErrFailed) || !strings.Contains(r.Suites[0].Checks[0].Want, "another boot id than before, boot0") {
		t.Errorf("runSuites = %v, %+v", err, r.Suites)
	}
}

func TestRebootHasTime(t *testing.T) {
	for text, want := range map[string]time.Duration{"reboot: {x: }": rebootLimit, "reboot: {x: {timeout: 60000}}": time.Minute} {
		suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": text}))
		if err != nil {
			t.Fatal(err)
		}
		c := suite.Checks[0]
		if c.Timeout != want || c.probe.(reboot).limit != want || !c.Alone {
			t.Errorf("%s: %+v; want %v, alone", text, c, want)
		}
	}
}

// A second Ctrl-C ends teardowns too.
func TestSecondCtrlC(t *testing.T) {
	now := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan string, 10)
	board := &hangingBoard{begun: begun}
	go func() {
		<-begun // the check
		cancel()
		<-begun // its teardown
		close(now)
	}()
	s := &Session{Board: board}
	EndTeardown(now)(s)
	r, err := runSuites(ctx, s, specOf(t, "command: {x: {argv: [hang], teardown: [[hang], [hang]]}}"), images.Artifact{})
	if err == nil || len(r.Suites) != 1 || r.Suites[0].Checks[0].Status != report.Skipped {
		t.Errorf("runSuites = %v, %+v", err, r.Suites)
	}
}

// hangingBoard is a board whose programs run until they are canceled.
type hangingBoard struct{ begun chan string }

func (b *hangingBoard) Run(ctx context.Context, argv ...string) (boardssh.Result, error) {
	if argv[0] != "hang" {
		return boardssh.Result{}, nil
	}
	select {
	case b.begun <- argv[0]:
	default:
	}
	<-ctx.Done()
	return boardssh.Result{}, context.Cause(ctx)
}

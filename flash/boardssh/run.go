package boardssh

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
)

// MaxOutputBytes is how much of each of a program's outputs is kept.
const MaxOutputBytes = 1 << 20

// Result is the exit status and the outputs of a program on the board. The outputs are raw.
type Result struct {
	Status         int // 128 + the signal's number if a signal ended it
	Stdout, Stderr []byte
	Truncated      bool // there was more output than is kept
	Elapsed        time.Duration
}

// Run runs a program on the board to its end. The error is for a program that
// could not be run; one that failed has a Status.
func (c *Conn) Run(ctx context.Context, argv ...string) (Result, error) {
	return c.Feed(ctx, nil, argv...)
}

// Feed is Run for a program that reads what stdin gives. Where stdin fails, so does
// Feed, also if the program took the end of its input for the whole.
func (c *Conn) Feed(ctx context.Context, stdin io.Reader, argv ...string) (Result, error) {
	return c.FeedUpTo(ctx, stdin, MaxOutputBytes, argv...)
}

// FeedUpTo is Feed that keeps at most most bytes of the standard output.
func (c *Conn) FeedUpTo(ctx context.Context, stdin io.Reader, most int, argv ...string) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stderr := LimitedBuffer{Endless: cancel}
	stdout := LimitedBuffer{most: most, Endless: cancel}
	began := time.Now()
	status, err := c.Stream(ctx, stdin, &stdout, &stderr, argv...)
	return Result{
		Status: status, Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
		Truncated: stdout.Truncated() || stderr.Truncated(), Elapsed: time.Since(began),
	}, err
}

// Stream is Feed for a program whose outputs go on as they come, all of them.
func (c *Conn) Stream(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer, argv ...string) (status int, err error) {
	link, session, err := c.openProgram(ctx, argv)
	if err != nil {
		return 0, err
	}
	defer func() { go session.Close() }()

	program := c.login.newProgram(stderr)
	pid := &pidLine{mark: "slipway-run-" + rand.Text() + " ", out: program, over: program.endErrors}
	moves := &activity{last: time.Now()}
	began := LimitedBuffer{most: maxShownBytes}
	session.Stdout, session.Stderr = watchedWriter{stdout, moves, &began}, watchedWriter{to: pid, pulse: moves}
	ended := make(chan struct{})
	question := ctx.Value(questionKey{}) != nil
	if !question {
		go link.checkProgramRuns(moves, pid, ended)
	}
	stopping := stopper{login: c.login, link: link, session: session, pid: pid}
	err = link.watch(ctx, watch{quiet: moves.quietFor, stop: stopping.stopProgram, reacted: stopping.said.heard.Load, patient: question}, func() error {
		return program.startProgram(session, watchInput(stdin, moves), pid.shellPrefix()+program.commandLine(argv))
	})
	close(ended)
	pid.flushHeld()
	var exit *ssh.ExitError
	switch ended := errors.As(err, &exit); {
	case err != nil && !ended:
		return 0, BoardError(fmt.Sprintf("run %s on %s", argv[0], c.addr), err)
	case ended:
		status = exit.ExitStatus()
	}
	if pid.knownPID() == 0 {
		return 0, c.shellError(append(began.Bytes(), pid.said...))
	}
	if words, ok := program.hasRights(); !ok {
		return 0, c.sudoRefuses(cmp.Or(string(words), "it ran nothing, and said nothing"))
	}
	return status, nil
}

const maxShownBytes = maxSaidBytes / 8 // of what such a shell printed

// ErrShell means that a board's login shell does not run what Slipway sends. A status of such
// a shell says nothing of a program.
var ErrShell = errors.New("not a POSIX shell")

func (c *Conn) shellError(printed []byte) error {
	return fmt.Errorf("the login shell of %s, or its forced command, is %w: it did not run Slipway's line, and printed: %s\nnext: ssh %s 'echo $$'  # a POSIX shell prints a number",
		c.addr, ErrShell, cmp.Or(Printable(string(printed)), "nothing"), c.login.sshArgs())
}

// CheckShell finds out whether the board runs programs.
func (c *Conn) CheckShell(ctx context.Context) error {
	_, err := c.Ask(ctx, "true")
	return err
}

// openProgram checks the arguments and opens a session to run them in.
func (c *Conn) openProgram(ctx context.Context, argv []string) (*link, *ssh.Session, error) {
	if len(argv) == 0 {
		return nil, nil, errors.New("no command to run")
	}
	for _, arg := range argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, nil, fmt.Errorf("argument %q holds a NUL byte", arg)
		}
	}
	link, err := c.currentLink()
	if err != nil {
		return nil, nil, err
	}
	session, err := openSession(ctx, link)
	if err != nil {
		return nil, nil, BoardError(fmt.Sprintf("run %s on %s", argv[0], c.addr), err)
	}
	return link, session, nil
}

func openSession(ctx context.Context, link *link) (*ssh.Session, error) {
	return openOnLink(ctx, link, link.NewSession)
}

// openOnLink opens a session or a listener. It does not wait for open itself, which waits for ever
// if the connection ends at the same time. It closes what opens after ctx has ended.
func openOnLink[T io.Closer](ctx context.Context, link *link, open func() (T, error)) (T, error) {
	var opened, none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	done := make(chan error, 1)
	err := link.doWithin(ctx, func() {}, func() error {
		go func() {
			var err error
			opened, err = open()
			done <- err
		}()
		select {
		case err := <-done:
			done <- err
			return err
		case <-link.gone:
			return net.ErrClosed
		}
	})
	if err == nil {
		return opened, nil
	}
	go func() {
		if <-done == nil {
			opened.Close()
		}
	}()
	return none, err
}

// stopper asks a program and its children to stop, and kills them after a second. It does
// not wait for longer than they do: a server has ten sessions for a connection.
type stopper struct {
	login   *login
	link    *link
	session *ssh.Session
	pid     *pidLine
	said    shellEcho // once a shell is at it
}

func (e *stopper) stopProgram() {
	defer e.session.Close()
	pid := e.pid.waitForPID()
	other, err := e.link.NewSession()
	if err != nil || pid <= 1 {
		return
	}
	defer other.Close()
	e.said.word = rand.Text()
	other.Stdout = &e.said
	group := strconv.Itoa(pid)
	program := e.login.newProgram(io.Discard)
	other.Stderr = program
	script := e.said.echoCommand() + "; kill -TERM -" + group + "; for i in 1 2 3 4 5; do kill -0 -" + group + " || exit; sleep 0.2 || sleep 1; done 2> /dev/null; kill -KILL -" + group
	program.startProgram(other, nil, program.commandLine([]string{"sh", "-c", script}))
}

// quoteCommand writes argv for the POSIX shell that sshd hands it to. Every word is quoted: a
// bare first word could be one of the shell's own, such as time.
func quoteCommand(argv []string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = plaintext.SingleQuote(arg)
	}
	return strings.Join(words, " ")
}

// LimitedBuffer keeps the first bytes that are written to it and drops the rest, so that endless
// output costs no memory. A connection that is given up may still write while its owner reads.
type LimitedBuffer struct {
	most    int         // 0: MaxOutputBytes
	Endless func(error) // is told of an output that does not end; nil: it may go on

	mu      sync.Mutex
	buf     bytes.Buffer
	more    bool
	dropped int
	since   time.Time // when it was full
}

// A program that prints this much more than is kept, and for this long, has no end.
const (
	endlessBytes = 64 << 20
	endlessAfter = 5 * time.Second
)

var errEndless = errors.New("its output has no end")

func (c *LimitedBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := p[:min(len(p), cmp.Or(c.most, MaxOutputBytes)-c.buf.Len())]
	if len(keep) < len(p) && !c.more {
		c.more, c.since = true, time.Now()
	}
	c.dropped += len(p) - len(keep)
	if c.Endless != nil && c.dropped > endlessBytes && time.Since(c.since) > endlessAfter {
		c.Endless(errEndless)
	}
	c.buf.Write(keep)
	return len(p), nil
}

// Bytes returns a copy of the kept bytes.
func (c *LimitedBuffer) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.buf.Bytes())
}

// Truncated reports whether there was more than is kept.
func (c *LimitedBuffer) Truncated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.more
}

// ReadFrom takes the place of io.Copy, whose buffer of 32 KiB each program would get
// twice: most print a line, and programs may run on many boards at once.
func (c *LimitedBuffer) ReadFrom(r io.Reader) (int64, error) { return copyByHand(c, r) }

func copyByHand(to io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{r}, make([]byte, 4<<10))
}

// Output runs a program that has to succeed, and returns what it prints.
func (c *Conn) Output(ctx context.Context, argv ...string) (string, error) {
	r, err := c.Run(ctx, argv...)
	return c.printed(argv, r, err)
}

func (c *Conn) printed(argv []string, r Result, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if r.Status != 0 {
		shown := argv[0]
		if len(argv) > 1 && argv[0] != "sh" {
			shown += " " + argv[1]
		}
		return "", BoardError(fmt.Sprintf("%s on %s ended with status %d", shown, c.addr, r.Status), errors.New(string(r.Stderr)))
	}
	return strings.TrimSpace(string(r.Stdout)), nil
}

// pidLine finds the program's process id, which its shell prints as a marked
// line on standard error before it becomes the program. SSH's own signals will
// not do: OpenSSH refuses them for root, and a program whose connection goes away
// is not ended by that.
//
// The number is also the proof that a shell has run the line. A forced command, or a login
// shell that is no POSIX shell, may ignore the line or repeat it, and end with status 0.
type pidLine struct {
	mark string
	out  io.Writer // gets everything but the line
	over func()    // is told that there will be no more; nil: nobody is

	mu   sync.Mutex
	held []byte // bytes that arrived before the line
	done bool   // there is nothing more to look for
	pid  int    // 0: no shell has run the line
	said []byte // the first that came without the line
}

// Login scripts may print something first, but not without end.
const maxHeldBytes = 8 << 10

// shellPrefix is fixed text but for the mark, which is ours.
func (p *pidLine) shellPrefix() string { return "echo '" + p.mark + "'$$ >&2; exec " }

func (p *pidLine) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.done {
		p.mu.Unlock() // a goroutine that needs the number does not wait for a slow reader
		return p.out.Write(b)
	}
	defer p.mu.Unlock()
	p.held = append(p.held, b...)
	if before, pid, rest, found := p.findLine(); found {
		p.pid, p.held, p.done = pid, append(bytes.Clone(before), rest...), true
		p.passHeld(len(p.held))
	} else if len(p.held) > maxHeldBytes {
		p.passHeld(len(p.held) - len(p.mark) - maxPIDBytes)
	}
	return len(b), nil
}

const maxPIDBytes = 12 // with the end of the line

// findLine looks for the mark with a number after it. A shell that repeats the line has the
// mark too, and one that traces its commands.
func (p *pidLine) findLine() (before []byte, pid int, rest []byte, found bool) {
	for at := 0; ; at += len(p.mark) {
		i := bytes.Index(p.held[at:], []byte(p.mark))
		if i < 0 {
			return nil, 0, nil, false
		}
		at += i
		number, rest, whole := bytes.Cut(p.held[at+len(p.mark):], []byte("\n"))
		pid, err := strconv.Atoi(strings.TrimSuffix(string(number), "\r"))
		if whole && err == nil && pid > 0 && len(number) < maxPIDBytes {
			return p.held[:at], pid, rest, true
		}
	}
}

// ReadFrom is as that of LimitedBuffer.
func (p *pidLine) ReadFrom(r io.Reader) (int64, error) { return copyByHand(p, r) }

// passHeld passes on the first n held bytes.
func (p *pidLine) passHeld(n int) {
	if p.pid == 0 && len(p.said) == 0 {
		p.said = bytes.Clone(p.held[:min(n, maxShownBytes)])
	}
	p.out.Write(p.held[:n])
	p.held = bytes.Clone(p.held[n:])
}

// flushHeld passes on what was held back if the line never came.
func (p *pidLine) flushHeld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.done = true
		p.passHeld(len(p.held))
	}
	if p.over != nil {
		p.over()
	}
}

// waitForPID waits a moment for the number, because the program's output may come before it.
func (p *pidLine) waitForPID() int {
	for end := time.Now().Add(quick); p.knownPID() == 0 && time.Now().Before(end); {
		time.Sleep(quick / 50)
	}
	return p.knownPID()
}

func (p *pidLine) knownPID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

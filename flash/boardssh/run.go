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

// MaxOutputBytes is how much Slipway keeps of each of a program's two outputs.
const MaxOutputBytes = 1 << 20

// Result is the exit status and the outputs of a program on the board. The outputs are raw.
type Result struct {
	Status         int // 128 + the signal's number if a signal ended it
	Stdout, Stderr []byte
	Truncated      bool // there was more output than is kept
	Elapsed        time.Duration
}

// Run runs a program on the board and waits for its end. The error means that the program could not
// be run; if the program failed, Status says so.
func (c *Conn) Run(ctx context.Context, argv ...string) (Result, error) {
	return c.Feed(ctx, nil, argv...)
}

// Feed is Run with stdin as the program's input. If reading stdin fails, Feed fails too, even if
// the program succeeded with the part that it got.
func (c *Conn) Feed(ctx context.Context, stdin io.Reader, argv ...string) (Result, error) {
	return c.FeedUpTo(ctx, stdin, MaxOutputBytes, argv...)
}

// FeedUpTo is Feed that keeps only the beginning of standard output, up to most bytes (0: the usual
// MaxOutputBytes). It stops a program whose output does not end (see endlessBytes), with an error.
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

// Stream runs a program, writes its outputs to stdout and stderr as they come, and returns its exit
// status. It stops the program when ctx ends, or when the board itself is silent (see
// SilenceVariable). It returns ErrShell or ErrBecome if the login shell or sudo did not start it.
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
		return program.runProgram(session, watchInput(stdin, moves), pid.shellPrefix()+program.commandLine(argv))
	})
	close(ended)
	pid.flushHeld()
	switch exit, ended := errors.AsType[*ssh.ExitError](err); {
	case err != nil && !ended:
		return 0, BoardError(fmt.Sprintf("run %s on %s", argv[0], c.addr), err)
	case ended:
		status = exit.ExitStatus()
	}
	if pid.knownPID() == 0 {
		return 0, c.shellError(append(began.Bytes(), pid.said...))
	}
	if words, ok := program.hasStarted(); !ok {
		return 0, c.sudoRefuses(cmp.Or(string(words), "it ran nothing, and said nothing"))
	}
	return status, nil
}

const maxShownBytes = maxSaidBytes / 8 // of what such a shell printed

// ErrShell means that the board's login shell does not run the lines that Slipway sends. The exit
// status of such a shell says nothing about a program.
var ErrShell = errors.New("not a POSIX shell")

func (c *Conn) shellError(printed []byte) error {
	return fmt.Errorf("the login shell of %s, or its forced command, is %w: it did not run Slipway's line, and printed: %s\nnext: ssh %s 'echo $$'  # a POSIX shell prints a number",
		c.addr, ErrShell, cmp.Or(Printable(string(printed)), "nothing"), c.login.sshArgs())
}

// CheckShell runs "true" on the board, to find out whether the board runs programs. Text that the
// login shell adds is an error, because it would be in the output of every program.
func (c *Conn) CheckShell(ctx context.Context) error {
	r, err := c.Ask(ctx, "true")
	if _, err = c.trimmedOutput([]string{"true"}, r, err); err == nil && len(r.Stdout) > 0 {
		err = fmt.Errorf("the login shell of %s prints text of its own at every login: %s; look into ~/.bashrc, /etc/profile.d and /etc/ssh/sshrc on the board\nnext: ssh %s true  # must print nothing",
			c.addr, Printable(string(r.Stdout[:min(len(r.Stdout), maxShownBytes)])), c.login.sshArgs())
	}
	return err
}

// openProgram opens a session to run argv in. It refuses an empty argv, and NUL bytes.
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

// openOnLink calls open, which opens a session or a listener on the link. It returns early if ctx
// or the connection ends, or after the silence limit, because open may hang forever. It closes what
// opens too late.
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

// stopper stops a program on the board and its children.
type stopper struct {
	login   *login
	link    *link
	session *ssh.Session
	pid     *pidLine
	said    shellEcho // whether a shell on the board runs the stop script
}

// stopProgram sends SIGTERM to the program's process group from a second session, and SIGKILL after
// a second. It ends both sessions when the group is gone: a server allows ten per connection.
// Without a process id it only closes the program's session.
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
	program.runProgram(other, nil, program.commandLine([]string{"sh", "-c", script}))
}

// quoteCommand quotes each word of argv for the POSIX shell that sshd runs. A bare first word could
// be a keyword of the shell, such as time.
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
	Endless func(error) // called for an output that does not end; nil: no limit

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

// Write keeps as much of p as fits and drops the rest, without an error. It calls Endless when it
// has dropped over endlessBytes for over endlessAfter.
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

// ReadFrom copies r with a buffer of 4 KiB. io.Copy would take 32 KiB for each output of each
// program, and programs run on many boards at once.
func (c *LimitedBuffer) ReadFrom(r io.Reader) (int64, error) { return copyByHand(c, r) }

func copyByHand(to io.Writer, r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{r}, make([]byte, 4<<10))
}

// Output runs a program, which must succeed, and returns its trimmed standard output.
func (c *Conn) Output(ctx context.Context, argv ...string) (string, error) {
	r, err := c.Run(ctx, argv...)
	return c.trimmedOutput(argv, r, err)
}

// trimmedOutput returns r.Stdout without outer blanks, or err, or an error if r.Status is not 0.
func (c *Conn) trimmedOutput(argv []string, r Result, err error) (string, error) {
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

// pidLine finds the program's process id, which its shell prints as a marked line on standard error
// before it becomes the program. SSH's own signals will not do: OpenSSH refuses them for root, and
// a program whose connection goes away is not ended by that.
//
// The number is also the proof that a shell has run the line. A forced command, or a login
// shell that is no POSIX shell, may ignore the line or repeat it, and end with status 0.
type pidLine struct {
	mark string
	out  io.Writer // gets everything but the marked line
	over func()    // called when the output has ended; may be nil

	mu   sync.Mutex
	held []byte // bytes that arrived before the line
	done bool   // there is nothing more to look for
	pid  int    // 0: no shell has run the line
	said []byte // the first bytes that came without the line
}

// maxHeldBytes limits what login scripts may print before the marked line.
const maxHeldBytes = 8 << 10

// shellPrefix returns the start of a shell line: it prints mark and pid, then execs the rest.
func (p *pidLine) shellPrefix() string { return "echo '" + p.mark + "'$$ >&2; exec " }

// Write writes all but the marked line, which sets pid, to out. Before that line it buffers up to
// maxHeldBytes.
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

// findLine finds the mark with a process id after it in the held bytes. A mark without a number
// does not count, because a shell that repeats or traces its line prints that.
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

// ReadFrom copies r to Write with a small buffer, as LimitedBuffer does.
func (p *pidLine) ReadFrom(r io.Reader) (int64, error) { return copyByHand(p, r) }

// passHeld moves the first n held bytes to out. Before the marked line, the first call keeps up to
// maxShownBytes of them in said.
func (p *pidLine) passHeld(n int) {
	if p.pid == 0 && len(p.said) == 0 {
		p.said = bytes.Clone(p.held[:min(n, maxShownBytes)])
	}
	p.out.Write(p.held[:n])
	p.held = bytes.Clone(p.held[n:])
}

// flushHeld passes the held bytes on at the end of the output, and calls p.over each time.
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

// waitForPID waits up to quick for the process id. It returns 0 if the line has not come.
func (p *pidLine) waitForPID() int {
	for end := time.Now().Add(quick); p.knownPID() == 0 && time.Now().Before(end); {
		time.Sleep(quick / 50)
	}
	return p.knownPID()
}

// knownPID returns the process id, or 0 if its line has not come.
func (p *pidLine) knownPID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

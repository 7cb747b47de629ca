package boardssh

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// SilenceVariable names the environment variable for how long a board may show no progress: no
// answer, no output, no byte of a file. A program may be silent for as long as it runs; Slipway
// checks on the board whether it still runs.
const SilenceVariable = "SLIPWAY_SILENCE"

const (
	defaultSilence = time.Minute
	leastSilence   = time.Second
	quick          = 1500 * time.Millisecond // silence limit after a request to stop
)

// ErrSilent means that the board keeps the connection open and answers nothing.
var ErrSilent = errors.New("the board is silent")

// silenceLimit reads SilenceVariable or, if empty, defaultSilence. Below leastSilence is an error.
func silenceLimit() (time.Duration, error) {
	text := os.Getenv(SilenceVariable)
	if text == "" {
		return defaultSilence, nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit < leastSilence {
		return 0, fmt.Errorf("%s=%q: want a duration from %s on, such as 90s or 5m", SilenceVariable, text, leastSilence)
	}
	return limit, nil
}

// CheckSettings returns an error for an invalid SilenceVariable or BecomeVariable.
func CheckSettings(ctx context.Context) error {
	if _, err := silenceLimit(); err != nil {
		return fmt.Errorf("%w\nnext: unset %s", err, SilenceVariable)
	}
	if _, err := BecomeUser(ctx); err != nil {
		return fmt.Errorf("%w\nnext: unset %s", err, BecomeVariable)
	}
	return nil
}

func silentError(limit time.Duration) error {
	return fmt.Errorf("%w: no progress for %s; %s sets this limit", ErrSilent, limit, SilenceVariable)
}

// hurryKey marks a context for the clean-up after a Ctrl-C, whose silence limit is quick.
type hurryKey struct{}

// watch says when and how one wait for the board is ended.
type watch struct {
	quiet   func() time.Duration // how long nothing has moved
	stop    func()               // asks the work to end; may block
	reacted func() bool          // whether the board has begun to stop; may be nil
	patient bool                 // allows the board more time to stop, because the connection has other work
}

// doWithin calls work, which waits for the board and knows no context. It calls stop when ctx ends
// or work takes longer than the silence limit. If work does not end then, it closes the connection.
func (l *link) doWithin(ctx context.Context, stop func(), work func() error) error {
	began := time.Now()
	return l.watch(ctx, watch{quiet: func() time.Duration { return time.Since(began) }, stop: stop}, work)
}

// noQuietLimit is for waits without a limit of silence.
func noQuietLimit() time.Duration { return 0 }

// watch calls work and returns its error. It ends work with w.stop when ctx ends, or when nothing
// has moved for the silence limit; then it returns that cause.
func (l *link) watch(ctx context.Context, w watch, work func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	limit := l.limit
	if ctx.Value(hurryKey{}) != nil {
		limit = quick
	}
	done := make(chan error, 1)
	go func() { done <- work() }()
	tick := time.NewTicker(min(limit, quick) / 10)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return l.explainLoss(err)
		case <-ctx.Done():
			w.patient = w.patient && errors.Is(context.Cause(ctx), ErrSilent)
			l.endWork(w, done, tick, false)
			return context.Cause(ctx)
		case <-tick.C:
		}
		if w.quiet() >= limit {
			l.endWork(w, done, tick, true)
			return silentError(limit)
		}
	}
}

// endWork calls w.stop and waits for the work's end. It closes the connection if that takes longer
// than quick (longer if w is patient), or than slowest for a board that has reacted. silent says that
// the board's silence is why; what else used the connection then fails for the same reason.
func (l *link) endWork(w watch, done <-chan error, tick *time.Ticker, silent bool) {
	patience := quick
	if w.patient {
		patience = max(quick, min(l.limit, slowest/4))
	}
	go w.stop()
	for stopped := time.Now(); ; {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if waited := time.Since(stopped); waited > slowest || waited > patience && (w.reacted == nil || !w.reacted()) {
			if silent {
				l.silent.Store(true)
			}
			l.dropLink()
			<-done
			return
		}
	}
}

// dropLink closes the connection, without the SSH library's Close, which may wait for the board.
func (l *link) dropLink() {
	l.wire.Close()
	go l.Close()
}

// explainLoss adds an ErrSilent to err if Slipway closed the connection of a silent board.
func (l *link) explainLoss(err error) error {
	if err != nil && l.silent.Load() && !errors.Is(err, ErrSilent) {
		return fmt.Errorf("%w (%w)", silentError(min(goneAfter, l.limit)), err)
	}
	return err
}

// dialWithin is DialContext with the silence limit.
func (l *link) dialWithin(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.limit, silentError(l.limit))
	defer cancel()
	conn, err := l.DialContext(ctx, network, address)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return conn, err
}

// activity records when a program's streams last moved. While Slipway itself works, or waits for
// its own data, the board does not count as silent.
type activity struct {
	mu   sync.Mutex
	last time.Time
	ours int
	some int // bytes of output since last, too few to count
}

// countOwnWork adds n to the number of Slipway's own tasks that run. The silence begins again.
// While one runs, the board is not silent.
func (p *activity) countOwnWork(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ours += n
	p.last = time.Now()
}

// countOutput counts the writing of n bytes of output as own work until end is called. Every trickle
// bytes are a sign of life: a program that prints little is checked like a silent one.
func (p *activity) countOutput(n int) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := time.Now()
	p.ours++
	if p.some += n; p.some >= trickle {
		p.last, p.some = began, 0
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ours--
		p.last = p.last.Add(time.Since(began))
	}
}

// quietFor returns how long the streams have not moved. It is 0 while Slipway itself works.
func (p *activity) quietFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ours > 0 {
		return 0
	}
	return time.Since(p.last)
}

// watchedWriter is an output of a program.
type watchedWriter struct {
	to    io.Writer
	pulse *activity
	began *LimitedBuffer // keeps the beginning of the output; may be nil
}

// Write writes b to w.to as output of the program, and to w.began.
func (w watchedWriter) Write(b []byte) (int, error) {
	defer w.pulse.countOutput(len(b))()
	if w.began != nil {
		w.began.Write(b)
	}
	return w.to.Write(b)
}

// ReadFrom copies r to w.to, by 4 KiB if w.to is an io.ReaderFrom, and then flushes a pidLine.
func (w watchedWriter) ReadFrom(r io.Reader) (int64, error) {
	size := 32 << 10
	if _, small := w.to.(io.ReaderFrom); small {
		size = 4 << 10
	}
	if p, marked := w.to.(*pidLine); marked {
		defer p.flushHeld()
	}
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, size))
}

// watchedReader is a program's input. A Read is a sign of life: the program took the input before.
type watchedReader struct {
	from  io.Reader
	pulse *activity
}

// watchInput returns stdin as a watchedReader; nil for nil.
func watchInput(stdin io.Reader, p *activity) io.Reader {
	if stdin == nil {
		return nil
	}
	return watchedReader{stdin, p}
}

// Read reads input for the program. While it waits for that, the board is not silent.
func (r watchedReader) Read(b []byte) (int, error) {
	r.pulse.countOwnWork(1)
	defer r.pulse.countOwnWork(-1)
	return r.from.Read(b)
}

// checkProgramRuns checks, each time that a program has been silent for a third of the limit,
// whether it still runs on the board. If so, it marks activity. It returns when ended is closed.
func (l *link) checkProgramRuns(p *activity, pid *pidLine, ended <-chan struct{}) {
	tick := time.NewTicker(l.limit / 8)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		if p.quietFor() > l.limit/3 && l.isProgramRunning(pid.knownPID()) {
			p.countOwnWork(0)
		}
	}
}

// isProgramRunning reports whether the program with this pid, or its process group, still exists on
// the board. A board that refuses a further session counts as yes, because it answers. pid 0 is no.
func (l *link) isProgramRunning(pid int) bool {
	if pid <= 1 {
		return false
	}
	session, err := l.NewSession()
	if err != nil {
		return errors.As(err, new(*ssh.OpenChannelError)) // the board answers, and takes no more sessions
	}
	defer session.Close()
	said := shellEcho{word: rand.Text()}
	session.Stdout = &said
	number := strconv.Itoa(pid)
	err = session.Run("{ [ -d /proc/" + number + " ] || kill -0 -" + number + "; } && " + said.echoCommand())
	return err == nil && said.heard.Load()
}

// shellEcho finds out whether a shell has run echoCommand, by a word that is split in the command.
// A shell that only repeats the line does not print the joined word.
type shellEcho struct {
	word  string
	heard atomic.Bool
	seen  []byte
}

func (s *shellEcho) echoCommand() string { return "echo '" + s.word[:10] + "''" + s.word[10:] + "'" }

// Write sets heard if the word is in the first maxHeldBytes of output.
func (s *shellEcho) Write(b []byte) (int, error) {
	if free := maxHeldBytes - len(s.seen); free > 0 {
		s.seen = append(s.seen, b[:min(free, len(b))]...)
	}
	if strings.Contains(string(s.seen), s.word) {
		s.heard.Store(true)
	}
	return len(b), nil
}

// traffic watches an SFTP channel. A silent board takes no byte of a request, or owes an answer.
type traffic struct {
	mu          sync.Mutex
	last        time.Time
	writing     int
	owed        int
	requests    frames
	answers     frames
	someAnswers int // bytes of an unfinished answer
}

// trickle is how many bytes of an unfinished answer count as progress.
const trickle = 4 << 10

// quietFor returns how long the board has been silent. It is 0 if the board owes no answer.
func (t *traffic) quietFor() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writing == 0 && t.owed <= 0 {
		return 0
	}
	return time.Since(t.last)
}

// beginWrite counts a request that is being written. The silence starts if no answer was owed.
func (t *traffic) beginWrite() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writing == 0 && t.owed <= 0 {
		t.last = time.Now()
	}
	t.writing++
}

// endWrite subtracts the request of a beginWrite, which is written or has failed.
func (t *traffic) endWrite() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writing--
}

// countSent counts sent bytes as a sign of life. The board owes an answer for each whole packet.
func (t *traffic) countSent(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owed += t.requests.countPackets(b)
	t.last = time.Now()
}

// countReceived counts received bytes. Whole answers, or trickle bytes of one, are a sign of life.
func (t *traffic) countReceived(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.answers.countPackets(b)
	t.owed -= n
	if t.someAnswers += len(b); n > 0 || t.someAnswers >= trickle {
		t.last, t.someAnswers = time.Now(), 0
	}
}

// frames counts the SFTP packets in a byte stream. Each packet begins with its length.
type frames struct {
	head int    // bytes of the length read so far
	size uint32 // of the packet, after the length
	left uint32
}

// countPackets returns how many packets end in b, the next bytes of the stream.
func (f *frames) countPackets(b []byte) (n int) {
	for len(b) > 0 {
		if f.head < 4 {
			f.size = f.size<<8 | uint32(b[0])
			b = b[1:]
			if f.head++; f.head < 4 {
				continue
			}
			f.left = f.size
		}
		take := min(f.left, uint32(len(b)))
		b, f.left = b[take:], f.left-take
		if f.left == 0 {
			n++
			*f = frames{}
		}
	}
	return n
}

// trafficIn and trafficOut count the bytes that an SFTP channel receives and sends.
type trafficIn struct {
	io.Reader
	traffic *traffic
}

// Read reads from the board and counts the bytes as received.
func (r trafficIn) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.traffic.countReceived(b[:n])
	return n, err
}

type trafficOut struct {
	io.WriteCloser
	traffic *traffic
}

// channelPacket is how much of a request SSH puts into a packet.
const channelPacket = 32 << 10

// Write sends b in parts of one SSH packet: each that the board takes is a sign of life.
func (w trafficOut) Write(b []byte) (n int, err error) {
	w.traffic.beginWrite()
	defer w.traffic.endWrite()
	for n < len(b) && err == nil {
		var some int
		some, err = w.WriteCloser.Write(b[n:min(len(b), n+channelPacket)])
		w.traffic.countSent(b[n : n+some])
		n += some
	}
	return n, err
}

// CleanupContext returns a context for the clean-up after ctx, which works even if ctx has ended.
// It lasts for slowest; if ctx has ended, its silence limit is short.
func CleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	after := context.WithoutCancel(ctx)
	if ctx.Err() != nil {
		after = context.WithValue(after, hurryKey{}, true)
	}
	return context.WithTimeout(after, slowest)
}

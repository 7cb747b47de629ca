package boardssh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// Reboot runs "reboot" on the board and waits, up to timeout, for another boot id. An answer alone
// proves nothing, because the old system may give it. On success c uses the new connection.
// ErrHostKey and ErrLogin end the wait at once.
func (c *Conn) Reboot(ctx context.Context, timeout time.Duration) error {
	limit, cancel := context.WithTimeoutCause(ctx, timeout, errTimeUp)
	defer cancel()
	before, err := c.bootID(limit)
	if err != nil {
		return err
	}
	// The connection may end before the command does, so only a refusal counts.
	r, err := c.Run(limit, "reboot")
	if _, closed := errors.AsType[*ssh.OpenChannelError](err); closed || errors.Is(err, ErrShell) || errors.Is(err, ErrBecome) {
		return fmt.Errorf("reboot %s: %w", c.addr, err)
	}
	if err == nil && r.Status != 0 {
		return fmt.Errorf("reboot %s: status %d: %s", c.addr, r.Status, Printable(string(r.Stderr)))
	}
	began := time.Now()
	last := errors.New("it still runs the boot that it was to end")
	for limit.Err() == nil {
		_ = run.Sleep(limit, 5*askEvery)
		link, err := c.login.waitForLogin(limit, timeout-time.Since(began))
		if isPermanent(err) {
			return fmt.Errorf("after the reboot: %w", err)
		}
		if err != nil {
			last = err
			continue
		}
		fresh := &Conn{addr: c.addr, login: c.login, link: link}
		if id, err := fresh.bootID(limit); err == nil && id != before {
			c.adoptLink(link)
			return nil
		}
		link.Close()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("reboot %s: %w", c.addr, context.Cause(ctx))
	}
	return fmt.Errorf("%s is not back within %s of its reboot: %w", c.addr, timeout, last)
}

// adoptLink replaces c's connection by fresh and closes the old one. After Close, it closes fresh.
func (c *Conn) adoptLink(fresh *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil { // closed during the reboot
		fresh.Close()
		return
	}
	c.link.Close()
	c.link = fresh
}

var bootIDPattern = plaintext.Regexp(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// bootID reads the kernel's boot id, a UUID that is new at each boot.
func (c *Conn) bootID(ctx context.Context) (string, error) {
	r, err := c.Ask(ctx, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(r.Stdout))
	if r.Status != 0 || !bootIDPattern().MatchString(id) {
		return "", fmt.Errorf("boot id of %s: status %d: %s", c.addr, r.Status, Printable(id+" "+string(r.Stderr)))
	}
	return id, nil
}

// How WaitDial tries to connect. A port forwarder swallows what is sent to a board that is still
// starting, so a try that hangs must not hold up the next. But each costs the board a process, and
// a board that is up and slow must not be kept from answering by ever more questions: the next one
// beside a try that hangs waits twice as long as the one before.
const (
	askEvery     = 100 * time.Millisecond // after a try that failed at once
	hedgeFirst   = 750 * time.Millisecond // beside a try that hangs
	hedgeMost    = 8 * time.Second
	greetLimit   = 30 * time.Second
	attemptLimit = 60 * time.Second // from the greeting to the login
)

// WaitDial connects to a board that may still be starting, and asks as Dial does. Until timeout it
// retries errors that waiting can fix, not a wrong host key or refused login.
func WaitDial(ctx context.Context, a Address, timeout time.Duration) (*Conn, error) {
	return dialBy(ctx, a, true, timeout)
}

// waitForLogin connects and logs in, and retries errors that waiting can fix until timeout.
// ErrHostKey and ErrLogin end it at once.
func (l *login) waitForLogin(ctx context.Context, timeout time.Duration) (*link, error) {
	limit, cancel := context.WithTimeoutCause(ctx, timeout, errTimeUp)
	defer cancel()
	last := errors.New("no answer")
	for limit.Err() == nil {
		w, err := l.firstGreeting(limit, &last)
		if isPermanent(err) {
			return nil, fmt.Errorf("reach %s: %w", l.addr, err)
		}
		if err != nil {
			break
		}
		link, err := l.tryHandshake(limit, w)
		switch {
		case err == nil:
			return link, nil
		case isPermanent(err):
			return nil, err
		case limit.Err() == nil:
			last = err
			_ = run.Sleep(limit, askEvery)
		}
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for %s: %w", l.addr, context.Cause(ctx))
	}
	return nil, fmt.Errorf("%s did not answer within %s; last seen: %w", l.addr, timeout, last)
}

var errTimeUp = errors.New("time is up")

// tooLate is a context.DeadlineExceeded with a text of its own.
type tooLate string

func (e tooLate) Error() string { return string(e) }

func (tooLate) Unwrap() error { return context.DeadlineExceeded }

func tooLateError(limit time.Duration, next string) error {
	return tooLate(fmt.Sprintf("no answer within %s%s", limit, next))
}

// connectTimeoutError returns the error for a connection whose login took longer than the patience.
func (l *login) connectTimeoutError() error {
	return tooLateError(l.patience, fmt.Sprintf("; ConnectTimeout in ~/.ssh/config sets this limit, and %s may shorten it\nnext: ssh -v %s", SilenceVariable, l.sshArgs()))
}

// tryHandshake is handshake with the time limit attemptLimit.
func (l *login) tryHandshake(ctx context.Context, w *wire) (*link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, attemptLimit, tooLateError(attemptLimit, ""))
	defer cancel()
	return l.handshake(ctx, w)
}

// firstGreeting starts tries to connect until a server sends its greeting, an error is permanent,
// or ctx ends. A new try starts beside one that hangs. last gets the most recent error.
func (l *login) firstGreeting(ctx context.Context, last *error) (*wire, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other tries
	type result struct {
		w   *wire
		err error
	}
	results := make(chan result)
	try := func() {
		limit, stop := context.WithTimeoutCause(ctx, greetLimit, tooLateError(greetLimit, ""))
		defer stop()
		w, err := l.awaitGreeting(limit)
		select {
		case results <- result{w, err}:
		case <-ctx.Done():
			if w != nil {
				w.Close()
			}
		}
	}
	hedge := hedgeFirst
	for next := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(next):
			go try()
			next, hedge = hedge, min(2*hedge, hedgeMost)
		case r := <-results:
			if r.err == nil {
				return r.w, nil
			}
			if isPermanent(r.err) {
				return nil, r.err
			}
			// An error because the time is up says nothing about the board.
			if end, ok := ctx.Deadline(); !ok || time.Now().Before(end) {
				*last = r.err
			}
			next = askEvery
		}
	}
}

package boardssh

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// SFTP is a channel to the board's sftp-server. It has a receive window of its own on the board,
// and its bytes are SFTP packets, which package files writes and reads.
type SFTP struct {
	Answers  io.Reader
	Requests io.WriteCloser

	link    *link
	session *ssh.Session
	traffic traffic
	allowed atomic.Int64 // nanoseconds of silence that are allowed in addition to the limit
}

// OpenSFTP starts the board's sftp-server, by sudo if the connection uses it. It calls onOpen as
// soon as it has a session, which may be the only one that the board allows.
func (c *Conn) OpenSFTP(ctx context.Context, onOpen func()) (*SFTP, error) {
	link, err := c.currentLink()
	if err != nil {
		return nil, err
	}
	session, err := openSession(ctx, link)
	if err != nil {
		return nil, err
	}
	onOpen()
	s := &SFTP{link: link, session: session}
	if err = link.doWithin(ctx, func() { session.Close() }, func() error { return s.startServer(c.login) }); err != nil {
		s.Close()
		return nil, fmt.Errorf("start sftp: %w", err)
	}
	return s, nil
}

// startServer starts sftp, as a subsystem or by sudo, and connects Requests and Answers to it.
func (s *SFTP) startServer(l *login) error {
	in, err := s.session.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.session.StdoutPipe()
	if err != nil {
		return err
	}
	s.Answers, s.Requests = trafficIn{out, &s.traffic}, trafficOut{in, &s.traffic}
	if l.sudo != nil {
		return s.startServerBySudo(l, in)
	}
	if err := s.session.RequestSubsystem("sftp"); err != nil {
		return fmt.Errorf("%w; the board needs an sftp-server", err)
	}
	return nil
}

// serverScript runs the sftp-server from where distributions install it. An SSH server's own
// internal-sftp has the rights of the login user.
const serverScript = `for p in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/libexec/sftp-server /usr/lib/ssh/sftp-server /usr/lib/sftp-server /usr/lib/misc/sftp-server; do
	[ -x "$p" ] && exec "$p"
done
exit 127`

// startServerBySudo starts serverScript by sudo, and writes sudo's password to in when sudo asks.
func (s *SFTP) startServerBySudo(l *login, in io.Writer) error {
	program := l.newProgram(io.Discard)
	s.session.Stderr = program
	if err := s.session.Start(program.commandLine([]string{"sh", "-c", serverScript})); err != nil {
		return err
	}
	return program.passSudo(in)
}

// ServerVersion returns the version line of the board's SSH server.
func (s *SFTP) ServerVersion() string { return string(s.link.ServerVersion()) }

// Do calls work, which waits for answers of the sftp-server. It closes the session, which ends
// work, if ctx ends or if the board owes an answer and is silent for longer than the limit.
func (s *SFTP) Do(ctx context.Context, work func() error) error {
	return s.watch(ctx, func() time.Duration { return s.traffic.quietFor() - time.Duration(s.allowed.Load()) }, work)
}

// Receive is Do for work that receives a file. It passes work a writer that writes to Receive's own
// to. Only data that work writes is a sign of life.
func (s *SFTP) Receive(ctx context.Context, to io.Writer, work func(to io.Writer) error) error {
	moves := &activity{last: time.Now()}
	return s.watch(ctx, moves.quietFor, func() error { return work(watchedWriter{to: to, pulse: moves}) })
}

func (s *SFTP) watch(ctx context.Context, quiet func() time.Duration, work func() error) error {
	return s.link.watch(ctx, watch{quiet: quiet, stop: func() { s.session.Close() }}, work)
}

// AllowSilence lets the board be silent for extra time, until the caller calls end.
func (s *SFTP) AllowSilence(extra time.Duration) (end func()) {
	s.allowed.Add(int64(extra))
	return func() { s.allowed.Add(-int64(extra)) }
}

// Close closes the session in the background. It does not wait for the board.
func (s *SFTP) Close() { go s.session.Close() }

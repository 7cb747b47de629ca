package cache

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/websocket"
)

// bitbake's own servers answer within milliseconds; a probe that takes longer than
// this would make every build wait.
const (
	probeTime    = 10 * time.Second
	maxLineBytes = 32 << 10 // bitbake's own limit
	maxTalkBytes = 1 << 20
)

// lines is a connection that carries bitbake's protocols: the name and version of the
// protocol, an empty line, then one JSON value a line, either way.
type lines interface {
	send(line string) error
	receive() (string, error)
	Close() error
}

// converse says one thing after the other, and returns what is answered. An error that
// is io.EOF is how bitbake's servers say that they do not understand.
func converse(ctx context.Context, address, greeting string, say ...string) (heard []string, err error) {
	err = connected(ctx, address, greeting, func(c lines) error {
		for _, line := range say {
			if err := c.send(line); err != nil {
				return err
			}
			answer, err := c.receive()
			if err != nil {
				return err
			}
			heard = append(heard, answer)
		}
		return nil
	})
	return heard, err
}

// askAtOnce says everything and then hears the answers, so that a far server costs one
// journey. What is said must fit into the buffers of the connection.
func askAtOnce(ctx context.Context, address, greeting string, say []string) (heard []string, err error) {
	err = connected(ctx, address, greeting, func(c lines) error {
		for _, line := range say {
			if err := c.send(line); err != nil {
				return err
			}
		}
		for range say {
			answer, err := c.receive()
			if err != nil {
				return err
			}
			heard = append(heard, answer)
		}
		return nil
	})
	return heard, err
}

// connected connects, greets and talks.
func connected(ctx context.Context, address, greeting string, talk func(lines) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	c, err := dialLines(ctx, address)
	if err != nil {
		return lost(ctx, plain(err))
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	for _, line := range []string{greeting, ""} {
		if err := c.send(line); err != nil {
			return lost(ctx, err)
		}
	}
	if err := talk(c); err != nil {
		return lost(ctx, err)
	}
	return nil
}

// lost tells a server that hangs up from one that says nothing.
func lost(ctx context.Context, err error) error {
	var sys *net.OpError
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("does not answer within %v", probeTime)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &sys):
		return io.EOF
	}
	return err
}

// plain is a dial's error without Go's own words.
func plain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("nothing answers: %w", op.Err)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fmt.Errorf("does not answer as it should: %v", err) // whatever the system's words were, lost would take them for its own
}

func dialLines(ctx context.Context, address string) (lines, error) {
	if strings.Contains(address, "://") {
		return dialWebsocket(ctx, address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &stream{Conn: conn, in: bufio.NewReaderSize(conn, maxLineBytes)}, nil
}

// stream is the protocol on a TCP connection.
type stream struct {
	net.Conn
	in *bufio.Reader
}

func (s *stream) send(line string) error {
	_, err := io.WriteString(s.Conn, line+"\n")
	return err
}

func (s *stream) receive() (string, error) {
	line, err := s.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("answers with a line longer than %d bytes", maxLineBytes)
	}
	return strings.TrimSuffix(string(line), "\n"), err
}

// frames is the protocol on a websocket, where a message is a line.
type frames struct{ *websocket.Conn }

func dialWebsocket(ctx context.Context, address string) (lines, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	scheme := map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	config, err := websocket.NewConfig(address, scheme+"://"+u.Host)
	if err != nil {
		return nil, err
	}
	conn, err := dialHTTP(ctx, scheme, u)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	client, err := websocket.NewClient(config, &limited{Conn: conn, left: maxTalkBytes})
	if err != nil {
		conn.Close()
		return nil, err
	}
	client.MaxPayloadBytes = maxLineBytes
	return frames{client}, nil
}

func dialHTTP(ctx context.Context, scheme string, u *url.URL) (net.Conn, error) {
	port := u.Port()
	if port == "" {
		port = scheme // it is a service's name too
	}
	address := net.JoinHostPort(u.Hostname(), port)
	if scheme == "https" {
		return (&tls.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// limited is a connection that is read so far and no further: a websocket's handshake
// would take headers without end.
type limited struct {
	net.Conn
	left int
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("answers more than %d bytes", maxTalkBytes)
	}
	n, err := l.Conn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

func (f frames) send(line string) error { return websocket.Message.Send(f.Conn, line) }

func (f frames) receive() (string, error) {
	var line string
	err := websocket.Message.Receive(f.Conn, &line)
	return line, err
}

// answer is what of a server's answers a probe looks at.
type answer struct {
	Alive       bool            `json:"alive"`
	Requests    json.RawMessage `json:"requests"`
	Value       json.RawMessage `json:"value"`
	InvokeError *struct {
		Message string `json:"message"`
	} `json:"invoke-error"`
}

func parseAnswer(line string) (answer, error) {
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		return a, fmt.Errorf("answers %.40q, which is not its protocol", line)
	}
	if a.InvokeError != nil {
		return a, fmt.Errorf("refuses: %.100q", a.InvokeError.Message)
	}
	return a, nil
}

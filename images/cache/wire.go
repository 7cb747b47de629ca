package cache

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// bitbake's own servers answer within milliseconds; a probe that takes longer than
// this would make every build wait.
const (
	probeTime    = 10 * time.Second
	maxLineBytes = 32 << 10 // bitbake's own limit
	maxTalkBytes = 1 << 20
)

// lineConn is a connection that carries bitbake's protocols: the name and version of
// the protocol, an empty line, then one JSON value a line in each direction.
type lineConn interface {
	send(line string) error
	receive() (string, error)
	Close() error
}

// queryInOrder sends each line after the answer to the one before. bitbake's servers close
// the connection, which is io.EOF, if they do not understand a line.
func queryInOrder(ctx context.Context, address, greeting string, say ...string) (heard []string, err error) {
	err = withConn(ctx, address, greeting, func(c lineConn) error {
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

// queryAtOnce sends all lines, then reads the answers, so that a distant server costs one
// round trip. The lines must fit into the buffers of the connection.
func queryAtOnce(ctx context.Context, address, greeting string, say []string) (heard []string, err error) {
	err = withConn(ctx, address, greeting, func(c lineConn) error {
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

// withConn connects, sends the greeting, then calls talk.
func withConn(ctx context.Context, address, greeting string, talk func(lineConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	c, err := dialLines(ctx, address)
	if err != nil {
		return explainLoss(ctx, plainDialError(err))
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	for _, line := range []string{greeting, ""} {
		if err := c.send(line); err != nil {
			return explainLoss(ctx, err)
		}
	}
	if err := talk(c); err != nil {
		return explainLoss(ctx, err)
	}
	return nil
}

// explainLoss tells a server that closes the connection from one that does not answer.
func explainLoss(ctx context.Context, err error) error {
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

// plainDialError returns a dial's error without Go's own words.
func plainDialError(err error) error {
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

func dialLines(ctx context.Context, address string) (lineConn, error) {
	if strings.Contains(address, "://") {
		return dialWebsocket(ctx, address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &tcpConn{Conn: conn, in: bufio.NewReaderSize(conn, maxLineBytes)}, nil
}

// tcpConn is the protocol on a TCP connection.
type tcpConn struct {
	net.Conn
	in *bufio.Reader
}

func (s *tcpConn) send(line string) error {
	_, err := io.WriteString(s.Conn, line+"\n")
	return err
}

func (s *tcpConn) receive() (string, error) {
	line, err := s.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("answers with a line longer than %d bytes", maxLineBytes)
	}
	return strings.TrimSuffix(string(line), "\n"), err
}

// websocketConn is the protocol on a websocket, where a message is a line. Its context
// is that of the whole conversation.
type websocketConn struct {
	ctx context.Context
	*websocket.Conn
}

func dialWebsocket(ctx context.Context, address string) (lineConn, error) {
	transport := &http.Transport{DialContext: dialLimited}
	defer transport.CloseIdleConnections() // a websocket's connection is no idle one
	conn, res, err := websocket.Dial(ctx, address, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil && res != nil && res.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("HTTP status %d instead of a websocket", res.StatusCode)
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(maxLineBytes)
	return websocketConn{ctx, conn}, nil
}

func dialLimited(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &limitedConn{Conn: conn, left: maxTalkBytes}, nil
}

// limitedConn is a connection that stops reading at a limit.
type limitedConn struct {
	net.Conn
	left int
}

func (l *limitedConn) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, fmt.Errorf("answers more than %d bytes", maxTalkBytes)
	}
	n, err := l.Conn.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

func (f websocketConn) send(line string) error {
	return f.Write(f.ctx, websocket.MessageText, []byte(line))
}

func (f websocketConn) receive() (string, error) {
	_, data, err := f.Read(f.ctx)
	if websocket.CloseStatus(err) != -1 {
		return "", io.EOF // the server closed it in order
	}
	return string(data), err
}

// Close does not wait for the server's goodbye.
func (f websocketConn) Close() error { return f.CloseNow() }

// answer holds the fields of a server's answer that a probe reads.
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

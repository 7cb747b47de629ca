package bench

import (
	"net"
	"sync/atomic"
	"time"
)

// line forwards connections to a port of this machine. It delays bytes and counts them. Only the
// latency of a slow line is simulated: the rate and TCP's slow start are those of the loopback.
type line struct {
	net.Listener
	to      atomic.Int64 // the port
	carried atomic.Int64
}

// listenLine opens a listener. A goroutine forwards its connections, delayed, to l.to, first port.
func listenLine(port int, delay time.Duration) (*line, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{Listener: listener}
	l.to.Store(int64(port))
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(near, delay)
		}
	}()
	return l, nil
}

func (l *line) port() int { return l.Addr().(*net.TCPAddr).Port }

// pass forwards one connection, both ways, after the time of a handshake over the line.
func (l *line) pass(near net.Conn, delay time.Duration) {
	defer near.Close()
	time.Sleep(2 * delay) // the handshake
	far, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(l.to.Load())})
	if err != nil {
		return
	}
	defer far.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		l.carry(far, near.(*net.TCPConn), delay)
	}()
	l.carry(near.(*net.TCPConn), far, delay)
	<-sent
}

// carry copies and counts bytes, with the delay, until from ends. Then it calls to.CloseWrite.
func (l *line) carry(to, from *net.TCPConn, delay time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	underway := make(chan chunk, 256)
	go func() {
		defer close(underway)
		buffer := make([]byte, 256<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				underway <- chunk{time.Now().Add(delay), append([]byte(nil), buffer[:n]...)}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range underway {
		time.Sleep(time.Until(c.due))
		l.carried.Add(int64(len(c.data)))
		if _, err := to.Write(c.data); err != nil {
			from.Close()
		}
	}
	_ = to.CloseWrite() // the other direction can go on
}

package target

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pidLine finds the program's process id, which its shell prints as a marked
// line on standard error before it becomes the program. SSH's own signals will
// not do: OpenSSH refuses them for root, and a program whose connection goes away
// is not ended by that.
type pidLine struct {
	mark string
	out  io.Writer // gets everything but the line
	over func()    // is told that there will be no more; nil: nobody is

	mu   sync.Mutex
	held []byte // what came before the line was seen
	done bool
	pid  int
}

// Login scripts may print something first, but not without end.
const maxHeldBytes = 8 << 10

// prefix is fixed text but for the mark, which is ours.
func (p *pidLine) prefix() string { return "echo '" + p.mark + "'$$ >&2; exec " }

func (p *pidLine) Write(b []byte) (int, error) {
	p.mu.Lock()
	if p.done {
		p.mu.Unlock() // who asks for the number does not wait for a slow reader
		return p.out.Write(b)
	}
	defer p.mu.Unlock()
	p.held = append(p.held, b...)
	before, after, found := bytes.Cut(p.held, []byte(p.mark))
	number, rest, whole := bytes.Cut(after, []byte("\n"))
	switch {
	case found && whole:
		p.pid, _ = strconv.Atoi(strings.TrimSpace(string(number)))
		p.held = append(bytes.Clone(before), rest...)
		p.release()
	case len(p.held) > maxHeldBytes:
		p.release()
	}
	return len(b), nil
}

// ReadFrom is as that of capped.
func (p *pidLine) ReadFrom(r io.Reader) (int64, error) { return drain(p, r) }

func (p *pidLine) release() {
	p.done = true
	p.out.Write(p.held)
	p.held = nil
}

// flush passes on what was held back where the line never came.
func (p *pidLine) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.release()
	}
	if p.over != nil {
		p.over()
	}
}

// soon is the number, for which it waits a moment: the program's output may have come
// before it.
func (p *pidLine) soon() int {
	for end := time.Now().Add(quick); p.number() == 0 && time.Now().Before(end); {
		time.Sleep(quick / 50)
	}
	return p.number()
}

func (p *pidLine) number() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

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
	before, after, found := bytes.Cut(p.held, []byte(p.mark))
	number, rest, whole := bytes.Cut(after, []byte("\n"))
	switch {
	case found && whole:
		p.pid, _ = strconv.Atoi(strings.TrimSpace(string(number)))
		p.held = append(bytes.Clone(before), rest...)
		p.passHeld()
	case len(p.held) > maxHeldBytes:
		p.passHeld()
	}
	return len(b), nil
}

// ReadFrom is as that of LimitedBuffer.
func (p *pidLine) ReadFrom(r io.Reader) (int64, error) { return copyByHand(p, r) }

func (p *pidLine) passHeld() {
	p.done = true
	p.out.Write(p.held)
	p.held = nil
}

// flushHeld passes on what was held back if the line never came.
func (p *pidLine) flushHeld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.passHeld()
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

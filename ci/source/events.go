package source

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// testEvent is one line of go test -json.
type testEvent struct {
	Time        time.Time
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// A test may print anything, also without ever ending a line.
const maxEventBytes = 1 << 20

// eventReader takes what go test -json prints, in pieces of any size, and calls
// each with every event and noise with every line that is none.
type eventReader struct {
	each   func(testEvent)
	noise  func(line string)
	events int
	open   []byte
	cut    bool
}

func (r *eventReader) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		r.keep(line)
		if !whole {
			return n, nil
		}
		r.flush()
		p = rest
	}
}

func (r *eventReader) keep(part []byte) {
	if free := maxEventBytes - len(r.open); len(part) > free {
		part, r.cut = part[:free], true
	}
	r.open = append(r.open, part...)
}

// flush ends the open line.
func (r *eventReader) flush() {
	line, cut := bytes.TrimSpace(r.open), r.cut
	r.open, r.cut = r.open[:0], false
	if len(line) == 0 {
		return
	}
	var e testEvent
	if cut || line[0] != '{' || json.Unmarshal(line, &e) != nil || e.Action == "" {
		r.noise(string(line[:min(len(line), maxLineBytes)]))
		return
	}
	r.events++
	r.each(e)
}

const (
	maxLines     = 60
	maxLineBytes = 2048
)

// lastLines keeps the end of what is written to it.
type lastLines struct {
	lines   []string
	open    []byte
	dropped int
}

func (l *lastLines) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n':
			l.push()
		case len(l.open) < maxLineBytes:
			l.open = append(l.open, b)
		}
	}
	return len(p), nil
}

func (l *lastLines) push() {
	l.lines = append(l.lines, string(l.open))
	l.open = l.open[:0]
	if len(l.lines) > maxLines {
		l.lines = l.lines[1:]
		l.dropped++
	}
}

func (l *lastLines) all() []string {
	if len(l.open) > 0 {
		l.push()
	}
	return l.lines
}

func (l *lastLines) String() string { return strings.Join(l.all(), "\n") }

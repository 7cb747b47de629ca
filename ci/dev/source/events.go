package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// testEvent is one line of go test -json.
type testEvent struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// A test may print anything, even an endless line.
const maxEventBytes = 1 << 20

// eventReader reads the output of go test -json, in pieces of any size. It calls each with
// every event, and noise with every other line.
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
		r.keepPart(line)
		if !whole {
			return n, nil
		}
		r.flush()
		p = rest
	}
}

func (r *eventReader) keepPart(part []byte) {
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

// sharedFile is written by several lineWriters.
type sharedFile struct {
	*os.File
	mu sync.Mutex
}

// lineWriter writes whole lines to a file, so that those of others stand between them and
// not within. A line without an end is written in pieces.
type lineWriter struct {
	file *sharedFile // nil: nothing is written
	open []byte
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.open = append(l.open, p...)
	whole := bytes.LastIndexByte(l.open, '\n') + 1
	if whole == 0 && len(l.open) > maxEventBytes {
		whole = len(l.open)
	}
	if err := l.write(l.open[:whole]); err != nil {
		return 0, err
	}
	l.open = append(l.open[:0], l.open[whole:]...)
	return len(p), nil
}

func (l *lineWriter) flush() error { return l.write(l.open) }

func (l *lineWriter) write(p []byte) error {
	if l.file == nil || len(p) == 0 {
		return nil
	}
	l.file.mu.Lock()
	defer l.file.mu.Unlock()
	_, err := l.file.Write(p)
	return err
}

const (
	maxFirst     = 40
	maxLast      = 60
	maxLineBytes = 2048
)

// excerpt keeps the beginning and the end of what is written to it: the first lines explain
// a race or a panic, the last ones most other failures.
type excerpt struct {
	first, last []string
	open        []byte
	dropped     int
}

func (e *excerpt) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n':
			e.pushLine()
		case len(e.open) < maxLineBytes:
			e.open = append(e.open, b)
		}
	}
	return len(p), nil
}

func (e *excerpt) pushLine() {
	line := string(e.open)
	e.open = e.open[:0]
	if len(e.first) < maxFirst {
		e.first = append(e.first, line)
		return
	}
	e.last = append(e.last, line)
	if len(e.last) > maxLast {
		e.last = e.last[1:]
		e.dropped++
	}
}

func (e *excerpt) all() []string {
	if len(e.open) > 0 {
		e.pushLine()
	}
	if e.dropped == 0 {
		return slices.Concat(e.first, e.last)
	}
	return slices.Concat(e.first, []string{fmt.Sprintf("(%d lines between these are in events.jsonl)", e.dropped)}, e.last)
}

func (e *excerpt) String() string { return strings.Join(e.all(), "\n") }

package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// fileForm begins a SLIPWAY_PROGRESS that names a file.
const fileForm = "json:"

// Check returns an error if SLIPWAY_PROGRESS has a value that ForOutput does not know, or if the
// file that it names cannot be opened.
func Check() error {
	form := os.Getenv("SLIPWAY_PROGRESS")
	if name, ok := strings.CutPrefix(form, fileForm); ok && name != "" {
		s, err := toFile(name)
		if err == nil {
			s.Close()
		}
		return err
	}
	if form != "" && form != "json" {
		return fmt.Errorf("SLIPWAY_PROGRESS=%s: want json, json:FILE, or nothing\nnext: unset SLIPWAY_PROGRESS", plaintext.Quote(form))
	}
	return nil
}

// ForOutput returns f's sink: JSON lines for SLIPWAY_PROGRESS=json, bars on a terminal, or lines.
// For SLIPWAY_PROGRESS=json:FILE it is FILE's, and nothing is written to f.
func ForOutput(f *os.File) (Sink, error) {
	form := os.Getenv("SLIPWAY_PROGRESS")
	name, ok := strings.CutPrefix(form, fileForm)
	switch {
	case ok:
		return toFile(name)
	case form == "json":
		return JSON(f), nil
	case plaintext.Redraws(f):
		return Bars(f), nil
	default:
		return Lines(f), nil
	}
}

// toFile returns a sink that appends every event to a file, as a line of JSON.
func toFile(name string) (Sink, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("SLIPWAY_PROGRESS: %w\nnext: ls -la %s", err, plaintext.Quote(localfile.NearestFolder(name)))
	}
	return fileSink{f}, nil
}

type fileSink struct{ *os.File }

// Event makes a new encoder, because one that failed to write, as on a full disk, writes no more.
func (s fileSink) Event(e Event) { _ = json.NewEncoder(s.File).Encode(e) }
func (s fileSink) Close()        { _ = s.File.Close() }

// JSON returns a sink that writes every event as a line of JSON.
func JSON(w io.Writer) Sink { return jsonSink{json.NewEncoder(w)} }

type jsonSink struct{ *json.Encoder }

func (s jsonSink) Event(e Event) { _ = s.Encode(e) }
func (s jsonSink) Close()        {}

// heartbeat is how often Lines writes a line for each step that is still running.
const heartbeat = 20 * time.Second

// Lines returns a sink that writes a line when a step ends, and at each heartbeat while it runs.
func Lines(w io.Writer) Sink {
	s := &lineSink{w: w, open: map[string]running{}, stop: make(chan struct{})}
	go s.reportOpenSteps(heartbeat)
	return s
}

type lineSink struct {
	w    io.Writer
	mu   sync.Mutex
	open map[string]running
	stop chan struct{}
}

type running struct {
	began time.Time
	last  Event
}

// Event remembers a running step, or writes the line of a step that has ended.
func (s *lineSink) Event(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.State == Running {
		began := e.Time.Add(-elapsedTime(e))
		s.open[e.Step] = running{began, e}
		return
	}
	delete(s.open, e.Step)
	fmt.Fprintln(s.w, endLine(e, s.w))
}

// hide forgets a running step without writing a line.
func (s *lineSink) hide(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, step)
}

// reportOpenSteps writes a line for each open step at every interval, until the sink is closed.
func (s *lineSink) reportOpenSteps(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case now := <-t.C:
			s.mu.Lock()
			for name, r := range s.open {
				fmt.Fprintf(s.w, "  ...    %-18s %6.1fs  %s\n", name, now.Sub(r.began).Seconds(), strings.TrimSpace(CountText(r.last)+plaintext.OneLine(r.last.Detail)))
			}
			s.mu.Unlock()
		}
	}
}

func (s *lineSink) Close() { close(s.stop) }

// stateColours are the colours of the states in which a step ends.
var stateColours = map[State]plaintext.Colour{Done: plaintext.Good, Cached: plaintext.Good, Failed: plaintext.Bad}

// endLine returns an ended step's line, cut to w's width, without an error that the command prints.
func endLine(e Event, w io.Writer) string {
	head := fmt.Sprintf("%-18s %6.1fs  ", e.Step, elapsedTime(e).Seconds())
	state := fmt.Sprintf("%-6s", e.State)
	detail := plaintext.OneLine(plaintext.FirstLine(plaintext.Either(e.Returned, "", e.Detail)))
	if room := plaintext.Width(w, 0) - len([]rune(head)) - len(state) - 4; room > 0 {
		detail = plaintext.Shorten(detail, room)
	}
	return "  " + stateColours[e.State].On(w, state) + " " + head + detail
}

// CountText returns a step's count and total, with the speed and the time left for bytes, and two
// blanks. It returns "" if both are 0.
func CountText(e Event) string {
	if e.Count == 0 && e.Total == 0 {
		return ""
	}
	shown := func(n int64) string { return fmt.Sprint(n) }
	if size := max(e.Count, e.Total); e.Unit == Bytes && size < 10<<20 {
		shown = func(n int64) string { return fmt.Sprintf("%d KiB", n>>10) }
	} else if e.Unit == Bytes {
		shown = func(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
	}
	text := shown(e.Count)
	if e.Total > 0 {
		text = strings.TrimSuffix(strings.TrimSuffix(text, " KiB"), " MiB") + " of " + shown(e.Total)
	}
	if e.Unit == Bytes && e.PerSecond > 0 {
		text += ", " + shown(e.PerSecond) + "/s"
	}
	if left := e.Total - e.Count; e.Unit == Bytes && e.PerSecond > 0 && left > 0 {
		text += ", " + (time.Duration(left/e.PerSecond) * time.Second).String() + " left"
	}
	return text + "  "
}

func elapsedTime(e Event) time.Duration { return time.Duration(e.ElapsedMS) * time.Millisecond }

// Bars returns a sink that draws a bar for every running step, or a spinner if the length is
// unknown. Above them it prints a line for each step that ended.
func Bars(w io.Writer) Sink {
	return &barSink{w: w, bars: map[string]*bar{}}
}

type barSink struct {
	w        io.Writer
	progress *mpb.Progress // nil while there is no bar
	bars     map[string]*bar
}

type bar struct {
	*mpb.Bar
	mu     sync.Mutex
	detail string
	count  string
	room   func() int // for the detail, in characters
}

// setTexts stores the step's detail and count for shownDetail and shownCount.
func (b *bar) setTexts(e Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detail, b.count = plaintext.OneLine(plaintext.FirstLine(e.Detail)), CountText(e)
}

// shownCount returns the step's count for mpb.
func (b *bar) shownCount(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

// shownDetail returns the step's detail for mpb, cut to the room beside the bar.
func (b *bar) shownDetail(decor.Statistics) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return " " + plaintext.Shorten(b.detail, b.room())
}

// The width of a line without its detail, in characters.
const (
	besideSpinner = 33 // name, spinner, time
	besideBar     = 86 // name, bar, counts, time
)

// Event updates the step's bar, or replaces it by a line if the step has ended.
func (s *barSink) Event(e Event) {
	b := s.bars[e.Step]
	if b == nil {
		b = s.addBar(e)
	}
	b.setTexts(e)
	if e.State == Running {
		if e.Total > 0 {
			b.SetTotal(e.Total, false)
		}
		b.SetCurrent(e.Count)
		return
	}
	s.drop(e.Step)
	if len(s.bars) > 0 {
		fmt.Fprintln(s.progress, endLine(e, s.w)) // drawn above the others
		return
	}
	s.endDrawing()
	fmt.Fprintln(s.w, endLine(e, s.w))
}

// drop removes a step's bar, which must exist, and waits until it is gone.
func (s *barSink) drop(step string) {
	b := s.bars[step]
	delete(s.bars, step)
	b.Abort(true)
	b.Wait()
}

// hide removes a step's bar without writing a line.
func (s *barSink) hide(step string) {
	s.drop(step)
	if len(s.bars) == 0 {
		s.endDrawing()
	}
}

// endDrawing waits until the drawing has ended, which continues for a moment after the last bar.
// Otherwise it would overwrite the command's next output.
func (s *barSink) endDrawing() {
	if s.progress != nil {
		s.progress.Wait()
		s.progress = nil
	}
}

// addBar adds a bar for a step, or a spinner if its total is 0.
func (s *barSink) addBar(e Event) *bar {
	if s.progress == nil {
		out := s.w
		if plaintext.Width(s.w, 0) == 0 { // such as a serial console, on whose 0 rows mpb draws nothing
			out = struct{ io.Writer }{s.w} // mpb takes 80 columns
		}
		s.progress = mpb.New(mpb.WithOutput(out), mpb.WithAutoRefresh(), mpb.ForceTTY())
	}
	beside, style, width := besideBar, mpb.BarFillerBuilder(mpb.BarStyle()), 16
	if e.Total == 0 {
		beside, style, width = besideSpinner, mpb.SpinnerStyle().PositionLeft(), 2
	}
	b := &bar{room: func() int { return max(plaintext.Width(s.w, 80)-beside, 0) }}
	name := decor.Name(fmt.Sprintf("  %-18s ", e.Step))
	detail := decor.Any(b.shownDetail)
	took := decor.Elapsed(decor.ET_STYLE_GO, decor.WC{W: 6})
	b.Bar = s.progress.New(0, style, mpb.BarWidth(width), // a bar that is made with a total keeps it
		mpb.PrependDecorators(name), mpb.AppendDecorators(decor.Any(b.shownCount), took, detail))
	s.bars[e.Step] = b
	return b
}

// Close removes all bars without writing lines.
func (s *barSink) Close() {
	for _, b := range s.bars {
		b.Abort(true)
	}
	s.endDrawing()
}

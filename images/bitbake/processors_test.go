package bitbake

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, stat string
		want       counters
		found      bool
	}{
		{"two processors", "cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5 6\n", counters{processors: 2, busy: 27, disk: 5, all: 72}, true},
		{"an old kernel", "cpu 1 2 3 40 5\n", counters{busy: 6, disk: 5, all: 51}, true},
		{"too short", "cpu 1 2 3 40\n", counters{busy: 6, all: 46}, false},
		{"no number", "cpu 1 2 x 40 5 6 7 8\n", counters{}, false},
		{"nothing", "", counters{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, found := parseStat([]byte(tt.stat))
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(counters{})); diff != "" || found != tt.found {
				t.Errorf("parseStat(%q) found %v; want %v (-want +got)\n%s", tt.stat, found, tt.found, diff)
			}
		})
	}
}

func TestParsePressure(t *testing.T) {
	for text, want := range map[string]int64{
		"some avg10=45.07 avg60=49.25 avg300=50.16 total=8830822027\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n": 8830822027,
		"": -1, "some total=x\n": -1, "some total=-4\n": -1, "some total=99999999999999999999\n": -1,
	} {
		if got := parsePressure([]byte(text)); got != want {
			t.Errorf("parsePressure(%q) = %d; want %d", text, got, want)
		}
	}
}

// newSampler returns a sampler of one sample a second, and what it is told after a time
// with 2 processors of 100 ticks a second, of which so many percent are busy.
func newSampler() (s *sampler, after func(d time.Duration, busyPct uint64)) {
	start := time.Now()
	now := counters{at: start}
	s = &sampler{start: start, last: now, load: Load{EveryMS: 1000}}
	return s, func(d time.Duration, busyPct uint64) {
		ticks := uint64(d.Milliseconds() / 10 * 2)
		now.at = now.at.Add(d)
		now.all, now.busy, now.disk = now.all+ticks, now.busy+ticks*busyPct/100, now.disk+ticks/10
		now.waitsUS += d.Microseconds() / 4
		s.add(now)
	}
}

func TestSampler(t *testing.T) {
	s, after := newSampler()
	after(time.Second, 50)
	after(500*time.Millisecond, 90) // half a step
	after(500*time.Millisecond, 10)
	after(3*time.Second, 80) // late
	want := Load{EveryMS: 1000, Busy: []int{50, 50, 80, 80, 80}, Disk: []int{10, 10, 10, 10, 10}, Waits: []int{25, 25, 25, 25, 25}}
	if diff := cmp.Diff(want, s.load); diff != "" {
		t.Errorf("load (-want +got)\n%s", diff)
	}
	s.add(counters{at: s.last.at.Add(time.Second), waitsUS: -1}) // counters that went back, a file that went away
	if got := s.load; got.Busy[5] != 0 || got.Waits != nil {
		t.Errorf("after counters that went back: %d %% busy, waits %v; want 0 and none", got.Busy[5], got.Waits)
	}
}

// A build of any length, on a machine that sleeps too, has a record of bounded size, and
// each sample stays at its time.
func TestSamplerIsBounded(t *testing.T) {
	s, after := newSampler()
	for range 1000 {
		after(time.Second, 100)
	}
	after(24*time.Hour, 0)
	for range 1000 {
		after(time.Second, 50)
	}
	l := s.load
	if n := len(l.Busy); n > maxSamples || n < maxSamples/2 || len(l.Disk) != n || len(l.Waits) != n {
		t.Errorf("%d, %d and %d samples; want %d to %d of each", n, len(l.Disk), len(l.Waits), maxSamples/2, maxSamples)
	}
	if covered := int64(len(l.Busy)) * l.EveryMS; covered < 88_000_000 || covered > 88_400_000 {
		t.Errorf("the samples cover %d ms; want 88400000", covered)
	}
	if first, last := l.Busy[0], l.Busy[len(l.Busy)-1]; first != 100 || last != 50 {
		t.Errorf("the first sample is %d %%, the last %d %%; want 100 and 50", first, last)
	}
}

// The real machine's load is recorded until the context ends.
func TestLoadOfThisMachine(t *testing.T) {
	if _, found := readCounters(); !found {
		t.Skip("this machine has no /proc/stat")
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := startLoad(ctx, time.Now().Add(-time.Second), 10*time.Millisecond)
	time.Sleep(100 * time.Millisecond)
	cancel()
	l := wait()
	if l == nil || len(l.Busy) == 0 || len(l.Busy) > 50 || l.Processors < 1 || l.StartMS < 1000 {
		t.Errorf("startLoad = %+v; want about 10 samples", l)
	}
}

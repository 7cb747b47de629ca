package bitbake

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"slipway/layers/localfile"
)

const (
	loadEvery = time.Second
	// maxSamples bounds a record of any length. At that many, each two become one and
	// the time between them doubles: 20 minutes have one a second, a day one in 128.
	maxSamples = 1200
	maxStat    = 1 << 20 // /proc/stat has a line for each processor and a long one of interrupts
)

// Load is what the processors of the whole machine did during a build, other programs
// included. Each sample is a mean over EveryMS, in percent.
type Load struct {
	Processors int   `json:"processors"`
	StartMS    int64 `json:"startMs"` // since the build started
	EveryMS    int64 `json:"everyMs"`
	Busy       []int `json:"busyPct"`
	Disk       []int `json:"waitsForDiskPct"`
	// Waits is how long runnable processes waited, absent without /proc/pressure/cpu.
	Waits []int `json:"waitsForProcessorPct,omitempty"`
}

// meanBusy returns how busy the processors were on average, in percent.
func (l *Load) meanBusy() int {
	sum := 0
	for _, b := range l.Busy {
		sum += b
	}
	return (sum + len(l.Busy)/2) / max(len(l.Busy), 1)
}

// fact returns the number of processors and their mean load as text, "" if no load was recorded.
func (l *Load) fact() string {
	if l == nil || len(l.Busy) == 0 {
		return ""
	}
	return fmt.Sprintf("%d, %d %% busy on average", l.Processors, l.meanBusy())
}

// counters are the kernel's sums since it started.
type counters struct {
	at         time.Time
	processors int
	busy, disk uint64 // in ticks
	all        uint64
	waitsUS    int64 // -1 if the kernel does not report it
}

// readCounters reads the kernel's counters from /proc. It returns false if there are none.
func readCounters() (counters, bool) {
	stat, err := localfile.Read("/proc/stat", maxStat)
	if err != nil {
		return counters{}, false
	}
	c, found := parseStat(stat)
	c.at, c.waitsUS = time.Now(), -1
	if text, err := localfile.Read("/proc/pressure/cpu", maxStat); err == nil {
		c.waitsUS = parsePressure(text)
	}
	return c, found
}

// parseStat reads from /proc/stat the number of processors, and how long they were busy, waited for
// disks (iowait), and ran in all, idle included. It skips guests' time, a part of user.
func parseStat(stat []byte) (c counters, found bool) {
	for line := range bytes.Lines(stat) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || !bytes.HasPrefix(fields[0], []byte("cpu")) {
			continue
		}
		if len(fields[0]) > len("cpu") {
			c.processors++
			continue
		}
		for i, field := range fields[1:min(len(fields), 9)] {
			n, err := strconv.ParseUint(string(field), 10, 64)
			if err != nil {
				return counters{}, false
			}
			c.all += n
			switch i {
			case 3: // idle
			case 4: // iowait
				c.disk += n
			default:
				c.busy += n
			}
		}
		found = len(fields) > 5
	}
	return c, found
}

// parsePressure reads the microseconds in which some process waited, -1 if the text has none.
func parsePressure(text []byte) int64 {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, total, found := bytes.Cut(line, []byte("total="))
	n, err := strconv.ParseInt(string(total), 10, 64)
	if !found || err != nil || n < 0 {
		return -1
	}
	return n
}

// sampler adds a sample to a Load for each time step.
type sampler struct {
	load  Load
	start time.Time
	last  counters
}

// add adds the samples up to the time of now. Steps that were missed, as on a machine that slept,
// get the mean over all steps since the last sample. It merges samples when there are too many, and
// drops all Waits if they are missing once.
func (s *sampler) add(now counters) {
	if s.steps(now.at) <= len(s.load.Busy) {
		return
	}
	all := float64(now.all) - float64(s.last.all)
	busy := percent(float64(now.busy)-float64(s.last.busy), all)
	disk := percent(float64(now.disk)-float64(s.last.disk), all)
	waits := percent(float64(now.waitsUS-s.last.waitsUS), float64(now.at.Sub(s.last.at).Microseconds()))
	known := now.waitsUS >= 0 && s.last.waitsUS >= 0 && len(s.load.Waits) == len(s.load.Busy)
	s.last = now
	for s.steps(now.at) > len(s.load.Busy) {
		if len(s.load.Busy) >= maxSamples {
			s.load.halve()
			continue
		}
		s.load.Busy, s.load.Disk = append(s.load.Busy, busy), append(s.load.Disk, disk)
		if known {
			s.load.Waits = append(s.load.Waits, waits)
		}
	}
	if !known { // a part of them would be shown at the wrong times
		s.load.Waits = nil
	}
}

// steps returns how many whole time steps lie between the start and at.
func (s *sampler) steps(at time.Time) int {
	return int(at.Sub(s.start).Milliseconds() / s.load.EveryMS)
}

// percent returns part of all, 0 to 100. A part below 0 is 0: the kernel's wait for disks can fall.
func percent(part, all float64) int {
	if all <= 0 || part <= 0 {
		return 0
	}
	return int(min(100*part/all, 100) + 0.5)
}

// halve replaces each two samples by their mean, drops an odd last one, and doubles the interval.
func (l *Load) halve() {
	l.EveryMS *= 2
	for _, list := range []*[]int{&l.Busy, &l.Disk, &l.Waits} {
		for i := range len(*list) / 2 {
			(*list)[i] = ((*list)[2*i] + (*list)[2*i+1] + 1) / 2
		}
		*list = (*list)[:len(*list)/2]
	}
}

// startLoad samples the load of the machine in the background until ctx ends. The returned function
// waits for that end and returns the load, nil if there is no sample.
func startLoad(ctx context.Context, started time.Time, every time.Duration) func() *Load {
	first, found := readCounters()
	if !found {
		return func() *Load { return nil }
	}
	s := sampler{start: first.at, last: first, load: Load{
		Processors: first.processors, EveryMS: every.Milliseconds(), StartMS: max(first.at.Sub(started).Milliseconds(), 0),
	}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if now, found := readCounters(); found {
					s.add(now)
				}
			}
		}
	}()
	return func() *Load {
		<-ended
		if len(s.load.Busy) == 0 {
			return nil
		}
		return &s.load
	}
}

package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"slipway/ci/fleet"
	"slipway/ci/fleet/fleettest"
	"slipway/images"
	"slipway/layers/lazy"
	"slipway/layers/progress"
	"slipway/layers/run"
)

const (
	fleetBoards    = 500
	fleetFileBytes = 10_000_000
	fleetChecks    = 20
	fleetParallel  = 32
	fleetTo        = "/data/deployed/file"
)

// Fleet sends a file to 500 simulated boards, 5 % of which fail in different manners, and
// runs a suite on all. It has no peer. It measures the time of this process, and its peak
// memory since the run began. The boards run in another process.
func Fleet(ctx context.Context, w io.Writer, o Options) error {
	if o.Rounds != 0 || o.Only != "" || o.MiB != 0 {
		return errors.New("only --boards is for fleet")
	}
	return keepOnFailure(ctx, "bench-fleet-", func(dir string) error {
		b := &fleetBench{dir: dir, faults: fleettest.MixedFaults(cmp.Or(o.Boards, fleetBoards))}
		return b.measureFleet(ctx, w)
	})
}

type fleetBench struct {
	dir    string
	faults []fleettest.Fault
	file   string
	digest string
}

func (b *fleetBench) measureFleet(ctx context.Context, w io.Writer) error {
	if err := b.makeFile(); err != nil {
		return err
	}
	p, err := b.startBoards(ctx)
	if err != nil {
		return err
	}
	defer p.stop()
	before, err := resetPeak()
	if err != nil {
		return err
	}
	outcome, took, err := b.runFleet(ctx)
	if err != nil {
		return err
	}
	peak, err := peakBytes()
	if err != nil {
		return err
	}
	holds, err := p.switchOff()
	if err != nil {
		return err
	}
	wrong := b.countWrong(w, outcome, holds)
	fmt.Fprintf(w, "%d boards, %d of them failing, %d at a time; %.1f MB and %d checks each\n", len(b.faults), b.countFailing(), fleetParallel, fleetFileBytes/1e6, fleetChecks)
	_, err = fmt.Fprintf(w, "seconds=%.1f peak_mb=%.1f before_mb=%.1f wrong=%d\n", took.Seconds(), float64(peak)/1e6, float64(before)/1e6, wrong)
	return err
}

func (b *fleetBench) countFailing() (n int) {
	for _, f := range b.faults {
		if f != fleettest.None {
			n++
		}
	}
	return n
}

func (b *fleetBench) makeFile() error {
	data := make([]byte, fleetFileBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // it never fails
	sum := sha256.Sum256(data)
	b.file, b.digest = filepath.Join(b.dir, "file"), hex.EncodeToString(sum[:])
	return os.WriteFile(b.file, data, 0o644)
}

// runFleet does the measured work.
func (b *fleetBench) runFleet(ctx context.Context) (fleet.Outcome, time.Duration, error) {
	spec := images.Spec{Board: "simulated", Suites: []string{filepath.Join(b.dir, fleettest.SuiteName)}}
	request := fleet.Request{Inventory: filepath.Join(b.dir, fleettest.InventoryName), File: b.file, To: fleetTo, Parallel: fleetParallel}
	step := progress.Start(ctx, "fleet", 0, "")
	began := time.Now()
	outcome, err := fleet.Run(progress.With(ctx, progress.New(totalProgress{step})), io.Discard, images.Options{Dir: b.dir}, spec, request)
	took := time.Since(began)
	if len(outcome.Results) == len(b.faults) && ctx.Err() == nil { // the simulated boards fail on purpose
		err = nil
	}
	step.End("", err)
	return outcome, took, err
}

// totalProgress reports the progress of the whole run, not that of each board.
type totalProgress struct{ step *progress.Step }

func (t totalProgress) Event(e progress.Event) {
	if e.Step == "fleet" {
		t.step.Detail(e.Detail)
	}
}

func (totalProgress) Close() {}

// countWrong counts the boards with another result than the simulated one, and those that
// hold the file though they should not, or do not though they should.
func (b *fleetBench) countWrong(w io.Writer, outcome fleet.Outcome, holds map[string]bool) (n int) {
	for i, fault := range b.faults {
		name, got := fleettest.BoardName(i), fleet.Result{Kind: "missing"}
		for _, r := range outcome.Results {
			if r.Host == name {
				got = r
			}
		}
		checked := fault != fleettest.None || got.Passed == fleetChecks
		if string(got.Kind) != fault.ExpectedKind() || holds[name] != fault.GetsFile() || !checked {
			n++
			fmt.Fprintf(w, "wrong: %s simulates %s: %s (%s), %d checks passed, holds the file: %v\n", name, fault, got.Kind, got.Saw, got.Passed, holds[name])
		}
	}
	return n
}

// boardsProcess is the process that simulates the boards.
type boardsProcess struct {
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
	wait   func() error
}

func (b *fleetBench) startBoards(ctx context.Context) (*boardsProcess, error) {
	program := filepath.Join(b.dir, "boards")
	if err := run.Run(ctx, run.Command{Argv: []string{"go", "build", "-o", program, "./ci/dev/bench/boards"}}); err != nil {
		return nil, err
	}
	p := &boardsProcess{}
	cmd := run.Prepare(ctx, run.Command{Argv: []string{program, b.dir, strconv.Itoa(len(b.faults)), strconv.Itoa(fleetChecks), fleetTo, b.digest}})
	cmd.Stderr = &p.stderr
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.stdin, p.stdout, p.wait = stdin, bufio.NewReader(stdout), cmd.Wait
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := p.stdout.ReadString('\n'); err != nil || line != "on\n" {
		p.stop()
		return nil, fmt.Errorf("the simulated boards did not start: %q: %w: %s", line, err, p.stderr.String())
	}
	return p, nil
}

// switchOff switches the boards off and returns which of them hold the file.
func (p *boardsProcess) switchOff() (map[string]bool, error) {
	if err := p.stdin.Close(); err != nil {
		return nil, err
	}
	out, err := io.ReadAll(p.stdout)
	holds := map[string]bool{}
	for name := range strings.FieldsSeq(string(out)) {
		holds[name] = true
	}
	return holds, err
}

func (p *boardsProcess) stop() {
	p.stdin.Close()
	_ = p.wait() // its output was read
}

// resetPeak sets the peak of this process's memory to the current value.
func resetPeak() (now int64, err error) {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return 0, fmt.Errorf("reset the peak of memory: %w", err)
	}
	return peakBytes()
}

var peakPattern = lazy.Regexp(`(?m)^VmHWM:\s+(\d+) kB$`)

func peakBytes() (int64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	m := peakPattern().FindSubmatch(data)
	if m == nil {
		return 0, errors.New("/proc/self/status has no VmHWM")
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10, err
}

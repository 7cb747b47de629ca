package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// worker computes on one GPU, or on the processor. The engine makes one call at a time.
type worker interface {
	null() error
	squares(numbers []float32) (float64, error) // the sum of their squares
	close() error
}

// Limits of a request.
const (
	maxBody     = 16 << 20
	maxDuration = 10 * time.Second // in the queue and on the worker
)

// job is a request on its way to a worker.
type job struct {
	ctx     context.Context
	numbers []float32 // nil: the null request
	done    chan result
}

type result struct {
	sum float64
	err error
}

// engine is an HTTP server in front of workers. Requests wait in a queue of fixed length. The
// engine refuses a request that does not fit at once, so that it answers the others in time.
type engine struct {
	queue   chan job
	bodies  chan struct{} // one for each body in memory
	ended   chan struct{}
	workers sync.WaitGroup
	mux     *http.ServeMux
}

// newEngine returns an engine with a queue of this depth and HTTP handlers, and starts a goroutine
// for each worker.
func newEngine(workers []worker, depth int) *engine {
	e := &engine{queue: make(chan job, depth), bodies: make(chan struct{}, depth+len(workers)), ended: make(chan struct{}), mux: http.NewServeMux()}
	e.mux.HandleFunc("GET /null", e.serveNull)
	e.mux.HandleFunc("POST /squares", e.serveSquares)
	e.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]int{"workers": len(workers), "queued": len(e.queue)})
	})
	for _, one := range workers {
		e.workers.Add(1)
		go func() {
			defer e.workers.Done()
			e.work(one)
		}()
	}
	return e
}

// work runs jobs on a worker until the engine ends and the queue is empty.
func (e *engine) work(w worker) {
	for {
		select {
		case j := <-e.queue:
			j.done <- j.run(w)
			continue
		case <-e.ended:
		}
		select {
		case j := <-e.queue:
			j.done <- j.run(w)
		default:
			return
		}
	}
}

// run computes the job on a worker, unless its context has ended. Nil numbers are a null request.
func (j job) run(w worker) (r result) {
	switch {
	case j.ctx.Err() != nil: // nobody waits for it any more
		r.err = j.ctx.Err()
	case j.numbers == nil:
		r.err = w.null()
	default:
		r.sum, r.err = w.squares(j.numbers)
	}
	return r
}

// close tells the workers' goroutines to end, and waits until the queue is empty.
func (e *engine) close() {
	close(e.ended)
	e.workers.Wait()
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

var errFull = errors.New("the queue is full")

// do queues numbers (nil: a null request) and waits up to maxDuration. A full queue is errFull.
func (e *engine) do(ctx context.Context, numbers []float32) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, maxDuration)
	defer cancel()
	j := job{ctx, numbers, make(chan result, 1)}
	select {
	case e.queue <- j:
	default:
		return 0, errFull
	}
	select {
	case r := <-j.done:
		return r.sum, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// serveNull answers with an empty 200 once a worker did the null request, or with the error.
func (e *engine) serveNull(w http.ResponseWriter, r *http.Request) {
	if _, err := e.do(r.Context(), nil); err != nil {
		refuse(w, err)
	}
}

// serveSquares reads float32 numbers, little endian, and answers with the sum of their squares as
// JSON. It refuses an empty body, one over maxBody, and more bodies than fit into the queue.
func (e *engine) serveSquares(w http.ResponseWriter, r *http.Request) {
	select {
	case e.bodies <- struct{}{}:
		defer func() { <-e.bodies }()
	default:
		refuse(w, errFull)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && (len(body) == 0 || len(body)%4 != 0) {
		err = fmt.Errorf("a body of %d bytes holds no numbers of 4 bytes", len(body))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	numbers := make([]float32, len(body)/4)
	for i := range numbers {
		numbers[i] = math.Float32frombits(binary.LittleEndian.Uint32(body[4*i:]))
	}
	sum, err := e.do(r.Context(), numbers)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"sum": sum, "numbers": len(numbers)})
}

// refuse answers with an error: 503 for a full queue, 504 for a timeout, otherwise 500.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errFull):
		w.Header().Set("Retry-After", "1")
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	http.Error(w, err.Error(), status)
}

// processor is the worker of a board without a GPU.
type processor struct{}

func (processor) null() error  { return nil }
func (processor) close() error { return nil }

// squares returns the sum of the numbers' squares. A sum that is no finite number is an error.
func (processor) squares(numbers []float32) (sum float64, err error) {
	for _, n := range numbers {
		sum += float64(n) * float64(n)
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return 0, errors.New("the sum is no number")
	}
	return sum, nil
}

// program is a worker in a process of its own, such as slipway-rest-cuda. It reads requests
// and writes answers, both little endian:
//
//	request: u32 operation (0 null, 1 squares), u32 count, count times f32
//	answer:  u32 status (0 well), f64 sum
type program struct {
	argv []string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  io.Reader
	buf  []byte
	dead error // a worker that broke off is not asked again: its answers may be shifted
	died time.Time
}

// How long a worker may take for an answer, and how soon one that broke off starts again.
var (
	patience     = maxDuration
	restartPause = time.Second
)

// startProgram starts a worker program, with the number of its GPU as the last argument.
func startProgram(argv []string, gpu int) (*program, error) {
	p := &program{argv: append(slices.Clip(argv), fmt.Sprint(gpu))}
	if err := p.start(); err != nil {
		return nil, fmt.Errorf("%s for GPU %d: %w", argv[0], gpu, err)
	}
	return p, nil
}

// start starts the process and checks that it answers a null request.
func (p *program) start() (err error) {
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.dead = nil
	if _, err = p.exchange(0, nil); err != nil && p.dead == nil {
		err = errors.Join(err, p.close())
	}
	return err
}

func (p *program) null() error {
	_, err := p.ask(0, nil)
	return err
}

func (p *program) squares(numbers []float32) (float64, error) { return p.ask(1, numbers) }

// ask returns the program's answer. It restarts an ended one, but within restartPause it fails.
func (p *program) ask(operation uint32, numbers []float32) (float64, error) {
	if p.dead != nil {
		if time.Since(p.died) < restartPause {
			return 0, p.dead
		}
		if err := p.start(); err != nil {
			p.dead, p.died = err, time.Now()
			return 0, err
		}
	}
	return p.exchange(operation, numbers)
}

// exchange writes a request and reads the answer. It kills a program that does not answer in time
// or breaks off, and marks it as dead.
func (p *program) exchange(operation uint32, numbers []float32) (float64, error) {
	le := binary.LittleEndian
	p.buf = le.AppendUint32(p.buf[:0], operation)
	p.buf = le.AppendUint32(p.buf, uint32(len(numbers)))
	for _, n := range numbers {
		p.buf = le.AppendUint32(p.buf, math.Float32bits(n))
	}
	var answer [12]byte
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	_, err := p.in.Write(p.buf)
	if err == nil {
		_, err = io.ReadFull(p.out, answer[:])
	}
	if !timer.Stop() {
		err = fmt.Errorf("it did not answer in %s", patience)
	}
	if err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.close() // err says more
		p.dead, p.died = fmt.Errorf("the worker has ended: %w", err), time.Now()
		return 0, p.dead
	}
	if status := le.Uint32(answer[:]); status != 0 {
		return 0, fmt.Errorf("the worker failed with %d", status)
	}
	return math.Float64frombits(le.Uint64(answer[4:])), nil
}

// close closes the program's input and awaits its end, and kills it after 5 seconds.
func (p *program) close() error {
	if p.dead != nil {
		return nil // it is closed
	}
	err := p.in.Close()
	timer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	return errors.Join(err, p.cmd.Wait())
}

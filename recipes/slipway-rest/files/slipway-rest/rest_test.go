package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asWorker makes this test binary a worker, which ends after so many answers.
const asWorker = "SLIPWAY_REST_WORKER"

func TestMain(m *testing.M) {
	switch os.Getenv(asWorker) {
	case "":
		os.Exit(m.Run())
	case "well":
		work(os.Stdin, os.Stdout, math.MaxInt)
	case "once":
		work(os.Stdin, os.Stdout, 1)
	case "silently":
		work(os.Stdin, os.Stdout, 1)
		_, _ = io.Copy(io.Discard, os.Stdin)
		time.Sleep(time.Hour)
	case "badly":
		_, _ = os.Stdout.Write(append([]byte{7, 0, 0, 0}, make([]byte, 8)...))
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

// work answers requests as slipway-rest-cuda does.
func work(in io.Reader, out io.Writer, answers int) {
	for range answers {
		var head [2]uint32
		if binary.Read(in, binary.LittleEndian, &head) != nil {
			return
		}
		numbers := make([]float32, head[1])
		if binary.Read(in, binary.LittleEndian, numbers) != nil {
			return
		}
		sum, _ := processor{}.squares(numbers)
		_ = binary.Write(out, binary.LittleEndian, uint32(0))
		_ = binary.Write(out, binary.LittleEndian, sum)
	}
}

func startSelf(t *testing.T, how string) (*program, error) {
	t.Helper()
	t.Setenv(asWorker, how)
	p, err := startProgram([]string{os.Args[0]}, 3)
	if err == nil {
		t.Cleanup(func() { _ = p.close() })
	}
	return p, err
}

// A worker in another process computes as the processor does.
func TestProgram(t *testing.T) {
	p, err := startSelf(t, "well")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if sum, err := p.squares([]float32{1, 2, 3}); err != nil || sum != 14 {
			t.Errorf("squares = %v, %v; want 14", sum, err)
		}
	}
	if p, err = startSelf(t, "once"); err != nil { // the null request of the start
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.squares([]float32{1}); err == nil || !strings.Contains(err.Error(), "the worker has ended") {
			t.Errorf("a worker that ended: %v", err)
		}
	}
	if _, err := startSelf(t, "badly"); err == nil || !strings.Contains(err.Error(), "GPU 3: the worker failed with 7") {
		t.Errorf("a worker that fails: %v", err)
	}
}

// A worker that does not answer is ended, and one that has ended starts again.
func TestWorkerStartsAgain(t *testing.T) {
	t.Cleanup(func() { patience, restartPause = maxDuration, time.Second })
	p, err := startSelf(t, "silently")
	if err != nil {
		t.Fatal(err)
	}
	patience = 300 * time.Millisecond
	pid := p.cmd.Process.Pid
	if _, err := p.squares([]float32{1}); err == nil || !strings.Contains(err.Error(), "did not answer in 300ms") {
		t.Errorf("a worker that does not answer: %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("its process is still there: %v", err)
	}
	t.Setenv(asWorker, "well")
	if _, err := p.squares([]float32{1}); err == nil {
		t.Error("a worker started again at once")
	}
	patience, restartPause = maxDuration, 0
	if sum, err := p.squares([]float32{1, 2}); err != nil || sum != 5 {
		t.Errorf("after its restart: %v, %v; want 5", sum, err)
	}
}

// Requests whose bodies are still on their way count as waiting.
func TestBodiesAreBounded(t *testing.T) {
	_, url := serveTest(t, processor{}, 1)
	for range 2 { // one in the queue, one for the worker
		body, feed := io.Pipe()
		t.Cleanup(func() { feed.Close() })
		r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/squares", body)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if answer, err := http.DefaultClient.Do(r); err == nil {
				answer.Body.Close()
			}
		}()
		if _, err := feed.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	q := squaresRequest(url, 1)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if status, _ := q.send(t.Context(), http.DefaultClient); status == http.StatusServiceUnavailable {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a third body was taken")
		}
	}
}

func serveTest(t *testing.T, w worker, depth int) (*engine, string) {
	t.Helper()
	e := newEngine([]worker{w}, depth)
	server := httptest.NewServer(e)
	t.Cleanup(func() {
		server.Close()
		e.close()
	})
	return e, server.URL
}

func TestRequests(t *testing.T) {
	_, url := serveTest(t, processor{}, 4)
	for _, tt := range []struct {
		method, path string
		body         []byte
		status       int
		want         string
	}{
		{"GET", "/null", nil, 200, ""},
		{"POST", "/null", nil, 405, "Method"},
		{"POST", "/squares", squaresRequest("", 8).body, 200, `{"numbers":8,"sum":28}`},
		{"POST", "/squares", nil, 400, "0 bytes holds no numbers"},
		{"POST", "/squares", []byte("abc"), 400, "3 bytes holds no numbers"},
		{"POST", "/squares", binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.NaN()))), 500, "the sum is no number"},
		{"POST", "/squares", make([]byte, maxBody+4), 400, "too large"},
		{"GET", "/health", nil, 200, `"workers":1`},
		{"GET", "/", nil, 404, "not found"},
	} {
		r, err := http.NewRequest(tt.method, url+tt.path, bytes.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != tt.status || !strings.Contains(string(text), tt.want) {
			t.Errorf("%s %s with %d bytes: %d %q; want %d %q", tt.method, tt.path, len(tt.body), answer.StatusCode, text, tt.status, tt.want)
		}
	}
}

// held is a worker that computes only when it may.
type held struct {
	processor
	begun, may chan struct{}
	done       chan float32
}

func (h held) squares(numbers []float32) (float64, error) {
	h.begun <- struct{}{}
	<-h.may
	h.done <- numbers[0]
	return 1, nil
}

// What does not fit into the queue is refused at once. What nobody waits for any more is
// not computed.
func TestQueue(t *testing.T) {
	h := held{begun: make(chan struct{}, 10), may: make(chan struct{}), done: make(chan float32, 10)}
	e, url := serveTest(t, h, 1)
	gone, leave := context.WithCancel(t.Context())
	errs := make(chan error, 2)
	go func() { _, err := e.do(t.Context(), []float32{1}); errs <- err }()
	<-h.begun
	go func() { _, err := e.do(gone, []float32{2}); errs <- err }()
	for len(e.queue) == 0 {
		time.Sleep(time.Millisecond)
	}
	l := squaresRequest(url, 4).run(t.Context(), 2, 50*time.Millisecond)
	if l.Requests != 0 || l.Refused == 0 || l.Failed != 0 {
		t.Errorf("with a full queue: %+v; want all refused", l)
	}
	leave()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	close(h.may)
	if err := <-errs; err != nil {
		t.Errorf("who waited got %v", err)
	}
	if n := <-h.done; n != 1 {
		t.Errorf("computed %v; want 1", n)
	}
	// A request of the load that was still on its way may be computed: its first number is 0.
	err := errFull
	for errors.Is(err, errFull) {
		_, err = e.do(t.Context(), []float32{3})
	}
	if err != nil {
		t.Error(err)
	}
	for n := <-h.done; n != 3; n = <-h.done {
		if n == 2 {
			t.Error("computed what nobody waited for")
		}
	}
}

// A wrong answer is a failure, and load says so.
func TestLoadFindsWrongAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"sum": 13}`) }))
	defer server.Close()
	var out strings.Builder
	err := run(t.Context(), []string{"load", server.URL, "--numbers=8", "--seconds=0.05", "--connections=2"}, &out)
	if err == nil || !strings.Contains(err.Error(), "the sum is 13; want 28") || !strings.Contains(out.String(), `"requests": 0`) {
		t.Errorf("load = %v\n%s", err, &out)
	}
}

// The server answers until a signal comes.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	in, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"serve", "--listen=127.0.0.1:0"}, out) }()
	line := make([]byte, 100)
	n, err := in.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.Fields(string(line[:n]))[2]
	if l := squaresRequest(url, 100).run(t.Context(), 4, 200*time.Millisecond); l.Requests == 0 || l.Failed > 0 || l.P50 <= 0 || l.P99 < l.P50 {
		t.Errorf("load = %+v", l)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("serve = %v", err)
	}
	if _, err := http.Get(url + "/null"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after the end: %v", err)
	}
}

func TestLines(t *testing.T) {
	for line, want := range map[string]string{
		"load": "load needs the server's address", "dance": "unknown command", "serve --gpus=0": "out of range", "bench x": "one word too many",
		"serve --worker=/nonexistent": "no such file", "bench --seconds=-1": "out of range",
	} {
		if err := run(t.Context(), strings.Fields(line), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
}

func TestBench(t *testing.T) {
	var out strings.Builder
	err := run(t.Context(), []string{"bench", "--seconds=0.2", "--rounds=1"}, &out)
	if err != nil { // a busy machine may answer nothing in so short a time
		err = run(t.Context(), []string{"bench", "--seconds=3", "--rounds=1"}, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"net/http", "squares", "null_over_http_1=", "null_over_http_8=", "null_overhead_us_64="} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the bench lacks %s:\n%s", want, &out)
		}
	}
}

// slipway-rest serves computations over HTTP: a bounded queue, and a worker for each GPU, or
// one on the processor. The workload rest proves it.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `slipway-rest serve [--listen=127.0.0.1:8000] [--queue=256] [--worker=PROGRAM --gpus=1]
  Serve GET /null, POST /squares and GET /health until a signal comes.

slipway-rest load URL [--connections=8] [--seconds=5] [--numbers=0]
  Send requests, and print how many were answered in which time, as JSON.
  Without --numbers they are GET URL/null, else POST URL/squares with so many numbers.

slipway-rest bench [--seconds=2] [--rounds=5] [--worker=PROGRAM]
  Measure null requests, and those that compute, beside an empty handler of net/http, with
  1, 8 and 64 connections, in turns. Print a row for each, and the ratios.

Workers are programs like slipway-rest-cuda. Without one the processor computes.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "slipway-rest:", err)
		}
		os.Exit(1)
	}
}

// run reads the words and flags, refuses numbers out of range, and runs serve, load, bench or help.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || strings.Contains(args[0], "help") || args[0] == "-h" {
		fmt.Fprint(out, usage)
		return nil
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8000", "")
	queue := flags.Int("queue", 256, "")
	workerProgram := flags.String("worker", "", "")
	gpus := flags.Int("gpus", 1, "")
	connections := flags.Int("connections", 8, "")
	seconds := flags.Float64("seconds", 2, "")
	rounds := flags.Int("rounds", 5, "")
	numbers := flags.Int("numbers", 0, "")
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	rest := args[1:]
	address := ""
	if args[0] == "load" && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		address, rest = rest[0], rest[1:]
	}
	if err := flags.Parse(rest); err != nil {
		return err
	}
	span := time.Duration(*seconds * float64(time.Second))
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("%q is one word too many\nnext: slipway-rest help", flags.Arg(0))
	case *queue < 1 || *gpus < 1 || *gpus > 64 || *connections < 1 || *connections > 10_000 || *rounds < 1 || span <= 0 || *numbers < 0 || *numbers > maxBody/4:
		return errors.New("a number is out of range\nnext: slipway-rest help")
	}
	switch args[0] {
	case "serve":
		return serve(ctx, *listen, *queue, *workerProgram, *gpus, out)
	case "load":
		return sendLoad(ctx, address, *connections, *numbers, span, out)
	case "bench":
		return bench(ctx, *workerProgram, span, *rounds, out)
	}
	return fmt.Errorf("unknown command %q\nnext: slipway-rest help", args[0])
}

// startWorkers starts a worker per GPU, or without a program one on the CPU. closeAll closes them.
func startWorkers(program string, gpus int) (workers []worker, closeAll func() error, err error) {
	closeAll = func() (err error) {
		for _, w := range workers {
			err = errors.Join(err, w.close())
		}
		return err
	}
	if program == "" {
		return []worker{processor{}}, closeAll, nil
	}
	for gpu := range gpus {
		w, err := startProgram([]string{program}, gpu)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		workers = append(workers, w)
	}
	return workers, closeAll, nil
}

// serve prints its URL and serves HTTP until ctx ends. Queued requests then have maxDuration left.
func serve(ctx context.Context, listen string, depth int, program string, gpus int, out io.Writer) (err error) {
	workers, closeAll, err := startWorkers(program, gpus)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	e := newEngine(workers, depth)
	defer e.close()
	server := &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	fmt.Fprintf(out, "serving on http://%s with %d workers\n", l.Addr(), len(workers))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// What is queued is answered; what comes now is not taken.
	last, cancel := context.WithTimeout(context.Background(), maxDuration)
	defer cancel()
	return server.Shutdown(last)
}

// squaresRequest returns a request for the sum of squares of the numbers 0, 1, 2, 3, 0, 1, …
func squaresRequest(url string, numbers int) request {
	q := request{method: "POST", url: url + "/squares", wantsSum: true}
	for i := range numbers {
		n := float32(i % 4)
		q.body = binary.LittleEndian.AppendUint32(q.body, math.Float32bits(n))
		q.sum += float64(n) * float64(n)
	}
	return q
}

// sendLoad sends requests for the sum of that many numbers, or null requests for 0, and prints the
// result as JSON. A failed or no answer is an error. address begins with http://.
func sendLoad(ctx context.Context, address string, connections, numbers int, span time.Duration, out io.Writer) error {
	if !strings.HasPrefix(address, "http://") {
		return errors.New("load needs the server's address\nnext: slipway-rest load http://127.0.0.1:8000")
	}
	q := request{method: "GET", url: address + "/null"}
	if numbers > 0 {
		q = squaresRequest(address, numbers)
	}
	l := q.run(ctx, connections, span)
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	if err := enc.Encode(l); err != nil {
		return err
	}
	if l.Failed > 0 || l.Requests == 0 {
		return fmt.Errorf("%d requests failed and %d were answered: %s", l.Failed, l.Requests, l.FirstError)
	}
	return ctx.Err()
}

// benchNumbers is how many numbers a request of the bench has.
const benchNumbers = 4096

// bench measures an empty HTTP handler, the engine's null request and a computation in turns, and
// prints a table and ratios. A request that is refused or fails ends it.
func bench(ctx context.Context, program string, span time.Duration, rounds int, out io.Writer) (err error) {
	workers, closeAll, err := startWorkers(program, 1)
	if err != nil {
		return err
	}
	e := newEngine(workers, 256)
	defer func() { err = errors.Join(err, closeAll()) }()
	defer e.close()
	ours, stopOurs, err := serveOn(e)
	if err != nil {
		return err
	}
	defer stopOurs()
	empty, stopEmpty, err := serveOn(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		return err
	}
	defer stopEmpty()
	var ratios []string
	fmt.Fprintf(out, "%-12s %12s %12s %10s %10s\n", "requests", "connections", "per second", "p50 µs", "p99 µs")
	for _, connections := range []int{1, 8, 64} {
		rows := []struct {
			name string
			q    request
			runs []load
		}{
			{"net/http", request{method: "GET", url: empty + "/null"}, nil},
			{"null", request{method: "GET", url: ours + "/null"}, nil},
			{"squares", squaresRequest(ours, benchNumbers), nil},
		}
		for range rounds {
			for i := range rows {
				l := rows[i].q.run(ctx, connections, span)
				if l.Failed > 0 || l.Refused > 0 || l.Requests == 0 {
					return errors.Join(ctx.Err(), fmt.Errorf("%s: %d failed, %d refused of %d: %s", rows[i].name, l.Failed, l.Refused, l.Requests, l.FirstError))
				}
				rows[i].runs = append(rows[i].runs, l)
			}
		}
		medians := map[string]load{}
		for _, r := range rows {
			slices.SortFunc(r.runs, func(a, b load) int { return int(math.Copysign(1, a.PerSecond-b.PerSecond)) })
			m := r.runs[len(r.runs)/2]
			medians[r.name] = m
			fmt.Fprintf(out, "%-12s %12d %12.0f %10.1f %10.1f\n", r.name, connections, m.PerSecond, m.P50, m.P99)
		}
		alone, null := medians["net/http"], medians["null"]
		ratios = append(ratios, fmt.Sprintf("null_over_http_%d=%.3f", connections, null.P50/alone.P50), fmt.Sprintf("null_overhead_us_%d=%.2f", connections, null.P50-alone.P50))
	}
	fmt.Fprintln(out, strings.Join(ratios, " "))
	return ctx.Err()
}

// serveOn serves h on a free port of 127.0.0.1, and returns its URL and a function that stops it.
func serveOn(h http.Handler) (url string, stop func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(l) }() // Close ends it
	return "http://" + l.Addr().String(), server.Close, nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"
)

// load is the result of sending requests to a server: counts, rate and latencies.
type load struct {
	Connections int     `json:"connections"`
	Requests    int     `json:"requests"` // answered with 200, and rightly
	Refused     int     `json:"refused"`  // answered with 503: the queue was full
	Failed      int     `json:"failed"`
	PerSecond   float64 `json:"perSecond"`
	P50         float64 `json:"p50"` // microseconds
	P99         float64 `json:"p99"`
	FirstError  string  `json:"firstError,omitempty"`
}

// request is a request that a client repeats, with the sum that the answer must have.
type request struct {
	method, url string
	body        []byte
	sum         float64
	wantsSum    bool
}

// run repeats the request on that many connections until span is over. It returns the results.
func (q request) run(ctx context.Context, connections int, span time.Duration) load {
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	transport := &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var (
		all   sync.Mutex
		times []time.Duration
		l     = load{Connections: connections}
		group sync.WaitGroup
	)
	began := time.Now()
	for range connections {
		group.Add(1)
		go func() {
			defer group.Done()
			var own []time.Duration
			refused, failed, first := 0, 0, ""
			for ctx.Err() == nil {
				sent := time.Now()
				status, err := q.send(ctx, client)
				switch {
				case ctx.Err() != nil: // the time was over before the answer
				case err == nil:
					own = append(own, time.Since(sent))
				case status == http.StatusServiceUnavailable:
					refused++
				default:
					if failed++; first == "" {
						first = err.Error()
					}
				}
			}
			all.Lock()
			defer all.Unlock()
			times = append(times, own...)
			l.Refused, l.Failed = l.Refused+refused, l.Failed+failed
			if l.FirstError == "" {
				l.FirstError = first
			}
		}()
	}
	group.Wait()
	l.Requests = len(times)
	l.PerSecond = float64(len(times)) / time.Since(began).Seconds()
	slices.Sort(times)
	if n := len(times); n > 0 {
		l.P50, l.P99 = micros(times[n/2]), micros(times[n*99/100])
	}
	return l
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// send sends the request once. Another status than 200, or a sum off by over 0.01 %, is an error.
func (q request) send(ctx context.Context, client *http.Client) (status int, err error) {
	r, err := http.NewRequestWithContext(ctx, q.method, q.url, bytes.NewReader(q.body))
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		return answer.StatusCode, err
	}
	if answer.StatusCode != http.StatusOK {
		return answer.StatusCode, fmt.Errorf("%s: %.200s", answer.Status, text)
	}
	if !q.wantsSum {
		return answer.StatusCode, nil
	}
	var got struct{ Sum float64 }
	if err := json.Unmarshal(text, &got); err != nil {
		return answer.StatusCode, err
	}
	if difference := math.Abs(got.Sum - q.sum); difference > 1e-4*q.sum {
		return answer.StatusCode, fmt.Errorf("the sum is %g; want %g", got.Sum, q.sum)
	}
	return answer.StatusCode, nil
}

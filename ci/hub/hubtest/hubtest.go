// Package hubtest runs three hubs, each as a process of its own, for tests that kill them.
package hubtest

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"slipway/ci/hub"
	"slipway/ci/hub/access"
	"slipway/layers/progress"
)

// variable has the options of a process that is a hub, as JSON.
const variable = "SLIPWAY_HUBTEST"

// Handler makes the page of the hubs, if a package sets it before Main.
var Handler func(ctx context.Context, h *hub.Hub, names []string, authority []byte) (http.Handler, error)

// Main runs a hub and exits, if this process is one of a test. A package that calls Start calls it
// first in its TestMain.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var h Hub
	err := json.Unmarshal([]byte(text), &h)
	ctx, cancel := context.WithCancel(progress.With(context.Background(), progress.New(progress.JSON(os.Stderr))))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test's process has ended
		cancel()
	}()
	if err == nil {
		err = hub.Run(ctx, h.options())
	}
	if ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Hub is one of the hubs.
type Hub struct {
	Name         string   // an address of this machine, which only this hub has
	Also         []string // names that other hubs have, too
	Dir          string
	Listen, Page string
	Cluster      []string
	Lease        time.Duration
	Space        int64 // of the hub's disk

	t     testing.TB
	cmd   *exec.Cmd
	input io.Closer
	ready chan string // gets the token of the first admin, or "", once the hub answers
}

func (h *Hub) options() hub.Options {
	return hub.Options{
		Dir: h.Dir, Names: append([]string{h.Name}, h.Also...), Listen: h.Listen, Page: h.Page, Cluster: h.Cluster, Lease: h.Lease, Space: h.Space, Admin: "ada", Log: os.Stderr, Handler: Handler,
		Ready: func(_, token string) { fmt.Println(token) },
	}
}

// Start starts the hub's process, also after Kill.
func (h *Hub) Start() {
	h.t.Helper()
	h.cmd = exec.Command(os.Args[0])
	text, err := json.Marshal(h)
	h.cmd.Env = append(os.Environ(), variable+"="+string(text))
	log, logErr := os.OpenFile(h.Log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	input, inErr := h.cmd.StdinPipe()
	output, outErr := h.cmd.StdoutPipe()
	if err := errors.Join(err, logErr, inErr, outErr); err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	h.cmd.Stderr = log
	if h.input = input; h.cmd.Start() != nil {
		h.t.Fatalf("the hub %s does not start", h.Name)
	}
	h.ready = make(chan string, 1)
	go func() {
		defer close(h.ready)
		for in := bufio.NewScanner(output); in.Scan(); {
			h.ready <- in.Text()
		}
	}()
}

// Log returns the name of the file with the hub's log, and its progress as JSON.
func (h *Hub) Log() string { return h.Dir + ".log" }

// Ready waits until the hub answers, and returns the token of the first admin, or "".
func (h *Hub) Ready() (token string) {
	h.t.Helper()
	token, open := <-h.ready
	if !open {
		h.t.Fatalf("the hub %s ended", h.Name)
	}
	return token
}

// Kill ends the hub's process as a loss of power does. It does nothing if the process has ended.
func (h *Hub) Kill() { h.end(func() { _ = h.cmd.Process.Signal(syscall.SIGKILL) }) }

// Stop ends the hub in good order.
func (h *Hub) Stop() { h.end(func() { h.input.Close() }) }

func (h *Hub) end(how func()) {
	if h.cmd == nil {
		return
	}
	how()
	for range h.ready { // until the output is closed
	}
	_ = h.cmd.Wait()
	h.cmd = nil
}

// New returns three hubs that do not run. The first one has no keys yet, and the others have not
// joined. lease is that of stations. Each hub has another disk.
func New(t testing.TB, lease time.Duration) (hubs [3]*Hub) {
	t.Helper()
	dir := t.TempDir()
	net3 := fmt.Sprintf("127.%d.%d.", 1+rand.N(250), rand.N(250)) // nobody else is there, so a free port stays free
	var cluster []string
	for i := range hubs {
		h := &Hub{t: t, Name: fmt.Sprint(net3, i+1), Lease: lease, Space: int64(4-i) << 30}
		h.Dir = filepath.Join(dir, h.Name)
		h.Listen, h.Page = freePort(t, h.Name), freePort(t, h.Name)
		cluster = append(cluster, freePort(t, h.Name))
		hubs[i] = h
		t.Cleanup(func() {
			h.Stop()
			if log, err := os.ReadFile(h.Log()); err == nil && t.Failed() {
				t.Logf("%s: %s", h.Name, log)
			}
		})
	}
	for _, h := range hubs {
		h.Cluster = cluster
	}
	return hubs
}

func freePort(t testing.TB, host string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Join makes the hub's state folder by an invitation of another hub, which runs.
func (h *Hub) Join(other *Hub) {
	h.t.Helper()
	address, token, err := hub.InviteHub(other.Dir, h.Name, time.Minute)
	if err == nil {
		joined, joinErr := access.JoinHub(h.t.Context(), address, token)
		if err = joinErr; err == nil {
			err = hub.KeepShare(h.Dir, joined)
		}
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// WaitForPage waits until the hub's process serves TLS. It need not have a majority.
func (h *Hub) WaitForPage() {
	h.t.Helper()
	for {
		c, err := tls.Dial("tcp", h.Page, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			c.Close()
			return
		}
		select {
		case _, open := <-h.ready:
			if !open {
				h.t.Fatalf("the hub %s ended", h.Name)
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Start starts three hubs that answer, which all have these names, too. It returns them, and what the
// first admin joins with.
func Start(t testing.TB, lease time.Duration, also ...string) (hubs [3]*Hub, address, token string) {
	t.Helper()
	hubs = New(t, lease)
	for _, h := range hubs {
		h.Also = also
	}
	hubs[0].Start()
	hubs[0].WaitForPage()
	for _, h := range hubs[1:] {
		h.Join(hubs[0])
		h.Start()
	}
	for _, h := range hubs {
		token += h.Ready()
	}
	return hubs, hubs[0].Page, token
}

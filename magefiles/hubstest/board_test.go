package hubstest

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"slipway/ci/fleet"
	"slipway/ci/hub/bookstest"
	"slipway/ci/job"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// A simulated board is a folder with the board's file, which "fleet smoke" of the simulating program
// writes. Its host in the inventory is the folder's path.

// maxInventoryBytes limits the inventory of one host.
const maxInventoryBytes = 64 << 10

// simulatedBoard returns the folder of the board that a line works on, if it is a simulated one.
func simulatedBoard(args []string) (dir string, simulated bool) {
	if len(args) < 4 || args[0] != "fleet" || args[1] != "smoke" {
		return "", false
	}
	data, err := localfile.Read(args[3], maxInventoryBytes)
	var inventory struct {
		All struct {
			Hosts map[string]map[string]string `json:"hosts"`
		} `json:"all"`
	}
	if err != nil || json.Unmarshal(data, &inventory) != nil {
		return "", false
	}
	for _, host := range inventory.All.Hosts {
		dir = host["ansible_host"]
	}
	return dir, filepath.IsAbs(dir)
}

// board is a simulated board at work.
type board struct {
	file   string
	order  job.Order
	events *json.Encoder
}

// writes is how often a board writes, and how long that takes at most, by the job's ID. Without a
// pause it is for benchmarks.
const (
	writes     = 5
	writePause = 400 * time.Millisecond
	chattyName = "chatty" // a file beside the board's: it says 1,000 lines a second for as many seconds
	quickName  = "quick"
)

// workOn does a job on the board in a folder, and returns the exit status.
func workOn(dir string) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT)
	name := strings.TrimPrefix(os.Getenv("SLIPWAY_PROGRESS"), "json:")
	order, err := job.Folder(filepath.Dir(name)).Order()
	if err != nil {
		return fail(err)
	}
	out, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fail(err)
	}
	defer out.Close()
	b := board{filepath.Join(dir, "file"), order, json.NewEncoder(out)}
	kind, err := b.work(signals)
	if err == nil {
		err = bookstest.Note(b.file, order, "end", kind)
	}
	if err != nil {
		return fail(err)
	}
	result := fleet.Result{Host: order.Job.Name, Kind: kind, Passed: 3, Checks: 3}
	_ = plaintext.WriteJSON(os.Stdout, fleet.Outcome{Board: order.Job.Board, Results: []fleet.Result{result}})
	if kind != fleet.Passed {
		return fail(fmt.Errorf("the board did not pass: %s", kind))
	}
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "Error:", err)
	return 1
}

// chance is a number from 0 to n-1 that the job's ID chooses.
func (b board) chance(n uint32) uint32 {
	h := fnv.New32a()
	h.Write([]byte(b.order.Job.ID))
	return h.Sum32() % n
}

// work writes for a while. One job of 20 fails its checks. A SIGINT stops it.
func (b board) work(signals <-chan os.Signal) (fleet.Kind, error) {
	if err := bookstest.Note(b.file, b.order, "begin", ""); err != nil {
		return "", err
	}
	pause := writePause * time.Duration(1+b.chance(10)) / 10
	if localfile.Exists(filepath.Join(filepath.Dir(b.file), quickName)) {
		pause = 0
	}
	for i := range int64(writes) {
		if err := bookstest.Note(b.file, b.order, "write", ""); err != nil {
			return "", err
		}
		_ = b.events.Encode(progress.Event{Time: time.Now(), Step: "write", State: progress.Running, Count: i, Total: writes})
		fmt.Fprintf(os.Stderr, "write %d of job %s\n", i, b.order.Job.ID)
		select {
		case <-signals:
			return fleet.Stopped, bookstest.Note(b.file, b.order, "sigint", "")
		case <-time.After(pause):
		}
	}
	_ = b.events.Encode(progress.Event{Time: time.Now(), Step: "write", State: progress.Done})
	b.chat()
	if b.chance(20) == 0 && pause > 0 {
		return fleet.Checks, nil
	}
	return fleet.Passed, nil
}

// chat says 1,000 lines a second if the board is a chatty one.
func (b board) chat() {
	data, _ := localfile.Read(filepath.Join(filepath.Dir(b.file), chattyName), 16)
	seconds := 0
	_, _ = fmt.Sscan(string(data), &seconds)
	for i := range seconds * 100 {
		for range 10 {
			fmt.Fprintf(os.Stderr, "%s line %d %s\n", time.Now().Format(time.RFC3339Nano), i, strings.Repeat("=", 80))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

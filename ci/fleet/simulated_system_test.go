package fleet

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"time"
)

// system is the software of a board, with two root file systems. SWUpdate's client installs
// to the one that does not run.
type system struct {
	boots   int
	number  int       // of the board
	root    int       // index of the one that runs
	holds   [2]string // digest of the bundle in each
	waits   bool      // the next boot starts the other one
	good    bool      // the running one was marked good
	entered []string  // installed bundles, in order
	again   int       // how many of these ran already
}

func firstSystem(number int) system {
	return system{number: number, holds: [2]string{"first", "none"}, good: true}
}

// Updated is the result of the updates of one board.
type Updated struct {
	Runs      string // the digest of the bundle that runs
	Good      bool   // the bundle was marked good
	Installed int
	Again     int // installations of a bundle that ran already
}

// Updated returns the result of the updates of the board.
func (b *simulatedBoard) Updated() Updated {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Updated{b.system.holds[b.system.root], b.system.good, len(b.system.entered), b.system.again}
}

const installTakes = 100 * time.Millisecond

// answerUpdate returns the output and exit status of the programs that an update runs. An
// unknown program is not installed.
func (b *simulatedBoard) answerUpdate(line string, input io.Reader) (out string, status int) {
	switch {
	case line == "id -u":
		return "0\n", 0
	case strings.Contains(line, "command -v swupdate-client"):
		return "SWUpdate v2024.12\n", 0
	case strings.Contains(line, "nvbootctrl dump-slots-info"):
		return "== none\n", 0
	case line == "swupdate-client -v":
		time.Sleep(installTakes)
		return b.installBundle(input)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.system
	switch {
	case line == "findmnt -n -o SOURCE /":
		return fmt.Sprintf("/dev/mmcblk0p%d\n", 2+s.root), 0
	case strings.Contains(line, "nvbootctrl verify"): // the script that marks good
		s.good = true
		return "", 0
	case line == "cat /proc/sys/kernel/random/boot_id":
		return fmt.Sprintf("%08x-0000-0000-0000-%012x\n", s.number, s.boots), 0
	case line == "reboot":
		s.reboot()
		go b.closeConns()
		return "", 0
	}
	return "", 127
}

func (s *system) reboot() {
	s.boots++
	if s.waits {
		s.root, s.waits, s.good = 1-s.root, false, false
	}
}

// installBundle installs the bundle that the client reads. One that is cut off changes nothing.
func (b *simulatedBoard) installBundle(input io.Reader) (string, int) {
	data, err := io.ReadAll(input)
	if err != nil || !bytes.Contains(data, []byte("TRAILER!!!")) {
		return "", 1
	}
	digest := fmt.Sprintf("%x", sha256.Sum256(data))
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.system
	if s.holds[s.root] == digest {
		s.again++
	}
	s.entered = append(s.entered, digest)
	s.holds[1-s.root], s.waits = digest, true
	return "SWUPDATE successful !\n", 0
}

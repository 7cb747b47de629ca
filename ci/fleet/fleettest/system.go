package fleettest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// system is the software of a board, with two root file systems. Mender's client installs
// to the one that does not run. The answers are those of Mender's documentation.
type system struct {
	boots   int
	number  int       // of the board
	root    int       // index of the one that runs
	holds   [2]string // digest of the artifact in each
	waits   bool      // the next boot starts the other one
	good    bool      // the running one was committed
	entered []string  // installed artifacts, in order
	again   int       // how many of these ran already
}

func firstSystem(number int) system {
	return system{number: number, holds: [2]string{"first", "none"}, good: true}
}

// Updated is the result of the updates of one board.
type Updated struct {
	Runs      string // the digest of the artifact that runs
	Good      bool   // the artifact was committed
	Installed int
	Again     int // installations of an artifact that ran already
}

// Updated returns the result of the updates of the board.
func (b *Board) Updated() Updated {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Updated{b.system.holds[b.system.root], b.system.good, len(b.system.entered), b.system.again}
}

const installTakes = 100 * time.Millisecond

// answerUpdate returns the output and exit status of the programs that an update runs. An
// unknown program is not installed.
func (b *Board) answerUpdate(argv []string, line string) (out string, status int) {
	switch {
	case line == "id -u":
		return "0\n", 0
	case strings.Contains(line, "mender-update mender"):
		return "mender-update\n", 0
	case strings.Contains(line, "nvbootctrl dump-slots-info"):
		return "== none\n", 0
	case strings.Contains(line, "df -Pk"):
		return "/data /dev/mmcblk0p4 8000000 1 7999999 1% /data\n", 0
	case line == "cat /var/lib/mender/device_type":
		return "device_type=simulated\n", 0
	case slices.Equal(argv[:min(2, len(argv))], []string{"mender-update", "install"}):
		time.Sleep(installTakes)
		return b.installArtifact(argv[2])
	case slices.Equal(argv[:min(2, len(argv))], []string{"rm", "-f"}):
		return "", 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.system
	switch line {
	case "findmnt -n -o SOURCE /":
		return fmt.Sprintf("/dev/mmcblk0p%d\n", 2+s.root), 0
	case "mender-update show-artifact":
		return s.holds[s.root] + "\n", 0
	case "mender-update commit":
		s.good = true
		return "", 0
	case "cat /proc/sys/kernel/random/boot_id":
		return fmt.Sprintf("%08x-0000-0000-0000-%012x\n", s.number, s.boots), 0
	case "reboot":
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

func (b *Board) installArtifact(file string) (string, int) {
	f := b.disk.findFile(file)
	if f == nil {
		return "", 1
	}
	digest := f.sha256Hex()
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.system
	if s.holds[s.root] == digest {
		s.again++
	}
	s.entered = append(s.entered, digest)
	s.holds[1-s.root], s.waits = digest, true
	return "", 0
}

package tegra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"slipway/layers/plaintext"
	"slipway/layers/progress"
)

// nvidiaVendor is NVIDIA's USB vendor ID.
const nvidiaVendor = "0955"

// module is the Jetson module with a USB product ID.
type module struct{ chip, name string }

// modules maps USB product IDs in recovery mode to modules, but not 7045, a board's debug chip.
var modules = map[string]module{
	"7721": {"t210", "Jetson TX1"},
	"7f21": {"t210", "Jetson Nano"},
	"7c18": {"t186", "Jetson TX2"},
	"7418": {"t186", "Jetson TX2 4GB"},
	"7018": {"t186", "Jetson TX2i"},
	"7019": {"t194", "Jetson AGX Xavier"},
	"7819": {"t194", "Jetson AGX Xavier Industrial"},
	"7919": {"t194", "Jetson AGX Xavier Industrial"},
	"7e19": {"t194", "Jetson Xavier NX"},
	"7023": {"t234", "Jetson AGX Orin 64GB"},
	"7223": {"t234", "Jetson AGX Orin 32GB"},
	"7323": {"t234", "Jetson Orin NX 16GB"},
	"7423": {"t234", "Jetson Orin NX 8GB"},
	"7523": {"t234", "Jetson Orin Nano 8GB"},
	"7623": {"t234", "Jetson Orin Nano 4GB"},
	"7026": {"t264", "Jetson Thor T5000"},
	"7226": {"t264", "Jetson Thor T4000"},
}

// running maps the USB product IDs of a Jetson that is not in recovery mode to its state.
var running = map[string]string{
	"7020": "runs its Linux",
	"7035": "runs NVIDIA's flashing system",
}

// Recovery is a Jetson that waits in recovery mode.
type Recovery struct {
	Port    string `json:"port"`
	Product string `json:"product"` // NVIDIA's number, four hexadecimal digits
	Chip    string `json:"chip"`    // t234
	Module  string `json:"module"`
	Number  int    `json:"number"` // the kernel's count on the bus, new each time the board appears
	Mbit    int    `json:"mbit,omitempty"`
}

// portName matches the kernel's name for a USB port.
var portName = plaintext.Regexp(`^[1-9][0-9]{0,3}-[1-9][0-9]{0,2}(\.[1-9][0-9]{0,2}){0,6}$`)

// List returns the Jetsons in recovery mode, sorted by port; none without a USB bus. sys is /sys.
func List(sys string) ([]Recovery, error) {
	dir := filepath.Join(sys, "bus/usb/devices")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no USB at all
	}
	if err != nil {
		return nil, fmt.Errorf("list USB devices: %w", err)
	}
	var found []Recovery
	for _, e := range entries {
		if r, ok := recoveryAt(sys, e.Name()); ok {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b Recovery) int { return strings.Compare(a.Port, b.Port) })
	return found, nil
}

// CheckPort returns an error if port is not the name of a USB port.
func CheckPort(port string) error {
	if !portName().MatchString(port) {
		return fmt.Errorf("%q is no USB port; it looks like 1-2.3\nnext: devices", port)
	}
	return nil
}

// At returns the Jetson in recovery mode on a port. The error says what is on the port instead.
func At(sys, port string) (Recovery, error) {
	if err := CheckPort(port); err != nil {
		return Recovery{}, err
	}
	if r, ok := recoveryAt(sys, port); ok {
		return r, nil
	}
	return Recovery{}, fmt.Errorf("USB port %s: %s", port, explainAbsence(sys, port))
}

// recoveryAt returns the Jetson in recovery mode on a port; false if none is.
func recoveryAt(sys, port string) (Recovery, bool) {
	if !portName().MatchString(port) || readAttribute(sys, port, "idVendor") != nvidiaVendor {
		return Recovery{}, false
	}
	product := readAttribute(sys, port, "idProduct")
	m, ok := modules[product]
	return Recovery{
		Port: port, Product: product, Chip: m.chip, Module: m.name,
		Number: parseCount(readAttribute(sys, port, "devnum")), Mbit: parseCount(readAttribute(sys, port, "speed")),
	}, ok
}

// explainAbsence returns what is on the port in place of a Jetson in recovery mode, and what to do.
func explainAbsence(sys, port string) string {
	const enter = "\nnext: devices  # after holding the board's recovery button (or bridging FC REC to ground) while it gets power"
	v, p := readAttribute(sys, port, "idVendor"), readAttribute(sys, port, "idProduct")
	switch {
	case v == "":
		return "nothing is connected there" + enter
	case v == nvidiaVendor && running[p] != "":
		return "the Jetson there " + running[p] + enter
	case v == nvidiaVendor && p == "7045":
		return "that is the board's debug chip, not its module; the module has a port of its own" + enter
	}
	name := plaintext.OneLine(readAttribute(sys, port, "product"))
	return fmt.Sprintf("USB device %s:%s %s is no Jetson in recovery mode%s", plaintext.OneLine(v), plaintext.OneLine(p), name, enter)
}

// readAttribute returns up to 256 bytes of a USB attribute from sysfs; "" if it cannot be read.
func readAttribute(sys, port, name string) string {
	const longest = 256
	data, err := os.ReadFile(filepath.Join(sys, "bus/usb/devices", port, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data[:min(len(data), longest)]))
}

// parseCount parses a decimal number; 0 for a negative or invalid one.
func parseCount(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// forceLimit is the time for the recovery command, and then for the board to appear on USB.
var forceLimit = 60 * time.Second

const pollEvery = 100 * time.Millisecond

// Force runs command, which brings the board on a port into recovery mode, and waits for it on USB.
// A board that was in recovery mode must reappear, because its boot ROM talks only once.
func Force(ctx context.Context, h Host, port string, command func(context.Context) error) error {
	if err := CheckPort(port); err != nil {
		return err
	}
	return progress.Run(ctx, "recovery "+port, func(s *progress.Step) (string, error) {
		before, _ := recoveryAt(h.Sys, port)
		limited, stop := context.WithTimeoutCause(ctx, forceLimit, fmt.Errorf("the command of board.yml's flash.recovery took more than %v", forceLimit))
		defer stop()
		s.Detail("running the board's recovery command")
		if err := command(limited); err != nil {
			return "", fmt.Errorf("force recovery mode: %w", err)
		}
		s.Detail("waiting for it on USB")
		found, err := h.waitForRecovery(ctx, port, before.Number)
		return found.Module + " in recovery mode", err
	})
}

// waitForRecovery waits up to forceLimit for a Jetson on the port whose USB number is not before.
func (h Host) waitForRecovery(ctx context.Context, port string, before int) (Recovery, error) {
	late := time.NewTimer(forceLimit)
	defer late.Stop()
	for {
		found, ok := recoveryAt(h.Sys, port)
		if ok && found.Number != before {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return Recovery{}, context.Cause(ctx)
		case <-late.C:
			if ok {
				return Recovery{}, fmt.Errorf("USB port %s: the board on it did not come back in %v after the recovery command; does the command act on this board?", port, forceLimit)
			}
			return Recovery{}, fmt.Errorf("USB port %s: no Jetson in recovery mode in %v after the recovery command: %s", port, forceLimit, explainAbsence(h.Sys, port))
		case <-time.After(pollEvery):
		}
	}
}

// FillPort returns command with {port} replaced by port in each word, so that one command can serve
// several relays. It returns an error for an empty command.
func FillPort(command []string, port string) ([]string, error) {
	if len(command) == 0 {
		return nil, errors.New("board.yml has no flash.recovery: a command that brings the board into recovery mode")
	}
	filled := make([]string, len(command))
	for i, word := range command {
		filled[i] = strings.ReplaceAll(word, "{port}", port)
	}
	return filled, nil
}

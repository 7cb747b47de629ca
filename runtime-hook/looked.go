package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// The runtime and the hook that it adds work for one container, milliseconds apart. What
// the first looked at, some hundred files of the board, the second need not look at again.
// So the runtime tells the hook when it looked, in its arguments. Those stay in a bundle
// that is used again; then the time has passed.

// lookedFor is how long it counts, in ns.
const lookedFor = 2_000_000_000

// uptime returns the time in ns since the board booted, with the time that it slept.
func uptime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}

// lookedArg returns the argument that tells the hook when the board was last looked at.
func lookedArg(at int64) string { return "--looked=" + strconv.FormatInt(at, 10) }

// lookedJustNow reports whether that time has just passed.
func lookedJustNow(at int64) bool {
	ago := uptime() - at
	return at > 0 && ago >= 0 && ago < lookedFor
}

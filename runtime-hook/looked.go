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

// uptime is the time since the board booted, in ns, also of when it slept.
func uptime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}

// lookedArg tells the hook that the board was looked at when its uptime was at.
func lookedArg(at int64) string { return "--looked=" + strconv.FormatInt(at, 10) }

// lookedNow reports whether that was just now.
func lookedNow(at int64) bool {
	ago := uptime() - at
	return at > 0 && ago >= 0 && ago < lookedFor
}

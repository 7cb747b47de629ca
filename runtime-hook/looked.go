package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// slipway-runtime and its hook run for one container, milliseconds apart. What the runtime checked,
// some hundred files of the board, the hook need not check again. So the runtime passes the time of
// its check in the hook's arguments. They stay in the bundle, but hold for two seconds only.

// lookedFor is how long the runtime's check is valid, in ns.
const lookedFor = 2_000_000_000

// uptime returns the time in ns since the board booted, suspend included; 0 if it is unknown.
func uptime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	return t.Nano()
}

// lookedArg returns the hook's argument for a check of the board at that uptime.
func lookedArg(at int64) string { return "--looked=" + strconv.FormatInt(at, 10) }

// lookedJustNow reports whether the check at that uptime is still valid.
func lookedJustNow(at int64) bool {
	ago := uptime() - at
	return at > 0 && ago >= 0 && ago < lookedFor
}

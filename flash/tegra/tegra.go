// Package tegra puts a tegraflash package onto Jetsons in recovery mode: it reads
// what the package is, runs the package's own scripts and NVIDIA's tools for the
// board on one USB port, and says what came of it by the board's own word. What the
// boot ROM is told stays in NVIDIA's programs.
//
// Words. A port is the kernel's name for a place on the USB bus, as 1-2.3; boards
// come and go there under changing numbers. A flow is the order in which a package's
// script works.
package tegra

// Package tegra flashes a tegraflash package onto Jetsons in recovery mode. It runs the
// package's scripts and NVIDIA's tools on one USB port, and never talks to the boot ROM
// itself. A port is the kernel's name for a place on the USB bus, as 1-2.3. Boards come
// and go there under changing numbers. A flow is the order in which a package's script
// works.
package tegra

// Slipway builds images for Jetson boards and BlueField DPUs, flashes them and tests the boards.
package main

import (
	"os"

	"slipway/magefiles/commands"
)

func main() { os.Exit(commands.Main(os.Args[1:], os.Stderr)) }

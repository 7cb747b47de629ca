// Slipway builds images for Jetson boards and BlueField DPUs, puts them on boards and proves
// on the board that they work.
package main

import (
	"os"

	"slipway/magefiles/commands"
)

func main() { os.Exit(commands.Main(os.Args[1:], os.Stderr)) }

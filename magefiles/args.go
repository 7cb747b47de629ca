//go:build mage

package main

import (
	"os"
	"slices"
	"strings"
)

// optional names the argument that may follow a command without its -name=.
// Mage knows optional arguments only as flags, and people type "doctor virt".
var optional = map[string]string{
	"up": "board", "doctor": "board", "bench": "area", "soak": "area",
	"cache:serve": "dir", "virt:start": "board", "virt:stop": "board", "virt:ssh": "board", "virt:console": "board",
}

func init() { os.Args = arrange(os.Args) }

// arrange rewrites a command line into the one that Mage takes: "up -h" becomes
// "-h up", "doctor virt" becomes "doctor -board=virt", "--json" becomes "-json".
func arrange(args []string) []string {
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	command, rest := args[1], slices.Clone(args[2:])
	for i, arg := range rest {
		if arg == "-h" || arg == "--help" || arg == "-help" {
			return []string{args[0], "-h", command}
		}
		if strings.HasPrefix(arg, "--") && len(arg) > 2 {
			rest[i] = arg[1:]
		}
	}
	name, ok := optional[strings.ToLower(command)]
	if ok && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		rest[0] = "-" + name + "=" + rest[0]
	}
	return append([]string{args[0], command}, rest...)
}

// words are what stands between the commas of a list.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

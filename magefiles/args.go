//go:build mage

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// optional names the argument that may follow a command without its -name=.
// Mage knows optional arguments only as flags, and people type "doctor virt".
var optional = map[string]string{
	"up": "board", "doctor": "board", "bench": "area", "soak": "area",
	"cache:serve": "dir", "rshim:show": "device", "virt:start": "board", "virt:stop": "board", "virt:ssh": "board", "virt:console": "board",
	"rig:up": "board", "rig:build": "board", "rig:down": "board", "rig:ssh": "board",
}

// short are the names of commands whose namespace has the same one, which Go does not
// let a function have too.
var short = map[string]string{"deploy": "deploy:board"}

// several names the argument that may be given more than once, with blanks between. A
// command gets them with commas.
var several = map[string]bool{"report": true}

// wanted are the arguments that a command cannot do without. Mage says only how many
// there are.
var wanted = map[string][]string{
	"bmap": {"image"}, "pack": {"image"}, "report": {"file"},
	"build": {"board"}, "flash": {"board", "device"}, "deploy": {"board", "host"}, "smoke": {"board", "host"}, "cache:report": {"board"},
	"bfb:list": {"file"}, "bfb:check": {"file"}, "bfb:make": {"file"}, "bfb:extract": {"file"}, "bfb:config": {"file"}, "rshim:reset": {"device"},
	"update": {"board", "host", "bundle"}, "deploy:board": {"board", "host"}, "deploy:container": {"board", "host", "image"},
	"fleet:list": {"inventory"}, "fleet:deploy": {"board", "inventory"}, "fleet:smoke": {"board", "inventory"}, "fleet:pin": {"board", "inventory"},
	"deploy:run": {"board", "host", "image"}, "deploy:clean": {"board", "host"},
	"deploy:files": {"board", "host", "folder", "destination"}, "deploy:service": {"board", "host", "file"}, "deploy:undo": {"board", "host"}, "deploy:config": {"board", "host", "file"},
	"layers:checkout": {"board"}, "layers:lock": {"board"}, "layers:dump": {"board"}, "layers:status": {"board"}, "layers:diff": {"board"}, "layers:shell": {"board"},
}

func init() {
	os.Args = arrange(os.Args)
	if lack := lacking(os.Args); lack != "" {
		fmt.Fprintln(os.Stderr, "Error: "+lack)
		os.Exit(2)
	}
}

// lacking says which argument is missing, and where it is to be had.
func lacking(args []string) string {
	if len(args) < 2 {
		return ""
	}
	named := slices.DeleteFunc(slices.Clone(args[2:]), func(arg string) bool { return strings.HasPrefix(arg, "-") })
	all := wanted[strings.ToLower(args[1])]
	if len(named) >= len(all) {
		return ""
	}
	from := map[string]string{"board": "boards lists them", "device": "devices lists them", "host": "the board's address", "file": "its path", "bundle": "a file for the board's engine", "inventory": "a file of Ansible's", "image": "an archive, a layout or oci://", "folder": "one of this machine", "destination": "a folder on the board"}
	missing := all[len(named)]
	return fmt.Sprintf("%s: the %s is missing (%s); -h %[1]s explains it", args[1], missing, from[missing])
}

// arrange rewrites a command line into the one that Mage takes: "up -h" becomes
// "-h up", "doctor virt" becomes "doctor -board=virt", "--json" becomes "-json".
func arrange(args []string) []string {
	if len(args) == 3 && args[1] == "-h" {
		args = []string{args[0], args[2], "-h"}
	}
	if len(args) < 2 || strings.HasPrefix(args[1], "-") {
		return args
	}
	command, rest := args[1], slices.Clone(args[2:])
	if full, ok := short[strings.ToLower(command)]; ok {
		command = full
	}
	if i := slices.Index(rest, "--"); i >= 0 {
		rest = append(rest[:i], "-argv="+asJSON(rest[i+1:]))
	}
	for i, arg := range rest {
		if arg == "-h" || arg == "--help" || arg == "-help" {
			return []string{args[0], "-h", command}
		}
		if strings.HasPrefix(arg, "--") && len(arg) > 2 {
			rest[i] = arg[1:]
		}
	}
	named := slices.IndexFunc(rest, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if name, ok := optional[strings.ToLower(command)]; ok && named >= 0 {
		rest[named] = "-" + name + "=" + rest[named]
	}
	if several[strings.ToLower(command)] {
		rest = joined(rest)
	}
	return append([]string{args[0], command}, rest...)
}

// joined puts the arguments that are no flags into one, before the flags.
func joined(args []string) []string {
	var named, flags []string
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			flags = append(flags, arg)
		} else {
			named = append(named, arg)
		}
	}
	if len(named) == 0 {
		return flags
	}
	return append([]string{strings.Join(named, ",")}, flags...)
}

// asJSON and rest carry what stands behind "--" through Mage, which would take it for
// more commands.
func asJSON(args []string) string {
	text, _ := json.Marshal(args) // strings always can be
	return string(text)
}

func rest(text string) (args []string) {
	if json.Unmarshal([]byte(text), &args) != nil && text != "" {
		return []string{text} // a person gave a single word as -argv
	}
	return args
}

// words are what stands between the commas of a list.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// list is what stands between the commas; paths may have blanks.
func list(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

// octal is a file's mode as chmod takes it.
func octal(text string) (os.FileMode, error) {
	bits, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return 0, fmt.Errorf("mode %q: want one in octal, from 0 to 0777", text)
	}
	return os.FileMode(bits), nil
}

package main

import (
	"path/filepath"
	"strings"
)

// runtimeCall is a command line of runc or crun.
type runtimeCall struct {
	Creates bool   // the command creates a container
	Config  string // path of that container's config.json
	Log     string // file to which the runtime writes errors; "" for none
	JSON    bool   // errors are lines of JSON
}

// commands are those of runc and crun. A word before them is the value of an option unknown here.
var commands = map[string]bool{
	"checkpoint": true, "create": true, "delete": true, "events": true, "exec": true, "features": true,
	"init": true, "kill": true, "list": true, "pause": true, "ps": true, "restore": true, "resume": true,
	"run": true, "spec": true, "start": true, "state": true, "update": true,
}

// optionsWithValue are the options whose value is the next argument, if they have no "=".
var optionsWithValue = map[string]bool{
	"cgroup-manager": true, "criu": true, "log": true, "log-format": true, "log-level": true, "root": true, "rootless": true,
	"b": true, "bundle": true, "console-socket": true, "f": true, "config": true, "pid-file": true, "preserve-fds": true,
}

// parseCall parses arguments of runc or crun, without the program's name. It skips unknown ones.
func parseCall(args []string) runtimeCall {
	var c runtimeCall
	command := ""
	for len(args) > 0 && command == "" {
		var o option
		o, args = nextOption(args)
		switch {
		case commands[o.word]:
			command = o.word
		case o.name == "log":
			c.Log = o.value
		case o.name == "log-format":
			c.JSON = o.value == "json"
		}
	}
	if c.Creates = command == "create" || command == "run"; c.Creates {
		c.Config = configPath(args)
	}
	return c
}

// configPath returns the path of config.json by the options --bundle (default: .) and --config,
// before or after the container's name, up to "--". Of several the last counts.
func configPath(args []string) string {
	bundle, file := ".", "config.json"
	for len(args) > 0 && args[0] != "--" {
		var o option
		o, args = nextOption(args)
		switch {
		case o.name == "" || o.value == "":
		case strings.HasPrefix("bundle", o.name):
			bundle = o.value
		case o.name == "f" || o.name == "config":
			file = o.value
		}
	}
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(bundle, file)
}

// option is one argument: a word, or a name with its value.
type option struct{ word, name, value string }

// nextOption removes one word, or one option with its value, from args. runc accepts long options
// with one dash. crun accepts a short option's value without a space.
func nextOption(args []string) (option, []string) {
	first, rest := args[0], args[1:]
	name, value, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(first, "-"), "-"), "=")
	if first == "" || first[0] != '-' || name == "" {
		return option{word: first}, rest
	}
	// crun accepts the beginning of a long option.
	if !given && (optionsWithValue[name] || strings.HasPrefix("bundle", name)) && len(rest) > 0 {
		return option{name: name, value: rest[0]}, rest[1:]
	}
	if !strings.HasPrefix(first, "--") && !optionsWithValue[name] && (name[:1] == "b" || name[:1] == "f") {
		return option{name: name[:1], value: first[2:]}, rest
	}
	return option{name: name, value: value}, rest
}

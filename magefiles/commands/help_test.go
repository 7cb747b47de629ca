package commands

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"slipway/layers/host"
)

// outputOf runs a line and returns what it prints as help or for a shell.
func outputOf(t *testing.T, args ...string) string {
	t.Helper()
	root := Root()
	var out bytes.Buffer
	root.SetOut(&out)
	if err := Run(t.Context(), root, args); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return out.String()
}

// Each command explains its flags, in lines that fit a terminal.
func TestHelp(t *testing.T) {
	for _, cmd := range append(allCommands(), Root()) {
		path := pathOf(cmd)
		if len(cmd.Short) > 85 || strings.HasSuffix(cmd.Short, ".") || strings.Contains(cmd.Short, ". ") {
			t.Errorf("%q: the short help is no single short sentence: %s", path, cmd.Short)
		}
		if first, _, _ := strings.Cut(cmd.Short, " "); strings.HasSuffix(first, "s") && first != "Compress" {
			t.Errorf("%q: the short help begins with %q; want an imperative", path, first)
		}
		help := outputOf(t, append(path, "--help")...)
		text, examples, _ := strings.Cut(help, "\nExamples:\n")
		if len(path) > 0 && path[0] != "suites" && cmd.Example == "" || cmd.Example != "" && !strings.Contains(examples, strings.SplitN(cmd.Example, "\n", 2)[0]) {
			t.Errorf("%q has no example in its help", path)
		}
		for line := range strings.Lines(text) {
			if len([]rune(line)) > pipedHelp+1 && !strings.Contains(line, os.Args[0]) {
				t.Errorf("%q: a line of its help has %d characters: %s", path, len(line), line)
			}
		}
		if reaches := strings.Contains(cmd.Use, " HOST") || cmd.Flag("canary") != nil; reaches && cmd.Name() != "run" && !strings.Contains(examples, "\nExit statuses:\n") {
			t.Errorf("%q: its help has no exit statuses", path)
		}
		if _, optional, found := strings.Cut(cmd.Use, "["); found && path[0] != "help" {
			name := optional[:strings.IndexAny(optional+"]", " ],-[")]
			if !strings.Contains(cmd.Long, name) {
				t.Errorf("%q: its help does not explain [%s]", path, name)
			}
		}
		for _, flag := range cmdFlags(cmd) {
			if !strings.Contains(text, "  "+flag) {
				t.Errorf("%q: its help lacks %s", path, flag)
			}
		}
	}
}

func cmdFlags(cmd *cobra.Command) (all []string) {
	_, flags := exampleArgs(cmd)
	for _, f := range flags {
		name, _, _ := strings.Cut(f, "=")
		all = append(all, name)
	}
	return all
}

// A list in a help text keeps its lines, and the values that a word can have are named.
func TestHelpText(t *testing.T) {
	for line, want := range map[string]string{
		"up --help":         ":\n1. install the packages",
		"devices --help":    "\n- disks and cards, with their contents, and the reasons not to write them\n- Jetsons",
		"completion --help": "\nSHELL is one of bash, zsh, fish.\n",
		"fleet":             "\n" + host.ProgramName() + " fleet COMMAND --help explains one of them.\n",
		"board":             "\nCommands:\n  check  ",
		"-h deploy files":   "Make a folder on a board equal",
		"help flash -h":     "Write a board's image",
		"help help":         "Explain a command.",
	} {
		if got := outputOf(t, strings.Fields(line)...); !strings.Contains(got, want) {
			t.Errorf("%s: want %q in\n%s", line, want, got)
		}
	}
}

// Flags stand before "--", which ends them.
func TestUsageLine(t *testing.T) {
	cmd, _, err := Root().Find([]string{"rig", "ssh"})
	if want := host.ProgramName() + " rig ssh [BOARD] [-- COMMAND...]"; err != nil || usageLine(cmd, host.ProgramName()) != want {
		t.Errorf("usageLine = %s, %v; want %s", usageLine(cmd, host.ProgramName()), err, want)
	}
	cmd, _, err = Root().Find([]string{"deploy", "run"})
	if want := " run BOARD HOST IMAGE [--flag=value...] [-- COMMAND...]"; err != nil || !strings.HasSuffix(usageLine(cmd, "x"), want) {
		t.Errorf("usageLine = %s, %v; want it to end with %s", usageLine(cmd, "x"), err, want)
	}
}

// Examples are lines that Slipway understands.
func TestExamples(t *testing.T) {
	for _, cmd := range allCommands() {
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			line, _, _ = strings.Cut(line, "  # ")
			if words, ok := strings.CutPrefix(line, "slipway "); ok && !strings.ContainsAny(line, `'>`) {
				if err := parse(strings.Fields(words)...); err != nil {
					t.Errorf("%q: %s: %v", pathOf(cmd), line, err)
				}
			} else if line != "" && !ok && !strings.HasPrefix(line, "source <(slipway ") {
				t.Errorf("%q: the example %q is not of slipway", pathOf(cmd), line)
			}
		}
	}
}

// A shell is told the boards, devices and suites that may follow.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"fl":                               "flash fleet",
		"flash vi":                         "virt virt-arm64",
		"push vi":                          "virt virt-arm64",
		"flash virt d --holes=":            "zero keep",
		"smoke virt virt --suite=ba":       "base",
		"smoke virt virt --suite=base,sl":  "base,slots",
		"deploy run virt virt i --engine ": "containerd docker podman",
		"up --as ":                         "json junit html tap",
		"rshim show ":                      "",
		"help deploy fi":                   "files",
		"smoke virt virt --suite=base --no-reboot --as=": "json junit html tap",
		"completion ":                "bash zsh fish",
		"boar":                       "board boards",
		"board ":                     "check new",
		"init --like=vi":             "virt virt-arm64",
		"board new x --like=qemuarm": "qemuarm64",
		"init --ci=":                 "buildbot github gitlab jenkins",
		"init --ci=github,":          "github,buildbot github,github github,gitlab github,jenkins",
		"boards ":                    "",
	} {
		words := strings.Split(line, " ")
		var got []string
		for said := range strings.Lines(outputOf(t, append([]string{cobra.ShellCompRequestCmd}, words...)...)) {
			name, _, _ := strings.Cut(strings.TrimSpace(said), "\t")
			if last := words[len(words)-1]; !strings.HasPrefix(name, ":") && strings.HasPrefix(name, last[strings.Index(last, "=")+1:]) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q is completed by %q; want %q", line, got, want)
		}
	}
}

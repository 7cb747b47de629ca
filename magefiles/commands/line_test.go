package commands

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"slipway/images"
	"slipway/layers/host"
)

// allCommands returns the commands that do something, in a new tree.
func allCommands() (all []*cobra.Command) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.HasParent() && !isGroup(cmd) {
			all = append(all, cmd)
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(Root())
	return all
}

// isGroup reports whether a command only has others below it.
func isGroup(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && !strings.Contains(cmd.Use, " ")
}

func parse(args ...string) error { return Parse(context.Background(), Root(), args) }

func TestLines(t *testing.T) {
	for _, line := range []string{
		"", "-h", "--help", "help", "help flash", "help deploy files", "version", "--version", "--version --json",
		"up -h", "flash virt typo -bogus --help", "deploy -h", "fleet", "layers --help", "completion bash",
		"doctor virt", "doctor --json virt", "BOARDS --json", "build --parse virt", "build virt --dry-run=false",
		"flash virt d --dry-run", "flash --dry-run virt d", "flash virt --image x.wic d", "flash virt --image=x.wic d --yes A,B",
		"deploy virt virt", "deploy files virt virt a b", "report a b --out=c", "report --as tap a,b",
		"fleet update b i u --canary=0", "fleet deploy --limit rack1 b i", "bfb extract f --prefix=-",
		"deploy run b h i -- ls -l --help", "rig ssh r -- sh -c -- ls", "rig ssh -- ls",
		"smoke h --suite=a.yml", "smoke b h --suite a.yml", "smoke b h", "layers lock b --update", "layers lock b --update=a,b",
		"smoke b h --become=false", "boards --boards x", "boards --boards=x --json", "update b h u --rate 10M",
		"init --like=virt", "init lab --like virt --ci=github,gitlab --name=x --dry-run --json", "board", "board new x --like=virt", "board check --json",
		"-h flash", "--help deploy files", "help flash -h", "help -h", "help help", "boards -help",
		"deploy --become files virt virt a b", "fleet --json -h", "layers lock --update b",
	} {
		if err := parse(strings.Fields(line)...); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// wrongLines are lines that are refused, with what is said of them.
var wrongLines = map[string]string{
	"--json boards":                                 `"--json" is not understood before a command: flags come after it` + "\nnext: NAME boards --json",
	"fleet --json list i":                           `fleet: "--json" is not understood before a command: flags come after it` + "\nnext: NAME fleet list i --json",
	"fleet --limit r list i":                        "next: NAME fleet list i --limit r",
	"deploy --dry-run files virt virt a b":          "next: NAME deploy files virt virt a b --dry-run",
	"deploy --dry-run virt virt":                    `deploy: unknown flag "--dry-run": the command has --pin`,
	"fleet --json":                                  `fleet: "--json" is not understood before a command` + "\nnext: NAME fleet --help",
	"flsh virt d --dry-run":                         `unknown command "flsh": did you mean flash?`,
	"flsh -h":                                       `unknown command "flsh": did you mean flash?`,
	"layers chekout b --json":                       `unknown command "layers chekout": did you mean layers checkout?`,
	"layers nosuch -h":                              `unknown command "layers nosuch"`,
	"deploy fils virt virt a b --delete":            `unknown command "deploy fils": did you mean deploy files?`,
	"deploy clea virt":                              `unknown command "deploy clea": did you mean deploy clean?`,
	"deploy:files virt virt a b":                    `unknown command "deploy:files"`,
	"flash virt d -dryrun":                          `unknown flag "-dryrun": did you mean --dry-run?`,
	"flash virt d -blockmap=m":                      `unknown flag "-blockmap": did you mean --block-map?`,
	"up -board=virt":                                `unknown flag "-board": `,
	"boards --JSON":                                 `unknown flag "--JSON": did you mean --json?`,
	"-h nosuch":                                     `unknown command "nosuch"`,
	"up --keep false":                               "up: --keep false: write it as --keep=false",
	"flash virt --blind false":                      "flash: --blind false: write it as --blind=false",
	"deploy virt --become 0":                        "deploy: --become 0: write it as --become=0",
	"smoke virt --become FALSE":                     "smoke: --become FALSE: write it as --become=FALSE",
	"cache serve --json true":                       "--json true: write it as --json=true",
	"layers lock b --update meta-tegra":             `"meta-tegra" is one word too many: write a value of --update as --update=meta-tegra`,
	"up --board=--keep":                             `unknown flag "--board"`,
	"smoke h --board=virt --suite=s":                `smoke: unknown flag "--board"`,
	"smoke b h --as=":                               "--as=: a name is empty",
	"report a, b --as=tap":                          `FILE "a,": a name is empty`,
	"rshim show a,":                                 `DEVICE "a,": a name is empty`,
	"flash virt -":                                  `DEVICE "-"`,
	"report - --as=tap":                             `FILE "-"`,
	"deploy run b h --env -- img":                   "deploy run: --env has no value: write it as --env=VALUE",
	"fleet --":                                      `fleet: "--" is not understood before a command`,
	"rig -- ssh":                                    `rig: "--" is not understood before a command`,
	"boards -j":                                     `unknown flag "-j": the command has --json`,
	"--limit r fleet list i":                        "flags come after it\nnext: NAME fleet list i --limit r",
	"flash virt d --holes=foo":                      "--holes=foo: want zero, keep",
	"deploy run b h i --engine=dockr":               "--engine=dockr: want containerd, docker, podman",
	"fleet deploy b i --mode=0600":                  "--mode does nothing without --file\nnext: NAME fleet deploy --help",
	"fleet deploy b i --owner=app":                  "--owner does nothing without --file",
	"fleet deploy b i --file=f":                     "--file does nothing without --to",
	"deploy service b h f --watch=9":                "--watch does nothing without --restart",
	"deploy service b h f --keep":                   "--keep does nothing without --restart",
	"doctor --conf=x":                               "--conf does nothing without --branch",
	"doctor --branch=x":                             "--branch does nothing without --conf",
	"doctor virt --conf=x --branch=y":               "BOARD does nothing beside --conf",
	"-- boards":                                     `"--" is not understood before a command`,
	"--version boards":                              `version: "boards" is one word too many`,
	"help nosuch":                                   `unknown command "nosuch"`,
	"help deploy nosuch":                            `unknown command "deploy nosuch"`,
	"completion nosuch":                             `completion: SHELL "nosuch": want bash, zsh, fish`,
	"flsh virt d":                                   `unknown command "flsh": did you mean flash?` + "\nnext: NAME flash --help",
	"dump":                                          `did you mean layers dump?` + "\nnext: NAME layers dump --help",
	"lock":                                          `did you mean layers lock?`,
	"vrit":                                          `did you mean virt?`,
	"clean":                                         `Slipway's command for that is build --task=clean` + "\nnext: NAME build --task=clean --help",
	"bmaptool copy a b":                             `Slipway's command for that is flash`,
	"rpi-imager":                                    `Slipway's command for that is flash`,
	"mender-cli artifacts":                          `Slipway's command for that is push`,
	"ansible-playbook x":                            `Slipway's command for that is fleet deploy`,
	"devtool modify x":                              `Slipway's command for that is layers shell`,
	"for-all-repos x":                               `Slipway's command for that is layers shell`,
	"layers for-all-repos x":                        `Slipway's command for that is layers shell`,
	"shell kas.yml":                                 `Slipway's command for that is layers shell`,
	"qqq":                                           `unknown command "qqq"` + "\nnext: NAME help",
	"build virt -c x":                               `unknown flag "-c": Slipway's flag for that is --task`,
	"layers shell b -c x":                           `unknown flag "-c": Slipway's flag for that is --command`,
	"build virt -k":                                 `unknown flag "-k": Slipway's flag for that is --continue`,
	"-vv":                                           "-vv: the output has no levels; all that programs say is in the logs below build/\nnext: NAME help",
	"-v build virt":                                 "-v: the output has no levels; all that programs say is in the logs below build/\nnext: NAME build virt",
	"build virt --verbose":                          "build: --verbose: the output has no levels; all that programs say is in the logs below build/\nnext: NAME build virt",
	"report":                                        "FILE is missing",
	"bfb make o":                                    "--base or --images is missing",
	"flash b /dev/x /dev/y --blind":                 `"/dev/y" is one word too many: write several devices with commas between them` + "\nnext: NAME flash b /dev/x,/dev/y --blind",
	"flash b /dev/x usb:1-2 /dev/y":                 "next: NAME flash b /dev/x,usb:1-2,/dev/y",
	"flash b /dev/x /dev/x --yes=/dev/x":            "next: NAME flash b /dev/x --yes=/dev/x",
	"fleet run i -n -- head -n 1":                   "next: NAME fleet run i --dry-run -- head -n 1",
	"smoke a.yml b.yml c.yml":                       `"c.yml" is one word too many: it takes [BOARD] HOST`,
	"smoke b h --format=tap":                        "Slipway's flag for that is --as\nnext: NAME smoke b h --as=tap",
	"flash b /dev/x y":                              `"y" is one word too many: it takes`,
	"flash b d --bmap x.bmap":                       "Slipway's flag for that is --block-map\nnext: NAME flash b d --block-map x.bmap",
	"flash b d --bmap=x.bmap":                       "Slipway's flag for that is --block-map\nnext: NAME flash b d --block-map=x.bmap",
	"flash b d --img=x.img":                         "Slipway's flag for that is --image\nnext: NAME flash b d --image=x.img",
	"flash b d --force":                             "Slipway's flag for that is --yes\nnext: NAME flash --help",
	"flash b d --force=x":                           "Slipway's flag for that is --yes\nnext: NAME flash --help",
	"flash b d -y":                                  "Slipway's flag for that is --yes\nnext: NAME flash --help",
	"bfb-install --bfb x":                           "Slipway's command for that is flash",
	"verify x":                                      "Slipway's command for that is evidence",
	"receipts":                                      "Slipway's command for that is flash\nnext: NAME flash --help",
	"fleet status i":                                "Slipway's command for that is fleet list",
	"fleet run i -l b1 -f 5 -- true":                "next: NAME fleet run --help",
	"fleet run i --forks=5 -- true":                 "Slipway's flag for that is --parallel\nnext: NAME fleet run i --parallel=5 -- true",
	"fleet run i -b -- true":                        "next: NAME fleet run i --become -- true",
	"fleet run i --check -- true":                   "next: NAME fleet run i --dry-run -- true",
	"fleet run -i hosts.yml":                        "--become, and takes [BOARD] INVENTORY [-- COMMAND...]",
	"build virt -p":                                 "next: NAME build virt --parse",
	"layers dump --lock b":                          "Slipway's command for that is layers lock",
	"layers checkout b --update":                    "Slipway's command for that is layers lock --update\nnext: NAME layers lock --update --help",
	"flash b d --digest=sha256:0":                   "want sha256: and 64 hex digits",
	"flash b d --digest=" + strings.Repeat("0", 64): "write sha256: before the digits\nnext: NAME flash b d --digest=sha256:0000",
	"smoke root@b line_test.go --pin SHA256:" + strings.Repeat("A", 43): "smoke root@b --suite=line_test.go --pin SHA256:A",
	"flet":                                        `did you mean fleet?`,
	"layers nosuch":                               `unknown command "layers nosuch"` + "\nnext: NAME layers --help",
	"layers chekout":                              "did you mean layers checkout?",
	"deploy contaner b h i":                       `did you mean deploy container?`,
	"init":                                        "--like is missing (boards lists them)" + "\nnext: NAME init --help",
	"init lab more --like=virt":                   `"more" is one word too many`,
	"init --like=virt --ci=hudson":                "--ci=hudson: want buildbot, github, gitlab, jenkins",
	"init --like=virt --ci=github,":               "--ci=github,: want buildbot, github, gitlab, jenkins",
	"board new --like=virt":                       " is missing: it takes ",
	"board new x":                                 "--like is missing",
	"board add x":                                 `unknown command "board add"`,
	"boards devices":                              `boards: "devices" is one word too many: it takes no words`,
	"flash virt d typo --dry-run":                 `flash: "typo" is one word too many: it takes BOARD DEVICE[,DEVICE...]` + "\nnext: NAME flash --help",
	"fleet deploy b i rack1 --dry-run":            `"rack1" is one word too many`,
	"up virt --board=virt2":                       `unknown flag "--board"`,
	"up virt virt2":                               `"virt2" is one word too many: it takes [BOARD]`,
	"boards --boards=x --boards=y":                "--boards is given twice",
	"boards --boards= ":                           "--boards=: a name is empty",
	"boards --boards --json":                      "--boards has no value",
	"boards --json --json":                        "--json is given twice",
	"flash virt d --dry-run --dry-run":            "--dry-run is given twice",
	"boards -- x":                                 `"--" is not understood`,
	"deploy run b h i --":                         `no word after "--"`,
	"bmap":                                        "bmap: IMAGE is missing: it takes IMAGE",
	"deploy run b h":                              "IMAGE is missing (an archive, a layout or oci://)",
	"flash":                                       "BOARD is missing (boards lists them)",
	"flash virt":                                  "flash: DEVICE is missing (devices lists them): it takes BOARD DEVICE",
	"flash virt --yes=x":                          "flash: DEVICE is missing",
	"deploy":                                      "BOARD is missing",
	"smoke virt":                                  "smoke: HOST is missing",
	"smoke root:pw@h:22 --suite=s":                "smoke: a password in an address of ssh: Slipway logs in with keys only; write root@h:22\nnext: NAME smoke root@h:22 --suite=s",
	"deploy b ssh://root:pw@h":                    "write root@h\nnext: NAME deploy b root@h",
	"smoke root@ --suite=s":                       "smoke: \"root@\": no host in it; want user@host:port or a name from ~/.ssh/config\nnext: NAME smoke --help",
	"smoke h:99999 --suite=s":                     "is not between 1 and 65535\nnext: NAME smoke --help",
	"smoke --suite=a.yml":                         "smoke: HOST is missing",
	"smoke h --suite=a.yml,":                      `--suite=a.yml,: a name is empty`,
	"bfb make --for=2":                            "bfb make: OUT is missing",
	"flash virt d --dryrum":                       `flash: unknown flag "--dryrum": did you mean --dry-run?`,
	"flash virt d --device=x":                     `unknown flag "--device": the command has --image, --block-map`,
	"bfb check f --x":                             `unknown flag "--x": the command has no flags`,
	"flash virt -x d":                             `unknown flag "-x"`,
	"flash virt d --yes":                          "--yes has no value: write it as --yes=VALUE",
	"flash virt d --yes --dry-run":                "--yes has no value: write it as --yes=VALUE",
	"flash virt d --dry-run false":                "flash: --dry-run false: write it as --dry-run=false",
	"flash virt d --dry-run=maybe":                "--dry-run=maybe: want true or false",
	"flash virt d --dry-run=":                     "--dry-run=: want true or false",
	"fleet list i --limit=":                       "--limit=: a name is empty",
	"build virt --target=a,,b":                    "--target=a,,b: a name is empty",
	"flash virt d --yes=,":                        "--yes=,: a name is empty",
	"flash virt a,":                               `DEVICE "a,": a name is empty`,
	"fleet smoke b i --parallel=1000":             "--parallel=1000: want a number of at most 512",
	"fleet pin i --parallel=1000":                 "--parallel=1000: want a number of at most 512",
	"fleet smoke b i --retries=101":               "--retries=101: want a number of at most 100",
	"ci plan --from=main --json --github":         "--json does nothing beside --github",
	"smoke root@b line_test.go":                   "smoke: line_test.go is a file, and a BOARD or HOST stands there: a suite is a value of --suite\nnext: NAME smoke root@b --suite=line_test.go",
	"flash b line_test.go /dev/x --dry-run":       "an image is a value of --image\nnext: NAME flash b /dev/x --image=line_test.go --dry-run",
	"flash if=line_test.go of=/dev/x bs=4M":       "an image is a value of --image\nnext: NAME flash ",
	"flash /dev/x virt --dry-run":                 "/dev/x is a device, and a BOARD stands there\nnext: NAME flash virt /dev/x --dry-run",
	"deploy files virt line_test.go root@b /opt":  "line_test.go is of this machine, and a HOST stands there\nnext: NAME deploy files virt root@b line_test.go /opt",
	"fleet run line_test.go uptime --limit r1":    "next: NAME fleet run line_test.go --limit r1 -- uptime",
	"fleet run line_test.go uptime --limit=b1":    "the program is missing: write it after \"--\"\nnext: NAME fleet run line_test.go --limit=b1 -- uptime",
	"fleet smoke b i --parallel=0":                "--parallel=0: want a number, 1 or more",
	"fleet smoke line_test.go virt --canary=1":    "fleet smoke: virt is a board, and stands after line_test.go: it takes BOARD INVENTORY\nnext: NAME fleet smoke virt line_test.go --canary=1",
	"smoke root@h:2301 virt --suite=base":         "next: NAME smoke virt root@h:2301 --suite=base",
	"deploy run root@h virt i -- ls":              "next: NAME deploy run virt root@h i -- ls",
	"smoke ../../ci/suite/suites/base.yml root@h": "stands there: a suite is a value of --suite\nnext: NAME smoke root@h --suite=../../ci/suite/suites/base.yml",
	"smoke b h --pin=SHA256:short":                `--pin=SHA256:short: "SHA256:short" is no fingerprint of a host key; want SHA256:`,
	"fleet smoke b i --canary=-1":                 "--canary=-1: want a number, 0 or more",
	"fleet smoke b i --stop-after=two":            "--stop-after=two: want a number",
	"fleet smoke b i --retries=1.5":               "--retries=1.5: want a number",
	"fleet smoke b i --board-limit=30":            "--board-limit=30: want a time above 0 with its unit",
	"fleet smoke b i --board-limit=-1m":           "--board-limit=-1m: want a time above 0",
	"deploy run b h i --limit=999999999999":       "--limit=999999999999: want a number",
	"smoke b h --as=xml":                          `--as=xml: no such form`,
	"deploy b h --rate=fast":                      `--rate=fast: rate "fast"`,
	"fleet deploy b i --file=f --to=t --mode=888": `--mode=888: mode "888"`,
}

func TestWrongLines(t *testing.T) {
	for line, want := range wrongLines {
		err := parse(strings.Fields(line)...)
		if want = strings.ReplaceAll(want, "NAME", host.ProgramName()); err == nil || !strings.Contains(err.Error(), want) || StatusOf(err) != 2 {
			t.Errorf("%s: %v, status %d; want 2, and %q", line, err, StatusOf(err), want)
		}
	}
	for _, line := range [][]string{{"flash", "", "d"}, {"flash", "virt", " "}, {"fleet", "list", "i", "--limit= "}, {""}, {"up", ""}, {"smoke", "b", "h", "--as", ""}} {
		if err := parse(line...); StatusOf(err) != 2 {
			t.Errorf("%q: %v; want status 2", line, err)
		}
	}
}

// A hub has no dry run: without a terminal, its next step is not one.
func TestNobodyAnswers(t *testing.T) {
	for refusal, want := range map[string]string{notUpdated: " --dry-run", notSent: " help"} {
		if _, err := updateCommand().askYes(false, refusal); err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), "--yes confirms") || StatusOf(err) != 2 {
			t.Errorf("%s: %v; want it to end with %q", refusal, err, want)
		}
	}
}

// exampleArgs returns a line with all words and flags of a command.
func exampleArgs(cmd *cobra.Command) (words, flags []string) {
	for _, field := range strings.Fields(cmd.Use)[1:] {
		if field == "[--" {
			break
		}
		words = append(words, fmt.Sprintf("no-such-%d", len(words)))
	}
	values := map[string]string{"N": "2", "TIME": "1s", "AGE": "30d", "bool": "true", "RATE": "1M", "MODE": "0600", "FORM": "tap", "PERCENT,...": "10,50", "FINGERPRINT": "SHA256:" + strings.Repeat("A", 43)}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if others := []string{"hub", "detach", "waves", "pause-after-wave", "patience", "follow"}; slices.Contains(others, f.Name) && cmd.Flags().Lookup("detach") != nil || slices.Contains(others[2:], f.Name) || cmd.Name() == "up" && f.Name == "hub" {
			return // most of the others do nothing beside them
		}
		if f.Name == "conf" || f.Name == "branch" || f.Name == "help" || cmd.Name() == "doctor" && f.Name == "hub" || (cmd.Name() == "smoke" || cmd.Name() == "plan") && f.Name == "json" {
			return
		}
		value := values[f.Value.Type()]
		if first, _, several := strings.Cut(f.Value.Type(), "|"); several {
			value = first
		}
		if f.Name == "allow" {
			value = "owner /x"
		}
		if value == "" {
			value = "x"
		}
		flags = append(flags, "--"+f.Name+"="+value)
	})
	return words, flags
}

// An extra word, an unknown flag, or a flag that is given twice or without a value is refused
// at every position, for every command.
func TestStrayWords(t *testing.T) {
	for _, cmd := range allCommands() {
		path := pathOf(cmd)
		if path[0] == "help" || path[0] == "completion" || cmd.Name() == "run" && path[0] == "fleet" { // which wants words after "--"
			continue
		}
		words, flags := exampleArgs(cmd)
		line := slices.Concat(path, words, flags)
		if err := parse(line...); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		strays := []string{"", "--no-such-flag", "-x"}
		if !strings.Contains(cmd.Use, "[--") {
			strays = append(strays, "--")
		}
		if !strings.Contains(cmd.Use, "FILE...") && !strings.Contains(cmd.Use, "FOLDER...") {
			strays = append(strays, "stray", "boards")
		}
		for _, flag := range flags {
			name, _, _ := strings.Cut(flag, "=")
			strays = append(strays, flag, name+"=")
		}
		for _, stray := range strays {
			for at := len(path); at <= len(line); at++ {
				bad := slices.Insert(slices.Clone(line), at, stray)
				if err := parse(bad...); StatusOf(err) != 2 {
					t.Errorf("%q: %v; want status 2", bad, err)
				}
			}
		}
		for i, word := range strings.Fields(cmd.Use)[1:] {
			if strings.HasPrefix(word, "[") || len(path)+i >= len(line) || path[0] == "smoke" || path[0] == "place" {
				break
			}
			if err := parse(slices.Delete(slices.Clone(line), len(path)+i, len(path)+i+1)...); StatusOf(err) != 2 {
				t.Errorf("%q with a word less: %v; want status 2", path, err)
			}
		}
	}
}

// Words in another program's order, and files in place of folders, lead to the right line.
func TestWordsOfOthers(t *testing.T) {
	t.Chdir(t.TempDir())
	place(t, ".", map[string]string{"own/bad/board.yml": "bad: x", "bad/x": "x", "raw.img": "x", "app/x": "x", "art/artifact.json": `{"board": "virt"}`})
	for line, want := range map[string]string{
		"flash /dev/loop0 raw.img":        "next: NAME flash BOARD /dev/loop0 --image=raw.img",
		"flash raw.img of=/dev/loop0":     "next: NAME flash BOARD /dev/loop0 --image=raw.img",
		"flash if=raw.img of=x.img --raw": "next: NAME flash BOARD x.img --image=raw.img --raw",
		"evidence art/artifact.json":      "next: NAME evidence art",
		"push art/artifact.json ./store":  "next: NAME push art ./store",
		"evidence raw.img":                "raw.img is a file: name a board, or the folder of an artifact\nnext: NAME evidence --help",
		"evidence app":                    "evidence app: no artifact: the folder has no artifact.json\nnext: ls app",
	} {
		err := Run(t.Context(), Root(), strings.Fields(line))
		got := regexp.MustCompile(`flash qemu\S+`).ReplaceAllString(strings.ReplaceAll(fmt.Sprint(err), host.ProgramName()+" ", "NAME "), "flash BOARD")
		if !strings.HasSuffix(got, want) {
			t.Errorf("%q: %v; want %q", line, err, want)
		}
	}
	t.Setenv(images.BoardsVariable, "own") // a fault in board.yml counts more than a folder of that name
	if err := Run(t.Context(), Root(), []string{"evidence", "bad"}); err == nil || !strings.Contains(err.Error(), `unknown key "bad"`) {
		t.Errorf("evidence bad: %v", err)
	}
}

// A user of kas or git is led to the command that does the same.
func TestWordsOfKas(t *testing.T) {
	for line, want := range map[string]string{
		"layers update":                "Slipway's command for that is layers lock --update\nnext: " + host.ProgramName() + " layers lock --update --help",
		"layers pull":                  "for that is layers checkout\n",
		"board list":                   "for that is boards\n",
		"kas shell kas.yml":            `unknown command "kas shell": Slipway's command for that is layers shell` + "\n",
		"kas build kas.yml":            "for that is build\n",
		"build virt --update":          "Slipway's command for that is layers lock --update\n",
		"build x.yml --force-checkout": "Slipway's command for that is layers checkout\n",
		"build x.yml --skip=x":         "Slipway's command for that is layers shell\n",
		"layers dump virt --format=x":  "Slipway's flag for that is --json\n",
		"layers dump kas.yml more.yml": "write the project files as one word, kas.yml:more.yml\n",
	} {
		if err := Parse(t.Context(), Root(), strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
	root := Root()
	err := Run(t.Context(), root, []string{"boards", "--boards=/nosuch"})
	if StatusOf(err) != 2 || err.Error() != "--boards=/nosuch: no board there: want BOARD/board.yml in it\nnext: ls /" {
		t.Errorf("boards of no folder = %v, status %d", err, StatusOf(err))
	}
}

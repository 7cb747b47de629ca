//go:build mage

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/magefile/mage/parse"

	"slipway/flash/target/sshd"
)

func knownCommands(t *testing.T) map[string]command {
	t.Helper()
	all, err := readCommands()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestParseLine(t *testing.T) {
	for line, want := range map[string]string{
		"":                                 "",
		"-l":                               "-l",
		"-h":                               "-h",
		"--help":                           "-h",
		"-v boards":                        "-v boards",
		"--version":                        "version",
		"-version -json":                   "version -json=true",
		"up -h":                            "-h up",
		"flash virt typo -bogus --help":    "-h flash",
		"-h flash":                         "-h flash",
		"-h deploy":                        "-h deploy:board",
		"deploy -h":                        "-h deploy:board",
		"doctor virt":                      "doctor -board=virt",
		"doctor -json virt":                "doctor -json=true -board=virt",
		"BOARDS --JSON":                    "boards -json=true",
		"build -parse virt":                "build virt -parse=true",
		"build virt -dryRun=false":         "build virt -dryrun=false",
		"deploy virt virt":                 "deploy:board virt virt",
		"report a b -out=c":                "report a,b -out=c",
		"report -as=tap a,b":               "report a,b -as=tap",
		"fleet:update b i u -canary=0":     "fleet:update b i u -canary=0",
		"bfb:extract f -prefix=-":          "bfb:extract f -prefix=-",
		"fuzz -each=1m30s":                 "fuzz -each=1m30s",
		"deploy:run b h i -- ls -l --help": `deploy:run b h i -argv=["ls","-l","--help"]`,
		"smoke h -suite=a.yml":             "smoke  h -suite=a.yml",
		"smoke b h -suite=a.yml":           "smoke b h -suite=a.yml",
		"rig:ssh r -- sh -c -- ls":         `rig:ssh -argv=["sh","-c","--","ls"] -board=r`,
	} {
		got, err := parseLine(strings.Fields(line), knownCommands(t))
		if joined := strings.Join(got, " "); joined != want || err != nil {
			t.Errorf("parseLine(%s) = %s, %v; want %s", line, joined, err, want)
		}
	}
}

func TestParseLineRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"-json boards":                         `"-json" is not understood before a command: flags come after it` + "\nnext: NAME boards -json",
		"-dryrun flash virt d":                 "\nnext: NAME flash virt d -dryrun",
		"-limit r fleet:list i":                "flags come after it\nnext: NAME fleet:list -h",
		"flash virt d -holes=foo":              "-holes=foo: want zero, discard, keep",
		"deploy:run b h i -engine=dockr":       "-engine=dockr: want containerd, docker, podman",
		"-t 5s boards":                         "-t (of mage) is refused: it ends a command half-way and does not wait for it\nnext: NAME -l",
		"fleet:deploy b i -mode=0600":          "-mode does nothing without -file\nnext: NAME fleet:deploy -h",
		"fleet:deploy b i -owner=app":          "-owner does nothing without -file",
		"fleet:deploy b i -file=f":             "-file does nothing without -to",
		"deploy:service b h f -watch=9":        "-watch does nothing without -restart",
		"deploy:service b h f -keep":           "-keep does nothing without -restart",
		"bfb:make o -strip=1":                  "-strip does nothing without -for",
		"doctor -conf=x":                       "-conf does nothing without -branch",
		"doctor -branch=x":                     "-branch does nothing without -conf",
		"doctor virt -conf=x -branch=y":        "-board does nothing beside -conf",
		"report f":                             "-as or -out is missing",
		"bench":                                "AREA is missing: want build, deploy",
		"bench nosuch":                         "-area=nosuch: want build, deploy",
		"soak nosuch":                          "-area=nosuch: want build, flash",
		"-- boards":                            `"--" is not understood before a command`,
		"-l boards":                            `"boards" is one word too many: -l stands alone`,
		"--version boards":                     `version: "boards" is one word too many`,
		"-h boards x":                          `"x" is one word too many`,
		"flsh virt d":                          `unknown command "flsh": did you mean flash?` + "\nnext: NAME -l",
		"boards devices":                       `boards: "devices" is one word too many: it takes no words`,
		"flash virt d typo -dryrun":            `flash: "typo" is one word too many: it takes BOARD DEVICE, and flags as -name=value` + "\nnext: NAME flash -h",
		"up virt virt2":                        `"virt2" is one word too many: it takes one BOARD`,
		"up virt -board=virt2":                 "-board is given twice",
		"boards -json --JSON":                  "-json is given twice",
		"boards -- x":                          `"--" is not understood`,
		"deploy:run b h i --":                  `no word after "--"`,
		"deploy:run b h i -argv=x -- ls":       "-argv is given twice",
		"flash virt":                           "flash: DEVICE is missing (devices lists them): it takes BOARD DEVICE",
		"flash virt -yes=x":                    "flash: DEVICE is missing",
		"smoke virt":                           "smoke: HOST is missing",
		"smoke -suite=a.yml":                   "smoke: BOARD is missing",
		"smoke h -suite=a.yml,":                `-suite "a.yml,": a name is empty`,
		"bfb:make -for=2":                      "bfb:make: OUT is missing",
		"flash virt d -dryrum":                 `flash: unknown flag "-dryrum": did you mean -dryrun?`,
		"flash virt d -device=x":               `unknown flag "-device": the command has -image, -blockmap`,
		"bfb:check f -x":                       `unknown flag "-x": the command has no flags`,
		"flash virt -":                         `unknown flag "-"`,
		"flash virt d -yes":                    "-yes has no value: write it as -yes=VALUE",
		"smoke virt h -as tap":                 "-as has no value: write it as -as=tap",
		"flash virt d -dryrun false":           "-dryrun false: write it as -dryrun=false",
		"flash virt d -dryrun=maybe":           "-dryrun=maybe: want true or false",
		"flash virt d -dryrun=":                `-dryrun "": a name is empty`,
		"fleet:list i -limit=":                 `-limit "": a name is empty`,
		"build virt -target=a,,b":              `-target "a,,b": a name is empty`,
		"flash virt d -yes=,":                  `-yes ",": a name is empty`,
		"flash virt a,":                        `device "a,": a name is empty`,
		"report a, b":                          `file "a,": a name is empty`,
		"fleet:smoke b i -parallel=0":          "-parallel=0: want a number from 1 to",
		"fleet:smoke b i -canary=-1":           "-canary=-1: want a number from 0 to",
		"fleet:smoke b i -stopafter=two":       "-stopafter=two: want a number",
		"fleet:smoke b i -retries=1.5":         "-retries=1.5: want a number",
		"fleet:smoke b i -boardlimit=30":       "-boardlimit=30: want a time above 0 with its unit",
		"fleet:smoke b i -boardlimit=-1m":      "-boardlimit=-1m: want a time above 0",
		"deploy:run b h i -limit=999999999999": "-limit=999999999999: want a number",
		"smoke b h -as=xml":                    "-as=xml: no such form",
		"deploy b h -rate=fast":                `rate "fast"`,
		"fleet:deploy b i -mode=888":           `mode "888"`,
	} {
		_, err := parseLine(strings.Fields(line), knownCommands(t))
		if want = strings.ReplaceAll(want, "NAME", programName()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseLine(%s) = %v; want %q in it", line, err, want)
		}
	}
	for _, line := range [][]string{{"flash", "", "d"}, {"flash", "virt", " "}, {"fleet:list", "i", "-limit= "}, {""}} {
		if got, err := parseLine(line, knownCommands(t)); err == nil {
			t.Errorf("parseLine(%q) = %q; want an error", line, got)
		}
	}
}

// readCommands finds the same parameters as Mage.
func TestCommandsAreThoseOfMage(t *testing.T) {
	info, err := parse.PrimaryPackage("go", ".", magefileNames(t), false)
	if err != nil {
		t.Fatal(err)
	}
	got, want := map[string][]string{}, map[string][]string{}
	for _, f := range info.Funcs {
		name := strings.ToLower(f.TargetName())
		for _, a := range slices.Concat(f.RequiredArgs(), f.OptionalArgs()) {
			want[name] = append(want[name], fmt.Sprint(strings.ToLower(a.Name), " ", strings.TrimPrefix(a.Type, "time."), " ", a.Optional))
		}
		want[name] = append(want[name], "")
	}
	for name, c := range knownCommands(t) {
		for _, a := range c.words {
			got[name] = append(got[name], fmt.Sprint(a.name, " ", a.kind, " false"))
		}
		for _, a := range c.flags {
			got[name] = append(got[name], fmt.Sprint(a.name, " ", a.kind, " true"))
		}
		got[name] = append(got[name], "")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(info.Aliases) > 0 || info.DefaultFunc != nil || len(info.Imports) > 0 {
		t.Error("Mage has aliases, a default or imports; understand knows none")
	}
}

// magefileNames returns the files that Mage compiles.
func magefileNames(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return strings.HasSuffix(name, "_test.go") || name == "mage_output_file.go"
	})
}

// Each table by command or flag names only existing ones.
func TestTables(t *testing.T) {
	all, flags := knownCommands(t), map[string]string{}
	for _, c := range all {
		for _, f := range c.flags {
			flags[f.name+" "+f.kind] = c.name
		}
	}
	for name, flag := range optional {
		if all[name].flag(flag) == nil || len(all[name].words) > 0 {
			t.Errorf("optional: %s has no flag -%s, or words besides", name, flag)
		}
	}
	for _, name := range slices.Concat(slices.Collect(maps.Values(short)), slices.Collect(maps.Keys(several))) {
		if all[name].name == "" {
			t.Errorf("there is no command %s", name)
		}
	}
	for _, name := range zero {
		if flags[name+" int"] == "" {
			t.Errorf("zero: no command has a number -%s", name)
		}
	}
	for name, flag := range boardless {
		if c := all[name]; c.flag(flag) == nil || c.words[0].name != "board" {
			t.Errorf("boardless: %s has no flag -%s, or its first word is no board", name, flag)
		}
	}
	for name, pairs := range needs {
		for flag, other := range pairs {
			if all[name].flag(flag) == nil || all[name].flag(other) == nil {
				t.Errorf("needs: %s lacks -%s or -%s", name, flag, other)
			}
		}
	}
	for name := range forms {
		if flags[name+" string"] == "" {
			t.Errorf("forms: no command has a text -%s", name)
		}
	}
	if !all["flash"].words[1].list || !all["flash"].flag("yes").list || all["flash"].flag("image").list {
		t.Errorf("flash %+v; want lists of devices and serials, and one image", all["flash"])
	}
}

// exampleArgs returns a line with all words and flags of a command.
func exampleArgs(c command) (words, flags []string) {
	for i := range c.words {
		words = append(words, fmt.Sprintf("no-such-%d", i))
	}
	values := map[string]string{"int": "2", "Duration": "1s", "bool": "true", "string": "x", "as": "tap", "engine": "docker", "holes": "keep", "rate": "1M", "mode": "0600", "area": "hook"}
	for _, f := range c.flags {
		if apart[c.name][f.name] != nil || apart[c.name][needs[c.name][f.name]] != nil {
			continue
		}
		value := values[f.kind]
		if known, ok := values[f.name]; ok {
			value = known
		}
		flags = append(flags, "-"+f.name+"="+value)
	}
	return words, flags
}

// An extra word, an unknown flag, or a flag that is given twice or without a value is refused
// at every position, for every command.
func TestStrayWords(t *testing.T) {
	all := knownCommands(t)
	for _, c := range all {
		words, flags := exampleArgs(c)
		line := slices.Concat([]string{c.name}, words, flags)
		if got, err := parseLine(line, all); err != nil || len(got) != len(line) {
			t.Fatalf("parseLine(%q) = %q, %v", line, got, err)
		}
		strays := []string{"", "-no-such-flag", "-"}
		if c.flag(argv) == nil {
			strays = append(strays, "--")
		}
		if !several[c.name] {
			strays = append(strays, "stray", "boards")
		}
		for _, f := range c.flags {
			strays = append(strays, "-"+f.name+"=", "-"+f.name+"=true", "--"+strings.ToUpper(f.name))
		}
		for _, stray := range strays {
			for at := range len(line) + 1 {
				bad := slices.Insert(slices.Clone(line), at, stray)
				if got, err := parseLine(bad, all); err == nil {
					t.Errorf("parseLine(%q) = %q; want an error", bad, got)
				}
			}
		}
		for i := range words {
			if boardless[c.name] != "" {
				continue
			}
			if got, err := parseLine(slices.Delete(slices.Clone(line), 1+i, 2+i), all); err == nil {
				t.Errorf("%s with a word less = %q; want an error", c.name, got)
			}
		}
	}
}

// commit is the commit that the compiled program must report.
const commit = "0123456789abcdef0123456789abcdef01234567"

// compileProgram compiles a copy of these files with Mage, because Mage writes beside the
// files and other tests compile there too.
func compileProgram(t *testing.T) (program, copied string) {
	t.Helper()
	if err := os.MkdirAll("../build", 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("../build", "line-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range magefileNames(t) {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(t.TempDir(), "slipway")
	described := "-X slipway/images.described=v9.8-7-g" + commit
	if out, err := exec.CommandContext(t.Context(), "go", "tool", "mage", "-d", dir, "-ldflags", described, "-compile", program).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program, dir
}

// exitOf runs a program for at most a minute.
func exitOf(t *testing.T, dir string, env []string, argv ...string) (status int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var both bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &both, &both
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%q: %v", argv, err)
	}
	return cmd.ProcessState.ExitCode(), both.String()
}

// Tests of the compiled program.
func TestProgram(t *testing.T) {
	program, copied := compileProgram(t)
	t.Run("starts nothing", func(t *testing.T) { startsNothing(t, program, copied) })
	t.Run("smoke anywhere", func(t *testing.T) { checkSmokeAnywhere(t, program) })
}

// A stray word after any listed command starts nothing.
func startsNothing(t *testing.T, program, copied string) {
	empty := t.TempDir()
	bare := []string{"HOME=" + t.TempDir(), "PATH=" + empty} // without any program to run
	_, listed := exitOf(t, empty, bare, program, "-l")
	_, listed, _ = strings.Cut(listed, "Targets:\n")
	n := 0
	for line := range strings.Lines(listed) {
		n++
		name := strings.ToLower(strings.Fields(line)[0])
		words, flags := exampleArgs(knownCommands(t)[name])
		if several[name] {
			continue // any number of words are files
		}
		for _, line := range [][]string{
			slices.Concat(words, []string{"stray"}, flags),
			slices.Concat(words, flags, []string{"stray"}),
			slices.Concat(flags[:len(flags)/2], []string{"stray"}, words, flags[len(flags)/2:]),
		} {
			argv := slices.Concat([]string{program, name}, line)
			if status, out := exitOf(t, empty, bare, argv...); status != 2 || !strings.Contains(out, "one word too many") && !strings.Contains(out, "given twice") && !strings.Contains(out, "-area=stray: want") {
				t.Errorf("%q: status %d\n%s", argv[1:], status, out)
			}
		}
	}
	if n != len(knownCommands(t)) {
		t.Errorf("-l lists %d commands; want %d", n, len(knownCommands(t)))
	}
	for line, want := range map[string]int{
		"-json boards": 2, "-t 5s boards": 2, "boards -json=maybe": 2, "nonsense": 2,
		"boards -h": 0, "-h boards": 0, "-l": 0, "": 0, "-v boards": 0, "Boards -JSON": 0,
	} {
		if status, out := exitOf(t, empty, bare, slices.Concat([]string{program}, strings.Fields(line))...); status != want {
			t.Errorf("%s: status %d; want %d\n%s", line, status, want, out)
		}
	}
	for _, variable := range []string{"MAGEFILE_TIMEOUT=5s", "MAGEFILE_LIST=1", "MAGEFILE_HELP=1"} {
		status, out := exitOf(t, empty, append(bare, variable), program, "boards", "-json")
		if refused := variable == "MAGEFILE_TIMEOUT=5s"; refused != (status == 2) || refused == strings.Contains(out, `"board"`) {
			t.Errorf("%s: status %d\n%.200s", variable, status, out)
		}
	}
	if status, out := exitOf(t, empty, append(bare, "SLIPWAY_PROGRESS=xml"), program, "boards"); status != 2 || !strings.Contains(out, "SLIPWAY_PROGRESS=xml: want json") {
		t.Errorf("SLIPWAY_PROGRESS=xml: status %d\n%.200s", status, out)
	}
	for _, line := range []string{"virt:ssh nosuch", "virt:stop nosuch", "rig:ssh nosuch", "rig:down nosuch", "cache:serve -board=nosuch", "build nosuch"} {
		if status, out := exitOf(t, empty, bare, slices.Concat([]string{program}, strings.Fields(line))...); status != 5 || !strings.Contains(out, "unknown board") {
			t.Errorf("%s: status %d; want 5\n%s", line, status, out)
		}
	}
	if left, err := os.ReadDir(empty); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for line, want := range map[string]string{
		"boards stray -json": "go tool mage boards -h", "-t 5s boards": "MAGEFILE_TIMEOUT",
	} {
		argv := slices.Concat([]string{"go", "tool", "mage", "-d", copied}, strings.Fields(line))
		if status, out := exitOf(t, "", os.Environ(), argv...); status != 2 || !strings.Contains(out, want) {
			t.Errorf("%q: status %d; want 2, and %q\n%s", argv, status, want, out)
		}
	}
}

// In a folder that contains only a suite, the program checks any host.
func checkSmokeAnywhere(t *testing.T, program string) {
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skipf("%s is missing: install the Debian package openssh-server", sshd.Program)
	}
	server, err := sshd.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	home, dir := t.TempDir(), t.TempDir()
	place := func(file, text string) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range map[string]string{".ssh/id_ed25519": server.Identity, ".ssh/known_hosts": server.KnownHosts} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		place(filepath.Join(home, name), string(text))
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	lab := fmt.Sprintf("%s@127.0.0.1:%d", me.Username, server.Port)
	place(filepath.Join(dir, "my.yml"), "file: {/etc/passwd: {exists: true}}\n")
	place(filepath.Join(dir, "bad.yml"), "file: {/etc/passwd: {exists: false}}\n")
	place(filepath.Join(dir, "wrong.yml"), "fiel: {/etc/passwd: {exists: true}}\n")
	env := []string{"HOME=" + home, "PATH=" + filepath.Join(home, "nothing")} // without other programs
	run := func(line string) (int, string) {
		return exitOf(t, dir, env, append([]string{program}, strings.Fields(strings.Replace(line, " lab", " "+lab, 1))...)...)
	}
	for _, tt := range []struct {
		line   string
		status int
		want   string
	}{
		{"smoke lab -suite=my.yml", 0, "PASSED  " + lab},
		{"smoke lab -suite=my.yml -as=json", 0, fmt.Sprintf(`"board": %q`, lab)},
		{"smoke lab -suite=my.yml -as=json", 0, `"version": "v9.8-7",` + "\n" + `    "commit": "` + commit + `"`},
		{"--version", 0, "slipway v9.8-7, commit " + commit + "\n"},
		{"smoke lab -suite=my.yml,bad.yml", 4, "1 of 2 checks failed"},
		{"smoke lab -suite=wrong.yml", 5, `unknown section "fiel"`},
		{"smoke 127.0.0.1:1 -suite=none.yml", 5, "none.yml: no such suite file"},
		{"smoke 127.0.0.1:1 -suite=my.yml", 3, "connect"},
		{"smoke lab", 2, "HOST is missing"},
		{"smoke virt lab -suite=my.yml", 0, "PASSED  virt"},
	} {
		if status, out := run(tt.line); status != tt.status || !strings.Contains(out, tt.want) {
			t.Errorf("%s: status %d; want %d, and %q\n%s", tt.line, status, tt.status, tt.want, out)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); len(left) != 3 || err != nil {
		t.Errorf("beside the suites there is %v, %v", left, err)
	}
	place(filepath.Join(dir, "build/virt/artifact.json"), `{"board": "virt", "key": "abc", "files": [{"kind": "disk", "name": "disk.img", "sizeBytes": 9}, {"kind": "container", "name": "c.tar", "sizeBytes": 9}]}`)
	for line, want := range map[string]string{
		"smoke virt lab -suite=my.yml": "report: build/virt/report.html",
		"deploy virt lab":              "c.tar: no such file",
	} {
		if _, out := run(line); !strings.Contains(out, want) {
			t.Errorf("%s with artifact.json alone: want %q\n%s", line, want, out)
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "build/virt/report.json")); !strings.Contains(string(data), `"imageKey": "abc"`) {
		t.Errorf("report.json: %v; want the key of the artifact\n%s", err, data)
	}
}

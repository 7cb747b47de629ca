package suite

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/suite/suitetest"
	"slipway/images"
	"slipway/layers/yaml"
)

func TestSuiteOrderAndMeta(t *testing.T) {
	path := suitetest.WriteSuite(t, map[string]string{"main.yml": `
service:
  zebra: {running: true, meta: {title: z runs, next: start it, owner: {team: [a, b]}}}
command:
  b: {exit-status: 0, timeout: 1500, skip: true}
  a: {argv: [/bin/a, "1 2", "it's", "", --x=y], title: plain title}
  c: {exec: "cat /etc/x | grep 'y z'"}
file:
  /x y:
`})
	suite, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		Kind, Name, Next string
		Timeout          time.Duration
		Skip             bool
	}
	var got []row
	for _, c := range suite.Checks {
		got = append(got, row{c.Kind, c.Name, c.Next, c.Timeout, c.Skip})
	}
	want := []row{
		{"service", "z runs", "start it", DefaultTimeout, false},
		{"command", "b", "run it by hand on the board: b", 1500 * time.Millisecond, true},
		{"command", "plain title", `run it by hand on the board: /bin/a '1 2' 'it'\''s' '' --x=y`, DefaultTimeout, false},
		{"command", "c", "run it by hand on the board: cat /etc/x | grep 'y z'", DefaultTimeout, false},
		{"file", "/x y", "look at it on the board: ls -ld '/x y'", DefaultTimeout, false},
	}
	if diff := cmp.Diff(want, got); diff != "" || suite.Name != "main" {
		t.Errorf("suite %q (-want +got):\n%s", suite.Name, diff)
	}
}

func TestSuiteErrors(t *testing.T) {
	refuseSuites(t, []refusedSuite{
		{"empty", "", "main.yml: the file has no values; a suite is a mapping of sections (addr, "},
		{"only a comment", "# later\n", "main.yml: the file has no values"},
		{"not a mapping", "- a", "main.yml:1:1: a suite is a mapping of sections"},
		{"two documents", "file: {}\n---\nfile: {}", "main.yml:2:1: a second document begins here"},
		{"broken", "file:\n  /x: [", "main.yml:2:1: not valid YAML: did not find expected node content"},
		{"no checks", "file: {}", "no checks; a suite that asks nothing proves nothing"},
		{"unknown section", "file: {}\nports: {}", "main.yml:2:1: unknown section \"ports\": did you mean port? (have addr, binary, clock, command, "},
		{"a section with a typo", "comand: {}", "unknown section \"comand\": did you mean command? (have addr,"},
		{"an attribute with a typo", "command:\n  x: {exit-statuss: 0}", "unknown attribute \"exit-statuss\" of a command: did you mean exit-status? (allowed: exec,"},
		{"section is a list", "file: [a]", "main.yml:1:7: file must be a mapping of checks"},
		{"unknown attribute", "file:\n  /x:\n    exist: true", "main.yml:3:5: unknown attribute \"exist\" of a file: did you mean exists? (allowed: path, exists, mode"},
		{"duplicate key", "file:\n  /x: {}\n  /x: {}", "main.yml:3:3: duplicate key \"/x\" (first at line 2)"},
		{"duplicate section", "file:\n  /x: {}\nfile:\n  /y: {}", "main.yml:3:1: duplicate key \"file\""},
		{"alias", "file:\n  /x: &a {}\n  /y: *a", "main.yml:3:7: YAML aliases are not allowed"},
		{"key is a mapping", "file:\n  ? {a: b}\n  : {}", "main.yml:2:5: a key must be a plain value"},
		{"entry is a word", "file:\n  /x: yes please", "main.yml:2:7: file \"/x\" must be a mapping of attributes, not \"yes please\""},
		{"wrong type of flag", "file:\n  /x: {exists: maybe}", "main.yml:2:16: exists must be true or false, not \"maybe\""},
		{"wrong type of number", "command:\n  x: {timeout: soon}", "main.yml:2:16: timeout must be a whole number from 0 to 3600000, not \"soon\""},
		{"wrong exit status", "command:\n  x: {exit-status: good}", "main.yml:2:20: exit-status must be a number"},
		{"list of exit status", "command:\n  x: {exit-status: [1, 2]}", "exit-status must be one value or a matcher, not a list"},
		{"wrong mode", "file:\n  /x: {mode: rwx}", "mode must be four octal digits in quotes, like \"0755\", not rwx"},
		{"a mode that YAML takes for a number", "file:\n  /x: {mode: 0755}", "mode must be four octal digits in quotes"},
		{"a mode of three digits", "file:\n  /x: {mode: '755'}", "mode must be four octal digits in quotes"},
		{"wrong filetype", "file:\n  /x: {filetype: dir}", "filetype \"dir\" is not one of block-device, character-device, directory, file"},
		{"relative path", "file:\n  x: {}", "main.yml:2:3: path \"x\" must be an absolute path"},
		{"both names of contents", "file:\n  /x: {contents: [a], contains: [a]}", "contains is goss's old name of contents"},
		{"broken regex", "command:\n  x: {stdout: [\"/(/\"]}", "main.yml:2:16: stdout: error parsing regexp"},
		{"unknown matcher", "command:\n  x: {stdout: {have-keys: a}}", "stdout: unknown matcher \"have-keys\" (allowed: and, or, not"},
		{"two matchers", "command:\n  x: {stdout: {have-prefix: a, have-suffix: b}}", "one matcher at a time"},
		{"empty and", "command:\n  x: {stdout: {and: []}}", "and needs a list of matchers"},
		{"exec and argv", "command:\n  x: {exec: a, argv: [a]}", "two ways to say the same"},
		{"empty argv", "command:\n  x: {argv: []}", "argv needs at least the program's name"},
		{"argv of lists", "command:\n  x: {argv: [[a]]}", "argv must be a list of strings; this is a list"},
		{"NUL", "command:\n  \"a\\0b\": {}", "exec holds a NUL"},
		{"option as unit", "service:\n  --all: {}", "\"--all\" is not a unit's name"},
	})
	if _, err := Load("nope"); err == nil || !strings.Contains(err.Error(), "have base, bluefield, containers, cuda-bandwidth") {
		t.Errorf("LoadSuite(nope) = %v", err)
	}
	if _, err := Load("./nope.yml"); err == nil || !strings.Contains(err.Error(), "no such suite file") {
		t.Errorf("LoadSuite(./nope.yml) = %v", err)
	}
}

func TestSuiteErrorsOfChecks(t *testing.T) {
	refuseSuites(t, []refusedSuite{
		{"empty disk", "disk:\n  x: {}", "a disk needs labels, root or slot"},
		{"service that need be nothing", "service:\n  containerd:", "main.yml:2:3: a service needs enabled or running"},
		{"the same under another name", "service:\n  x: {name: containerd, skip: false}", "main.yml:2:3: a service needs enabled or running"},
		{"no image", "container:\n  x: {argv: [a]}", "a container needs an image"},
		{"relative hook", "container:\n  x: {image: a, hook: b}", "hook must be an absolute path"},
		{"wrong env", "container:\n  x: {image: a, env: [b]}", "env must be NAME=value"},
		{"meta is a word", "file:\n  /x: {meta: a}", "meta must be a mapping"},
		{"next is a list", "file:\n  /x: {meta: {next: [a]}}", "next must be a string, not a list"},
		{"a template", "file:\n  /x:\n    size: {{.Vars.size}}", "main.yml:3:11: goss's templates ({{ }}) are not filled in here"},
		{"a template at the beginning of a line", "# {{ this is a comment }}\n{{range $x := .Vars.all}}", "main.yml:2:1: goss's templates"},
		{"a long path of gjson", "command:\n  x: {stdout: {gjson: {" + strings.Repeat("a", 5000) + ": c}}}", "main.yml:2:24: stdout: gjson: a path of more than 4096 bytes"},
		{"unknown flags", "command: {x: {stdout: ['!/permitrootlogin yes/g']}}", "flags, of which i, m and s are known; for a text, write !\\/permitrootlogin yes/g"},
		{"a number as a pattern", "command: {x: {stdout: [5]}}", "stdout: a pattern is a text; write \"5\""},
		{"a matcher as a pattern", "command: {x: {stdout: [{have-prefix: a}]}}", "stdout: a pattern is a text, not a mapping"},
		{"a truth value for a text", "command: {x: {stdout: true}}", "stdout is never true, as it is no truth value; for a text, write \"true\""},
		{"a pattern of a slash alone", "command: {x: {stdout: [/]}}", "main.yml:1:24: stdout: \"/\" asks nothing, as goss takes all"},
		{"a pattern of a backslash alone", `command: {x: {stdout: ['!\']}}`, `stdout: "!\\" asks nothing`},
		{"patterns within a matcher", "command: {x: {stdout: {and: [[a]]}}}", "for lines use have-patterns or contain-elements"},
		{"a text for a number", "command: {x: {stdout: {gt: '5'}}}", "stdout must be a number, not \"5\""},
		{"a number for a text", "command: {x: {stdout: {have-prefix: 5}}}", "have-prefix needs a text; write \"5\""},
		{"a date", "package: {x: {versions: [2020-01-01]}}", "YAML takes \"2020-01-01\" for a timestamp; write it in quotes"},
		{"a list for an element", "command: {x: {stdout: {contain-element: [a]}}}", "contain-element does not take a list"},
		{"gjson of nothing", "command: {x: {stdout: {gjson: {}}}}", "gjson needs places"},
		{"a length in words", "command: {x: {stdout: {have-len: many}}}", "have-len needs a number, not \"many\""},
		{"a broken constraint", "command: {x: {stdout: {semver-constraint: about 2}}}", "stdout: \"about 2\" is not a constraint such as"},
		{"no port", "port: {ssh: {}}", "main.yml:1:8: \"ssh\" is not a port like tcp:22"},
		{"a port too large", "port: {tcp:65536: {}}", "\"tcp:65536\" is not a port"},
		{"a process with its folder", "process: {/usr/bin/x: {}}", "it is without its folder"},
		{"an option as user", "user: {-x: {}}", "\"-x\" is not a name of a user or group"},
		{"a pattern of packages", "package: {'nvidia-*': {}}", "\"nvidia-*\" is not a package's name"},
		{"a record of DNS", "dns: {'MX:example.com': {}}", "goss's types of records (A:name) are not known"},
		{"another DNS server", "dns:\n  a: {server: 8.8.8.8}", "main.yml:2:7: goss's server of a dns cannot be asked over SSH: the board's own resolver is asked"},
		{"an address of UDP", "addr: {udp://a:1: {}}", "is not an address like tcp://192.0.2.1:443"},
		{"no web address", "http: {ftp://a: {status: 200}}", "is not an address like http://"},
		{"a request that wants nothing", "http: {http://a: {}}", "an http needs status, headers or body"},
		{"a header without a name", "http: {http://a: {status: 1, request-headers: [x]}}", "request-headers must be like"},
		{"a wrong method", "http: {http://a: {status: 1, method: 'A B'}}", "invalid method"},
		{"a proxy", "http: {http://a: {proxy: b}}", "goss's proxy of a http cannot be asked over SSH"},
		{"an interface above", "interface: {..: {}}", "\"..\" is not an interface's name"},
		{"a parameter of nothing", "kernel-param: {net.x: {}}", "a kernel-param needs a value"},
		{"a parameter above", "kernel-param: {/../../etc/shadow: {value: a}}", "is not a parameter's name"},
		{"a module above", "module: {../x: {}}", "is not a module's name"},
		{"a dmesg of nothing", "dmesg: {x: {ignore: [a]}}", "a dmesg needs has or never"},
		{"a dmesg with a broken pattern", "dmesg:\n  x: {never: [a, (]}", "main.yml:2:18: never: error parsing regexp"},
		{"a matching of nothing", "matching: {x: {content: a}}", "a matching needs content and matches"},
		{"a metric without a command", "metric: {x: {unit: W}}", "a metric needs exec or argv"},
		{"a limit in words", "metric:\n  x: {exec: a, max: much}", "main.yml:2:21: max must be a number, not \"much\""},
		{"a limit without an end", "metric: {x: {exec: a, max: .inf}}", "max must be a number"},
		{"limits that contradict", "metric: {x: {exec: a, min: 10, max: 3}}", "1:28: no number passes: min 10 is more than max 3"},
		{"limits of a temperature", "temperature: {x: {min: 10, max: 3}}", "no number passes: min 10 is more than max 3"},
		{"a part without a sign", "metric: {x: {exec: a, within: 10}}", "within must be a percentage like 10%, not \"10\""},
		{"a number that is nowhere", "command: {x: {metrics: {n: {unit: s}}}}", "metric \"n\" needs match or json"},
		{"an unknown attribute of a number", "command:\n  x:\n    metrics:\n      n: {exec: a}", "main.yml:4:11: unknown attribute \"exec\" of a metric"},
		{"numbers without names", "binary: {x: {metrics: [a]}}", "metrics must be a mapping of at most 50 names, not a list"},
		{"a pattern without a group", "metric: {x: {exec: a, match: b}}", "match must have one group"},
		{"two ways to the number", "metric: {x: {exec: a, match: (b), json: c}}", "match and json are two ways"},
		{"any temperature", "temperature: {x: {sensors: [a]}}", "a temperature needs min, max or within"},
		{"a broken pattern of sensors", "power: {x: {sensors: ['['], max: 1}}", "\"[\" is not a pattern like VDD_*"},
		{"a binary from elsewhere", "binary: {x: {path: ../secret}}", "path \"../secret\" must lie in the suite's folder or below"},
		{"a binary by its whole path", "binary: {/etc/shadow: {}}", "must lie in the suite's folder"},
		{"an unknown output", "binary: {x: {output: subunit}}", "unknown output \"subunit\" (have text, go, ptest, tap)"},
		{"a relative folder", "binary: {x: {dir: tmp}}", "dir must be an absolute path on the board"},
		{"an option in the environment", "binary: {x: {env: [-i=1]}}", "env must be NAME=value"},
	})
}

func TestSuiteErrorsOfOrder(t *testing.T) {
	refuseSuites(t, []refusedSuite{
		{"retries of thousands", "command:\n  x: {retries: 1001}", "main.yml:2:16: retries must be a whole number from 0 to 1000"},
		{"unknown need", "command:\n  x: {needs: {gpu: yes}}", "main.yml:2:15: unknown need \"gpu\" (have check, command, file, module, service)"},
		{"a need that is a word", "command:\n  x: {needs: nvidia-smi}", "needs must be like {file: /dev/x}"},
		{"no needs", "command:\n  x: {needs: []}", "main.yml:2:14: needs must name 1 to 20 things"},
		{"an empty need", "command:\n  x: {needs: {file: }}", "needs: file must be a name, not nothing"},
		{"a need that is an option", "command:\n  x: {needs: {service: --all}}", "\"--all\" is no name of a service"},
		{"a need by a relative path", "command:\n  x: {needs: {file: dev/x}}", "file \"dev/x\" must be an absolute path"},
		{"a need of a later check", "command:\n  x: {needs: {check: y}}\n  y: {}", "main.yml:2:22: no check \"y\" stands before the one that needs it"},
		{"a need of itself", "command:\n  x: {needs: {check: x}}", "no check \"x\" stands before"},
		{"a need of one of two", "command: {x: {}}\nfile: {/y: {title: x}, /z: {needs: {check: x}}}", "two checks are called \"x\""},
		{"teardown is a word", "command:\n  x: {teardown: rm}", "teardown must be a list of at most 20 commands"},
		{"teardown of nothing", "command:\n  x: {teardown: [[]]}", "teardown: not a command"},
		{"teardown of an empty text", "command:\n  x: {teardown: ['']}", "teardown: not a command"},
		{"includes know no retries", "gossfile:\n  x: {retries: 1}", "unknown attribute \"retries\" of a gossfile (allowed: file, title, meta, skip)"},
		{"nested too deep", "file:\n  /x: {meta: " + strings.Repeat("[", 30) + strings.Repeat("]", 30) + "}", "nested more than 20 levels deep"},
		{"include nothing", "gossfile:\n  nothing*.yml: {}", "no file matches \"nothing*.yml\""},
		{"include above", "gossfile:\n  ../other.yml: {}", "no file matches \"../other.yml\" in this folder or below"},
		{"include itself", "gossfile:\n  main.yml: {}", "included more than 8 levels deep"},
	})
}

// refusedSuite is a suite that must not load, and a part of the error.
type refusedSuite struct{ name, give, want string }

func refuseSuites(t *testing.T, suites []refusedSuite) {
	t.Helper()
	for _, tt := range suites {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": tt.give}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load = %v; want ...%s...", err, tt.want)
			}
		})
	}
}

func TestGossfiles(t *testing.T) {
	path := suitetest.WriteSuite(t, map[string]string{
		"main.yml":       "file: {/first: {}}\ngossfile:\n  parts/*.yml: {}\n  off: {file: broken.yml, skip: true}\ncommand: {last: {}}\n",
		"broken.yml":     "nonsense",
		"parts/one.yml":  "file: {/one: {}}\ngossfile: {two.yaml: {}}",
		"parts/two.yaml": "file: {/two: {}}",
	})
	suite, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range suite.Checks {
		names = append(names, c.Name)
	}
	if want := []string{"/first", "/one", "/two", "last"}; !slices.Equal(names, want) {
		t.Errorf("checks %v; want %v", names, want)
	}
}

func TestMatchers(t *testing.T) {
	for _, tt := range []struct {
		attribute, give string // the attribute decides how plain words are read
		match, miss     []any
	}{
		{"stdout", "[]", []any{"", "anything"}, nil},
		{"stdout", "whole text", []any{"whole text"}, []any{"whole text\n", "whole text here", ""}},
		{"stdout", "[foo]", []any{"a foo b", "x\nfoo\n"}, []any{"", "fo\no"}},
		{"stdout", "['!foo']", []any{"", "bar"}, []any{"a\nxfoox"}},
		{"stdout", `['\!foo']`, []any{"!foo", "foo"}, []any{"fo"}},
		{"stdout", `['\/x/']`, []any{"a /x/ b", "x/"}, []any{"x"}},
		{"stdout", "['/^f[o]+$/']", []any{"a\nfoo\nb", "foo\r\n"}, []any{"food"}},
		{"stdout", "['!/^f[o]+$/']", []any{"food"}, []any{"a\nfoo"}},
		{"stdout", "['/permitrootlogin yes/i']", []any{"x\nPermitRootLogin yes\n"}, []any{"permitrootlogin no"}},
		{"stdout", "['!/permitrootlogin yes/i']", []any{"permitrootlogin no", ""}, []any{"x\nPermitRootLogin yes\n"}},
		{"stdout", "['!/etc/passwd']", []any{"etc"}, []any{"etc/passwd", "/etc/passwd"}},
		{"stdout", "[/etc/passwd]", []any{"x etc/passwd"}, []any{"passwd"}},
		{"stdout", "[a, '!b', '/c/']", []any{"a\nc"}, []any{"a", "a\nb\nc"}},
		{"stdout", "{have-prefix: ab}", []any{"abc"}, []any{"xab"}},
		{"stdout", "{have-suffix: c}", []any{"abc"}, []any{"cb", "abc\n"}},
		{"stdout", "{contain-substring: b}", []any{"abc"}, []any{"xyz"}},
		{"stdout", "{match-regexp: '^a.c$'}", []any{"abc"}, []any{"abcd"}},
		{"stdout", "{not: {contain-substring: b}}", []any{"xyz"}, []any{"abc"}},
		{"stdout", "{and: [{have-prefix: a}, {have-suffix: c}]}", []any{"abc"}, []any{"ab", "bc"}},
		{"stdout", "{or: [{have-prefix: a}, {have-suffix: c}]}", []any{"ab", "bc"}, []any{"b"}},
		{"stdout", "{gt: 41}", []any{"42\n", "41.5"}, []any{"41", "many"}},
		{"stdout", "{not: {gt: 41}}", []any{"41\n"}, []any{"42", "many"}},
		{"stdout", "{le: 41}", []any{"41", "-1"}, []any{"42"}},
		{"stdout", "{equal: [a, b]}", nil, []any{"a\nb"}},
		{"stdout", "{contain-element: {match-regexp: ^b}}", []any{"a\nbc"}, []any{"ab"}},
		{"stdout", "{contain-elements: [a, b]}", []any{"b\nc\na"}, []any{"a\nbc"}},
		{"stdout", "{contain-elements: [a, a]}", []any{"a\na"}, []any{"a\nb"}},
		{"stdout", "{have-len: 3}", []any{"abc"}, []any{"abc\n", "ab"}},
		{"stdout", "{have-patterns: [a, '!b']}", []any{"xay"}, []any{"a\nb", "c"}},
		{"stdout", "{consist-of: [a]}", []any{[]string{"a"}}, []any{"a"}},
		{"stdout", "{consist-of: [{have-prefix: a}, {have-prefix: ab}, abc]}", []any{[]string{"abc", "abd", "ax"}, []string{"ax", "abd", "abc"}}, []any{[]string{"abc", "ax", "ay"}}},
		{"stdout", "{semver-constraint: '>5.0.0 || < 1.5.0'}", []any{"1.2.1", "5.0.1"}, []any{"1.2.1\n", "5.0.0", "git"}},
		{"stdout", "{not: {semver-constraint: '>=1.2.x'}}", []any{"1.1.9"}, []any{"1.2.1", "v1.1.9"}},
		{"stdout", "{gjson: {a.0: 1, b: {have-prefix: x}}}", []any{`{"a": [1], "b": "xy"}`}, []any{`{"a": [2], "b": "xy"}`, `{"a": [1]}`, "no"}},
		{"stdout", "{not: {gjson: {a: 1}}}", []any{`{"a": 2}`}, []any{`{"b": 2}`, "no JSON"}},
		{"exit-status", "0", []any{0}, []any{1, 10}},
		{"exit-status", "'0'", []any{0}, []any{1}},
		{"exit-status", "{not: 0}", []any{1, 127}, []any{0}},
		{"exit-status", "{or: [0, 3]}", []any{0, 3}, []any{1}},
		{"exit-status", "{lt: 128}", []any{127}, []any{128}},
	} {
		text := "command:\n  x:\n    " + tt.attribute + ": " + tt.give
		suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": text}))
		if err != nil {
			t.Errorf("%s: %v", tt.give, err)
			continue
		}
		m := suite.Checks[0].probe.(command).stdout
		if tt.attribute == "exit-status" {
			m = suite.Checks[0].probe.(command).exitStatus
		}
		for _, v := range tt.match {
			if misses := m.Misses(v); len(misses) > 0 {
				t.Errorf("%s misses %q: %v", tt.give, v, misses)
			}
		}
		for _, v := range tt.miss {
			if len(m.Misses(v)) == 0 {
				t.Errorf("%s matches %q", tt.give, v)
			}
		}
	}
}

func TestMissesInWords(t *testing.T) {
	text := "command: {x: {stdout: [foo, '!bar', '/B.r/i', '!/b.r/']}}"
	suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": text}))
	if err != nil {
		t.Fatal(err)
	}
	got := suite.Checks[0].probe.(command).stdout.Misses("bar")
	want := []string{`a line with "foo"`, `no line with "bar"`, `no line that matches /b.r/`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzSuite checks that no file causes a panic, and that parsed checks have a name and a timeout.
func FuzzSuite(f *testing.F) {
	for _, file := range builtIn() {
		data, err := embedded.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("command: {x: {stdout: {and: [{not: {or: [a, {gt: 1}]}}, {contain-element: {equal: [a]}}]}}}"))
	f.Add([]byte("file:\n  /x: {mode: 0755, size: {gt: 3}, contains: ['!/a/'], md5: a, meta: {title: a}}"))
	f.Add([]byte("mount: {/: {opts: [rw, {have-prefix: r}], source: /dev/sda, filesystem: {not: nfs}}}"))
	f.Add([]byte("command: {x: {stdout: ['!/a/i', '/b/s', '\\/c', '/d/g'], stderr: {gjson: {'a.#(b==1)#.c': {semver-constraint: '>=1.x || <2'}}}}}"))
	f.Add([]byte("matching: {x: {content: {a: [1, true, null]}, matches: {and: [{have-key: a}, {contain-elements: [{gt: 1}]}]}}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := parseYAML("fuzz.yml", data)
		if err != nil {
			return
		}
		l := loader{}
		for key, value := range yaml.Pairs(root) {
			if key.Value == "gossfile" {
				continue
			}
			if err := l.readSection("fuzz.yml", key, value); err != nil {
				return
			}
		}
		for _, c := range l.checks {
			if c.Timeout <= 0 || c.Timeout > maxTimeout || c.probe == nil {
				t.Fatalf("check %+v", c)
			}
			if p, ok := c.probe.(command); ok {
				p.stdout.Misses(string(data))
			}
			if m, ok := c.probe.(matching); ok {
				m.matches.Misses(m.content)
			}
		}
	})
}

func TestShowSuites(t *testing.T) {
	var out strings.Builder
	if err := Show(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"base ", "slots ", "kernel-param  a value below /proc/sys", "ci/suites.md"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("Show lacks %q:\n%s", want, out.String())
		}
	}
}

// Suites of the user's own stand beside the built-in ones.
func TestOwnSuites(t *testing.T) {
	project := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(project, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	const check = "command: {true: {exit-status: 0}}\n"
	write("boards/b/board.yml", "extends: virt\nsuites: [base, lab]\n")
	write("suites/lab.yml", check)
	t.Chdir(project)
	spec, err := images.Load("b")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := LoadAll(spec); err != nil || len(all) != 2 || all[1].Name != "lab" || len(all[1].Checks) != 1 {
		t.Errorf("LoadAll = %+v, %v; want base and lab", all, err)
	}
	write("suites/lab.yml", "#\n# Is the relay\x1b[2J wired? It must be.\n"+check)
	var out strings.Builder
	if err := Show(&out); err != nil || !strings.Contains(out.String(), "wired? (") || !strings.Contains(out.String(), "suites/lab.yml)") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("Show: %v\n%s", err, out.String())
	}
	if _, err := Load("lap"); err == nil || !strings.Contains(err.Error(), `no suite "lap": did you mean lab? (have base, `) {
		t.Errorf("Load of an unknown suite: %v", err)
	}
	write("suites/base.yml", check)
	if _, err := Load("base"); err == nil || !strings.Contains(err.Error(), project+"/suites/base.yml: Slipway has a suite of this name\nnext: mv ") {
		t.Errorf("Load of a suite with two files: %v", err)
	}
}

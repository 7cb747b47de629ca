package ci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOwnSuitesLoad(t *testing.T) {
	if got, want := Suites(), []string{"base", "bluefield", "containers", "dpu-doca", "dpu-flow", "dpu-mldev", "dpu-pbr", "dpu", "jetson", "rig", "slots"}; !slices.Equal(got, want) {
		t.Errorf("Suites() = %v; want %v", got, want)
	}
	for _, name := range Suites() {
		suite, err := LoadSuite(name)
		if err != nil {
			t.Errorf("LoadSuite(%q): %v", name, err)
		}
		for _, c := range suite.Checks {
			if c.Next == "" {
				t.Errorf("suite %s, check %q: no next step", name, c.Name)
			}
		}
	}
}

// writeSuite writes files, main.yml first among them, and returns its path.
func writeSuite(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "main.yml")
}

func TestSuiteOrderAndMeta(t *testing.T) {
	path := writeSuite(t, map[string]string{"main.yml": `
service:
  zebra: {running: true, meta: {title: z runs, next: start it, owner: {team: [a, b]}}}
command:
  b: {exit-status: 0, timeout: 1500, skip: true}
  a: {argv: [/bin/a, "1 2", "it's", "", --x=y], title: plain title}
  c: {exec: "cat /etc/x | grep 'y z'"}
file:
  /x y:
`})
	suite, err := LoadSuite(path)
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
		{"service", "z runs", "start it", defaultTimeout, false},
		{"command", "b", "run it by hand on the board: b", 1500 * time.Millisecond, true},
		{"command", "plain title", `run it by hand on the board: /bin/a '1 2' 'it'\''s' '' --x=y`, defaultTimeout, false},
		{"command", "c", "run it by hand on the board: cat /etc/x | grep 'y z'", defaultTimeout, false},
		{"file", "/x y", "look at it on the board: ls -ld '/x y'", defaultTimeout, false},
	}
	if diff := cmp.Diff(want, got); diff != "" || suite.Name != "main" {
		t.Errorf("suite %q (-want +got):\n%s", suite.Name, diff)
	}
}

func TestSuiteErrors(t *testing.T) {
	refuseSuites(t, []refusedSuite{
		{"empty", "", "main.yml: no documents in stream"},
		{"not a mapping", "- a", "main.yml:1:1: a suite is a mapping of sections"},
		{"two documents", "file: {}\n---\nfile: {}", "main.yml: expected single document"},
		{"broken", "file:\n  /x: [", "main.yml:3:1: did not find expected node content"},
		{"no checks", "file: {}", "no checks; a suite that asks nothing proves nothing"},
		{"unknown section", "file: {}\nports: {}", "main.yml:2:1: unknown section \"ports\" (have addr, binary, clock, command, "},
		{"section is a list", "file: [a]", "main.yml:1:7: file must be a mapping of checks"},
		{"unknown attribute", "file:\n  /x:\n    exist: true", "main.yml:3:5: unknown attribute \"exist\" of a file (allowed: path, exists, mode"},
		{"duplicate key", "file:\n  /x: {}\n  /x: {}", "main.yml:3:3: duplicate key \"/x\" (first at line 2)"},
		{"duplicate section", "file:\n  /x: {}\nfile:\n  /y: {}", "main.yml:3:1: duplicate key \"file\""},
		{"alias", "file:\n  /x: &a {}\n  /y: *a", "main.yml:3:7: YAML aliases are not allowed"},
		{"key is a mapping", "file:\n  ? {a: b}\n  : {}", "main.yml:2:5: a key must be a plain value"},
		{"entry is a word", "file:\n  /x: yes please", "main.yml:2:7: file \"/x\" must be a mapping of attributes, not \"yes please\""},
		{"wrong type of flag", "file:\n  /x: {exists: maybe}", "main.yml:2:16: exists must be true or false, not \"maybe\""},
		{"wrong type of number", "command:\n  x: {timeout: soon}", "main.yml:2:16: timeout must be a whole number from 1 to 3600000, not \"soon\""},
		{"wrong exit status", "command:\n  x: {exit-status: good}", "main.yml:2:20: exit-status must be a number"},
		{"list of exit status", "command:\n  x: {exit-status: [1, 2]}", "exit-status must be one value or a matcher, not a list"},
		{"wrong mode", "file:\n  /x: {mode: rwx}", "mode must be an octal mode like \"0755\", not \"rwx\""},
		{"wrong filetype", "file:\n  /x: {filetype: dir}", "filetype \"dir\" is not one of file, directory, symlink"},
		{"relative path", "file:\n  x: {}", "main.yml:2:3: path \"x\" must be an absolute path"},
		{"both names of contents", "file:\n  /x: {contents: [a], contains: [a]}", "contains is goss's old name of contents"},
		{"broken regex", "command:\n  x: {stdout: [\"/(/\"]}", "main.yml:2:16: stdout: error parsing regexp"},
		{"unknown matcher", "command:\n  x: {stdout: {have-key: a}}", "stdout: unknown matcher \"have-key\" (allowed: and, or, not"},
		{"two matchers", "command:\n  x: {stdout: {have-prefix: a, have-suffix: b}}", "one matcher at a time"},
		{"empty and", "command:\n  x: {stdout: {and: []}}", "and needs a list of matchers"},
		{"exec and argv", "command:\n  x: {exec: a, argv: [a]}", "two ways to say the same"},
		{"empty argv", "command:\n  x: {argv: []}", "argv needs at least the program's name"},
		{"argv of lists", "command:\n  x: {argv: [[a]]}", "argv must be a list of strings; this is a list"},
		{"NUL", "command:\n  \"a\\0b\": {}", "exec holds a NUL"},
		{"option as unit", "service:\n  --all: {}", "\"--all\" is not a unit's name"},
	})
	if _, err := LoadSuite("nope"); err == nil || !strings.Contains(err.Error(), "have base, bluefield, containers, dpu") {
		t.Errorf("LoadSuite(nope) = %v", err)
	}
	if _, err := LoadSuite("./nope.yml"); err == nil || !strings.Contains(err.Error(), "no such suite file") {
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
		{"a query of gjson", "command:\n  x: {stdout: {gjson: {'a.#.b': c}}}", "main.yml:2:24: stdout: gjson: \"a.#.b\": only names and numbers with dots between them"},
		{"gjson of nothing", "command: {x: {stdout: {gjson: {}}}}", "gjson needs places"},
		{"a length in words", "command: {x: {stdout: {have-len: many}}}", "have-len needs a number, not \"many\""},
		{"a broken constraint", "command: {x: {stdout: {semver-constraint: about 2}}}", "stdout: \"about\" is not a version"},
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
		{"a part without a sign", "metric: {x: {exec: a, within: 10}}", "within must be a percentage like 10%, not \"10\""},
		{"a pattern without a group", "metric: {x: {exec: a, match: b}}", "match must have one group"},
		{"two ways to the number", "metric: {x: {exec: a, match: (b), json: c}}", "match and json are two ways"},
		{"a query for the number", "metric: {x: {exec: a, json: '#'}}", "json: \"#\": only names and numbers"},
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

// refusedSuite is one that must not load, and what must be said of it.
type refusedSuite struct{ name, give, want string }

func refuseSuites(t *testing.T, suites []refusedSuite) {
	t.Helper()
	for _, tt := range suites {
		t.Run(tt.name, func(t *testing.T) {
			_, err := LoadSuite(writeSuite(t, map[string]string{"main.yml": tt.give}))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("LoadSuite = %v; want ...%s...", err, tt.want)
			}
		})
	}
}

func TestGossfiles(t *testing.T) {
	path := writeSuite(t, map[string]string{
		"main.yml":       "file: {/first: {}}\ngossfile:\n  parts/*.yml: {}\n  off: {file: broken.yml, skip: true}\ncommand: {last: {}}\n",
		"broken.yml":     "nonsense",
		"parts/one.yml":  "file: {/one: {}}\ngossfile: {two.yaml: {}}",
		"parts/two.yaml": "file: {/two: {}}",
	})
	suite, err := LoadSuite(path)
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
		match, miss     []string
	}{
		{"stdout", "[]", []string{"", "anything"}, nil},
		{"stdout", "whole text", []string{"whole text", "whole text\n"}, []string{"whole text here", "", "whole text\n\n"}},
		{"stdout", "[foo]", []string{"a foo b", "x\nfoo\n"}, []string{"", "fo\no"}},
		{"stdout", "['!foo']", []string{"", "bar"}, []string{"a\nxfoox"}},
		{"stdout", `['\!foo']`, []string{"!foo"}, []string{"foo"}},
		{"stdout", `['\/x/']`, []string{"a /x/ b"}, []string{"x"}},
		{"stdout", "['/^f[o]+$/']", []string{"a\nfoo\nb"}, []string{"food"}},
		{"stdout", "['!/^f[o]+$/']", []string{"food"}, []string{"a\nfoo"}},
		{"stdout", "['/']", []string{"a/b"}, []string{"ab"}},
		{"stdout", "[a, '!b', '/c/']", []string{"a\nc"}, []string{"a", "a\nb\nc"}},
		{"stdout", "{have-prefix: ab}", []string{"abc"}, []string{"xab"}},
		{"stdout", "{have-suffix: c}", []string{"abc\n"}, []string{"cb"}},
		{"stdout", "{contain-substring: b}", []string{"abc"}, []string{"xyz"}},
		{"stdout", "{match-regexp: '^a.c$'}", []string{"abc"}, []string{"abcd"}},
		{"stdout", "{not: {contain-substring: b}}", []string{"xyz"}, []string{"abc"}},
		{"stdout", "{and: [{have-prefix: a}, {have-suffix: c}]}", []string{"abc"}, []string{"ab", "bc"}},
		{"stdout", "{or: [{have-prefix: a}, {have-suffix: c}]}", []string{"ab", "bc"}, []string{"b"}},
		{"stdout", "{gt: 41}", []string{"42\n", "41.5"}, []string{"41", "many"}},
		{"stdout", "{le: 41}", []string{"41", "-1"}, []string{"42"}},
		{"stdout", "[{have-prefix: a}]", []string{"b\nabc"}, []string{"b\nba"}},
		{"stdout", "{equal: [a, b]}", []string{"a\nb\n"}, []string{"b\na"}},
		{"stdout", "{contain-element: {match-regexp: ^b}}", []string{"a\nbc"}, []string{"ab"}},
		{"stdout", "{contain-elements: [a, b]}", []string{"b\nc\na"}, []string{"a\nbc"}},
		{"stdout", "{have-len: 3}", []string{"abc"}, []string{"abc\n", "ab"}},
		{"stdout", "{have-patterns: [a, '!b']}", []string{"xay"}, []string{"a\nb", "c"}},
		{"stdout", "{consist-of: [a, {have-prefix: b}]}", []string{"a\nbc\n", "bc\na"}, []string{"a", "a\na", "a\nbc\nd"}},
		{"stdout", "{consist-of: [{have-prefix: a}, {have-prefix: ab}, abc]}", []string{"abc\nabd\nax", "ax\nabd\nabc"}, []string{"abc\nax\nay"}},
		{"stdout", "{semver-constraint: '>=1.2.0'}", []string{"1.2.1\n"}, []string{"1.1.0", "git"}},
		{"stdout", "{gjson: {a.0: 1, b: {have-prefix: x}}}", []string{`{"a": [1], "b": "xy"}`}, []string{`{"a": [2], "b": "xy"}`, `{"a": [1]}`, "no"}},
		{"exit-status", "0", []string{"0"}, []string{"1", "10"}},
		{"exit-status", "{not: 0}", []string{"1", "127"}, []string{"0"}},
		{"exit-status", "{or: [0, 3]}", []string{"0", "3"}, []string{"1"}},
		{"exit-status", "{lt: 128}", []string{"127"}, []string{"128"}},
	} {
		text := "command:\n  x:\n    " + tt.attribute + ": " + tt.give
		suite, err := LoadSuite(writeSuite(t, map[string]string{"main.yml": text}))
		if err != nil {
			t.Errorf("%s: %v", tt.give, err)
			continue
		}
		m := suite.Checks[0].probe.(command).stdout
		if tt.attribute == "exit-status" {
			m = suite.Checks[0].probe.(command).exitStatus
		}
		for _, v := range tt.match {
			if misses := m.misses(v); len(misses) > 0 {
				t.Errorf("%s misses %q: %v", tt.give, v, misses)
			}
		}
		for _, v := range tt.miss {
			if m.matches(v) {
				t.Errorf("%s matches %q", tt.give, v)
			}
		}
	}
}

func TestMissesInWords(t *testing.T) {
	text := "command: {x: {stdout: [foo, '!bar', '/b.r/', '!/b.r/', {have-prefix: z}]}}"
	suite, err := LoadSuite(writeSuite(t, map[string]string{"main.yml": text}))
	if err != nil {
		t.Fatal(err)
	}
	got := suite.Checks[0].probe.(command).stdout.misses("bar")
	want := []string{`a line with "foo"`, `no line with "bar"`, `no line that matches /b.r/`, `a line that begins with "z"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzSuite holds that no file makes the parser panic, and that what it takes has
// a name and a time limit.
func FuzzSuite(f *testing.F) {
	for _, name := range Suites() {
		data, err := embedded.ReadFile("suites/" + name + ".yml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("command: {x: {stdout: {and: [{not: {or: [a, {gt: 1}]}}, {contain-element: {equal: [a]}}]}}}"))
	f.Add([]byte("file:\n  /x: {mode: 0755, size: {gt: 3}, contains: ['!/a/'], md5: a, meta: {title: a}}"))
	f.Add([]byte("mount: {/: {opts: [rw, {have-prefix: r}], source: /dev/sda, filesystem: {not: nfs}}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := parseYAML("fuzz.yml", data)
		if err != nil {
			return
		}
		l := loader{}
		for key, value := range pairs(root) {
			if key.Value == "gossfile" {
				continue
			}
			if err := l.section("fuzz.yml", key, value); err != nil {
				return
			}
		}
		for _, c := range l.checks {
			if c.Timeout <= 0 || c.Timeout > maxTimeout || c.probe == nil {
				t.Fatalf("check %+v", c)
			}
			if p, ok := c.probe.(command); ok {
				p.stdout.misses(string(data))
			}
		}
	})
}

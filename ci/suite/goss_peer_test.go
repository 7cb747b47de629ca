package suite

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"
	"golang.org/x/sys/unix"
)

// These tests compare Slipway with the real goss. Slipway refuses a check with a reason, or
// has goss's verdict.

const gossVersion = "v0.4.9"

// verdict is the result of one check: passed, failed, skipped, or refused.
type verdict struct {
	word string
	why  string
}

// peerCheck is one check of a goss file.
type peerCheck struct {
	section, name string
	body          map[string]any
}

// id returns the check's section, as goss prints it, and its name.
func (c peerCheck) id() string {
	return strings.ToLower(strings.ReplaceAll(c.section, "-", "")) + " " + c.name
}

// findGosses returns the paths of goss programs by version. One is the release gossVersion,
// which the module proxy provides. If SLIPWAY_GOSS names a clone, "clone" is the other.
func findGosses(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	dir, err := filepath.Abs("../../build/peers")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "goss")
	if info, err := buildinfo.ReadFile(program); err != nil || info.Main.Version != gossVersion {
		if os.Getenv("CI") == "" {
			t.Skip("needs goss, whose build takes a minute of CPU time: set CI=true once")
		}
		// "go install" would fetch the list of releases, which some proxies do not have.
		module := t.TempDir()
		needs := "module peer\n\nrequire github.com/goss-org/goss " + gossVersion + "\n"
		if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte(needs), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", program, "github.com/goss-org/goss/cmd/goss")
		cmd.Dir = module
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("goss %s cannot be built, which needs the Go module proxy once: %v\n%s", gossVersion, err, out)
		}
	}
	found[gossVersion] = program
	if clone := os.Getenv("SLIPWAY_GOSS"); clone != "" {
		program := filepath.Join(t.TempDir(), "goss")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/goss")
		cmd.Dir = clone
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the goss of SLIPWAY_GOSS: %v\n%s", err, out)
		}
		found["clone"] = program
	}
	return found
}

// gossVerdicts returns goss's verdicts by the checks' ids. It finds checks that make goss
// panic by bisection, and counts them as failed.
func gossVerdicts(t *testing.T, program string, checks map[string]peerCheck) map[string]verdict {
	t.Helper()
	names := slices.Sorted(maps.Keys(checks))
	file := map[string]map[string]any{}
	for _, c := range checks {
		if file[c.section] == nil {
			file[c.section] = map[string]any{}
		}
		file[c.section][c.name] = c.body
	}
	all, err := runGoss(t, program, file)
	if err == nil {
		return all
	}
	if len(names) == 1 {
		return map[string]verdict{names[0]: {"failed", err.Error()}}
	}
	all = map[string]verdict{}
	for _, half := range [][]string{names[:len(names)/2], names[len(names)/2:]} {
		part := map[string]peerCheck{}
		for _, name := range half {
			part[name] = checks[name]
		}
		maps.Copy(all, gossVerdicts(t, program, part))
	}
	return all
}

func runGoss(t *testing.T, program string, file any) (map[string]verdict, error) {
	t.Helper()
	data, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	// What looks like a template in a check is text in ours.
	path := filepath.Join(t.TempDir(), "goss.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--gossfile", path, "validate", "--format", "json")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	var output struct {
		Results []struct {
			Type   string `json:"resource-type"`
			ID     string `json:"resource-id"`
			Result int    `json:"result"`
			Err    any    `json:"err"`
		} `json:"results"`
	}
	if err := json.Unmarshal(out, &output); err != nil {
		return nil, fmt.Errorf("%w: %.300s %.300s", err, out, errs.String())
	}
	all := map[string]verdict{}
	for _, r := range output.Results {
		name, _, _ := strings.Cut(r.ID, ": ") // where the name is not what is looked at
		name = strings.ToLower(r.Type) + " " + name
		word := map[int]string{0: "passed", 1: "failed", 2: "skipped"}[r.Result]
		switch was := all[name]; {
		case was.word == "failed", was.word == "passed" && word == "skipped":
		default:
			all[name] = verdict{word, fmt.Sprint(r.Err)}
		}
	}
	return all, nil
}

// ourVerdict returns Slipway's verdict.
func ourVerdict(t *testing.T, s *Session, c peerCheck) verdict {
	t.Helper()
	data, err := yaml.Marshal(map[string]map[string]any{c.section: {c.name: c.body}})
	if err != nil {
		t.Fatal(err)
	}
	l := loader{files: fstest.MapFS{"main.yml": {Data: data}}, text: io.Discard}
	if err := l.includeFile("main.yml", 0); err != nil {
		return verdict{"refused", err.Error()}
	}
	r := s.RunCheck(context.WithoutCancel(t.Context()), l.checks[0])[0]
	return verdict{string(r.Status), r.Saw + " / " + r.Want}
}

// peerValues returns values to match, as a command prints them or of goss's own types.
func peerValues() map[string]any {
	return map[string]any{
		"word": "foo", "line": "foo\n", "lines": "a\nfoo\nb\n", "CRLF": "a\r\nfoo\r\n", "nothing": "", "a line feed": "\n",
		"whole": "5", "whole line": "5\n", "fraction": " 5.5 ", "power": "1e3", "hex": "0x10", "words": "five",
		"version": "1.2.3", "version line": "1.2.3\n", "with v": "v1.2.3", "short": "1.2", "candidate": "1.2.3-rc.1", "built": "1.2.3+5",
		"sshd": "Port 22\nPermitRootLogin yes\n", "path": "etc/passwd x\n", "slashes": "/etc/passwd/i\n", "bang": "!foo\n",
		"object": `{"a": {"b": [1, 2.5, "x"]}, "n": 1000000, "t": true, "z": null, "d.e": 1, "l": [{"k": "v"}, {"k": "w"}]}`,
		"array":  `[1, 2]`, "bad JSON": `{"a":`, "two JSONs": `{"a": 1} {"a": 2}`, "same keys": `{"a": 1, "a": 2}`,
		"true word": "true",
		"list":      []any{"a", "foo"}, "twice": []any{"foo", "foo"}, "numbers": []any{1, 2}, "versions": []any{"1.0.1", "1.9.9"},
		"bad versions": []any{"1.0.1", "x"}, "empty list": []any{}, "mixed": []any{"a", 5, true}, "nested": []any{[]any{"a"}},
		"mapping": map[string]any{"a": 1, "foo": "bar"}, "number": 5, "float": 5.0, "truth": true, "lie": false,
	}
}

// peerMatchers are matchers in YAML. newOnly means that the released goss lacks them.
var peerMatchers = []struct {
	text    string
	newOnly bool
}{
	{`foo`, false},
	{`"foo\n"`, false},
	{`""`, false},
	{`5`, false},
	{`"5"`, false},
	{`5.0`, false},
	{`5.5`, false},
	{`"true"`, false},
	{`true`, false},
	{`yes`, false},
	{`0x5`, false},
	{`0o5`, false},
	{`05`, false},
	{`"05"`, false},
	{`1_0`, false},
	{`.5`, false},
	{`1e3`, false},
	{`2020-01-01`, false},
	{`18446744073709551615`, false},
	{`null`, false},
	{`[]`, false},
	{`[foo]`, false},
	{`[a, foo]`, false},
	{`[foo, foo]`, false},
	{`['!foo']`, false},
	{`['\!foo']`, false},
	{`['!!foo']`, false},
	{`['\\foo']`, false},
	{`["!"]`, false},
	{`[""]`, false},
	{`[5]`, false},
	{`[true]`, false},
	{`[{have-prefix: f}]`, false},
	{`[[a]]`, false},
	{`[1, 2]`, false},
	{`[/etc/passwd]`, false},
	{`['!/etc/passwd']`, false},
	{`['\/etc/passwd']`, false},
	{`['!\/etc/passwd']`, false},
	{`['/']`, false},
	{`['!/']`, false},
	{`['\']`, false},
	{`['!\']`, false},
	{`['/\//']`, false},
	{`['/passwd']`, false},
	{`['!/passwd']`, false},
	{`['/^foo$/']`, false},
	{`['!/^foo$/']`, false},
	{`['/f.o/', '!/b.r/']`, false},
	{`['//']`, false},
	{`['!//']`, false},
	{`['/a\/f/']`, false},
	{`['/permitrootlogin yes/i']`, true},
	{`['!/permitrootlogin yes/i']`, true},
	{`['/^FOO$/im']`, true},
	{`['!/^FOO$/ims']`, true},
	{`['/o.b/s']`, true},
	{`['/FOO/ii']`, true},
	{`['/foo/g']`, false},
	{`['!/foo/x']`, false},
	{`['!/foo/I']`, false},
	{`['/foo/U']`, false},
	{`['/foo/ig']`, false},
	{`['/(/']`, false},
	{`['/(/i']`, true},
	{`{have-prefix: f}`, false},
	{`{have-prefix: 5}`, false},
	{`{have-suffix: o}`, false},
	{`{have-suffix: "o\n"}`, false},
	{`{contain-substring: o}`, false},
	{`{match-regexp: "^foo$"}`, false},
	{`{match-regexp: "(?m)^foo$"}`, false},
	{`{match-regexp: "("}`, false},
	{`{match-regexp: [a]}`, false},
	{`{equal: foo}`, false},
	{`{equal: "foo\n"}`, false},
	{`{equal: 5}`, false},
	{`{equal: 5.0}`, false},
	{`{equal: true}`, false},
	{`{equal: [a, foo]}`, false},
	{`{equal: [1, 2]}`, false},
	{`{equal: {a: 1, foo: bar}}`, false},
	{`{not: foo}`, false},
	{`{not: [foo]}`, false},
	{`{not: 5}`, false},
	{`{not: {gt: 4}}`, false},
	{`{not: {not: foo}}`, false},
	{`{not: {semver-constraint: ">2.0.0"}}`, false},
	{`{not: {gjson: {a: 5}}}`, false},
	{`{not: {contain-element: {gt: 3}}}`, false},
	{`{not: {contain-elements: [{gt: 3}]}}`, false},
	{`{not: {have-len: 3}}`, false},
	{`{not: {consist-of: [foo]}}`, false},
	{`{not: {have-key: b}}`, false},
	{`{not: {have-patterns: [x]}}`, false},
	{`{not: {equal: foo}}`, false},
	{`{not: true}`, false},
	{`{and: []}`, false},
	{`{or: []}`, false},
	{`{and: [{gt: 4}, {lt: 6}]}`, false},
	{`{and: [foo, {have-len: 3}]}`, false},
	{`{or: [foo, {gt: 4}]}`, false},
	{`{or: [{gt: 4}, foo]}`, false},
	{`{or: [{gt: 4}, {lt: 6}]}`, false},
	{`{and: [[foo]]}`, false},
	{`{and: foo}`, false},
	{`{gt: 4}`, false},
	{`{ge: 5}`, false},
	{`{lt: 5.1}`, false},
	{`{le: 5}`, false},
	{`{gt: "4"}`, false},
	{`{gt: [4]}`, false},
	{`{gt: true}`, false},
	{`{gt: -1}`, false},
	{`{lt: 1000.5}`, false},
	{`{ge: 0x10}`, false},
	{`{have-len: 3}`, false},
	{`{have-len: 0}`, false},
	{`{have-len: 2}`, false},
	{`{have-len: "3"}`, false},
	{`{have-len: 3.0}`, false},
	{`{have-len: -1}`, false},
	{`{contain-element: foo}`, false},
	{`{contain-element: 5}`, false},
	{`{contain-element: 2}`, false},
	{`{contain-element: {gt: 1}}`, false},
	{`{contain-element: {have-prefix: f}}`, false},
	{`{contain-element: ""}`, false},
	{`{contain-element: true}`, false},
	{`{contain-element: [a]}`, false},
	{`{contain-element: {equal: 5}}`, false},
	{`{contain-elements: [foo]}`, false},
	{`{contain-elements: [foo, foo]}`, false},
	{`{contain-elements: [{have-prefix: f}, foo]}`, false},
	{`{contain-elements: []}`, false},
	{`{contain-elements: foo}`, false},
	{`{contain-elements: [1, {gt: 1}]}`, false},
	{`{consist-of: [foo, a]}`, false},
	{`{consist-of: [foo, foo]}`, false},
	{`{consist-of: [{have-prefix: f}, {have-len: 3}]}`, false},
	{`{consist-of: []}`, false},
	{`{consist-of: [2, 1]}`, false},
	{`{consist-of: foo}`, false},
	{`{have-patterns: [foo]}`, false},
	{`{have-patterns: ['!foo']}`, false},
	{`{have-patterns: ['/^F/i']}`, true},
	{`{have-patterns: [5]}`, false},
	{`{have-patterns: foo}`, false},
	{`{have-patterns: []}`, false},
	{`{have-key: foo}`, false},
	{`{have-key: {have-prefix: f}}`, false},
	{`{have-key: {gt: 3}}`, false},
	{`{have-key: 5}`, false},
	{`{have-key-with-value: {a: 1}}`, false},
	{`{semver-constraint: ">1.0.0 <2.0.0 !=1.5.0"}`, false},
	{`{semver-constraint: ">5.0.0 || < 1.5.0"}`, false},
	{`{semver-constraint: ">= 1.2.0"}`, false},
	{`{semver-constraint: ">=1.2.x"}`, false},
	{`{semver-constraint: "1.2.x"}`, false},
	{`{semver-constraint: "1.x"}`, false},
	{`{semver-constraint: "!=1.2.x"}`, false},
	{`{semver-constraint: ">1.x"}`, false},
	{`{semver-constraint: "1.2"}`, false},
	{`{semver-constraint: ">=1"}`, false},
	{`{semver-constraint: "v1.2.3"}`, false},
	{`{semver-constraint: "=v1.2.3"}`, false},
	{`{semver-constraint: "^1.2"}`, false},
	{`{semver-constraint: "~1.2.0"}`, false},
	{`{semver-constraint: ">=1.2.0,<2.0.0"}`, false},
	{`{semver-constraint: ""}`, false},
	{`{semver-constraint: "||"}`, false},
	{`{semver-constraint: "*"}`, false},
	{`{semver-constraint: ">1.2.3-rc.0"}`, false},
	{`{semver-constraint: "1.2.3.4"}`, false},
	{`{semver-constraint: "==1.2.3"}`, false},
	{`{semver-constraint: "!1.2.3"}`, false},
	{`{semver-constraint: 1.2}`, false},
	{`{semver-constraint: "<1.3.0 >1.2.0 || 5.0.0"}`, false},
	{`{semver-constraint: "01.2.3"}`, false},
	{`{gjson: {a.b.0: 1}}`, false},
	{`{gjson: {a.b.1: 2.5}}`, false},
	{`{gjson: {"a.b.#": 3}}`, false},
	{`{gjson: {"l.#.k": [v, w]}}`, false},
	{`{gjson: {'l.#(k=="v").k': v}}`, false},
	{`{gjson: {a.b: {have-len: 3}}}`, false},
	{`{gjson: {a: {have-key: b}}}`, false},
	{`{gjson: {n: "1e+06"}}`, false},
	{`{gjson: {n: 1000000}}`, false},
	{`{gjson: {n: {have-prefix: "1000"}}}`, false},
	{`{gjson: {n: {equal: 1000000}}}`, false},
	{`{gjson: {n: {equal: 1000000.0}}}`, false},
	{`{gjson: {t: true}}`, false},
	{`{gjson: {t: "true"}}`, false},
	{`{gjson: {z: "<nil>"}}`, false},
	{`{gjson: {'d\.e': 1}}`, false},
	{`{gjson: {"a.*": {have-len: 3}}}`, false},
	{`{gjson: {a: 1}}`, false},
	{`{gjson: {a: 2}}`, false},
	{`{gjson: {none: 1}}`, false},
	{`{gjson: {}}`, false},
	{`{gjson: {a: [b]}}`, false},
	{`{gjson: {a.b: [1, x]}}`, false},
	{`{gjson: {"@this.a.b.2": x}}`, false},
	{`{gjson: {a.b: {consist-of: [1, 2.5, x]}}}`, false},
	{`{gjson: [a]}`, false},
	{`{gjson: {0: 1}}`, false},
	{`{}`, false},
	{`{have-prefix: f, have-suffix: o}`, false},
	{`{unknown: f}`, false},
	{`{have-prefix: null}`, false},
}

func TestMatchersBesideGoss(t *testing.T) {
	checks, texts, newOnly := map[string]peerCheck{}, map[string]string{}, map[string]bool{}
	for i, m := range peerMatchers {
		var matches any
		if err := yaml.Unmarshal([]byte(m.text), &matches); err != nil {
			t.Fatal(err)
		}
		for name, content := range peerValues() {
			c := peerCheck{"matching", fmt.Sprintf("%03d %s", i, name), map[string]any{"content": content, "matches": rawYAML(m.text)}}
			checks[c.id()], texts[c.id()], newOnly[c.id()] = c, m.text, m.newOnly
			if _, ok := content.(string); ok && strings.HasPrefix(m.text, "[") {
				printed := peerCheck{"matching", c.name + " printed", map[string]any{"content": content, "matches": rawYAML(m.text), "as-reader": true}}
				checks[printed.id()], texts[printed.id()], newOnly[printed.id()] = printed, m.text, m.newOnly
			}
		}
	}
	ours := map[string]verdict{}
	for id, c := range checks {
		ours[id] = ourVerdict(t, &Session{}, c)
	}
	for version, program := range findGosses(t) {
		counts, refused := map[string]int{}, map[string]bool{}
		theirs := gossVerdicts(t, program, checks)
		for _, id := range slices.Sorted(maps.Keys(checks)) {
			us, them := ours[id], theirs[id]
			counts[us.word]++
			switch {
			case us.word == "refused" && them.word == "passed":
				refused[texts[id]] = true
			case us.word == "refused", us.word == them.word, newOnly[id] && version == gossVersion:
			default:
				t.Errorf("%s of %s: ours %s (%s), goss %s: %s (%s)", texts[id], id, us.word, us.why, version, them.word, them.why)
			}
		}
		t.Logf("beside goss %s: %v", version, counts)
		if diff := cmp.Diff(refusedForReasons, slices.Sorted(maps.Keys(refused))); diff != "" {
			t.Errorf("beside goss %s: Slipway refuses matchers that it passes (-want +got):\n%s", version, diff)
		}
	}
}

// refusedForReasons are matchers that goss passes for some value and Slipway refuses. goss
// reads unknown flags as text, passes empty patterns and lists, and truncates a length.
var refusedForReasons = []string{
	"['!/foo/I']", "['!/foo/x']", `['!\']`, `['\']`, "[]", "{and: []}", "{gjson: {}}", "{have-len: 3.0}", "{have-patterns: []}",
}

// rawYAML returns a value with its tags and quotes.
func rawYAML(text string) *yaml.Node {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		panic(err)
	}
	return n.Content[0]
}

// peerSections are checks of this machine. $D is a folder with a file, a link and a named
// pipe. $P is an open port, $Q a closed one. $U and $I are a user's name and number.
const peerSections = `
command:
  status: {exec: exit 3, exit-status: 3}
  status as text: {exec: exit 3, exit-status: "3"}
  status of many: {exec: exit 3, exit-status: {or: [1, 3]}}
  wrong status: {exec: exit 3, exit-status: 0}
  status out of reach: {exec: "kill -9 $$", exit-status: 137}
  no such program: {exec: no-such-program-here, exit-status: 127, stderr: [not found]}
  printed: {exec: echo hi, exit-status: 0, stdout: [hi], stderr: []}
  printed, whole: {exec: echo hi, exit-status: 0, stdout: hi}
  printed, whole line: {exec: echo hi, exit-status: 0, stdout: "hi\n"}
  printed, nothing: {exec: "true", exit-status: 0, stdout: ""}
  printed nothing, wanted absent: {exec: "true", exit-status: 0, stdout: ["!x"]}
  a number: {exec: echo 5, exit-status: 0, stdout: 5}
  a number, compared: {exec: echo 5.5, exit-status: 0, stdout: {gt: 5}}
  no number, compared: {exec: echo five, exit-status: 0, stdout: {not: {gt: 5}}}
  a version: {exec: printf 1.2.3, exit-status: 0, stdout: {semver-constraint: ">=1.2.x"}}
  a version of a line: {exec: echo 1.2.3, exit-status: 0, stdout: {semver-constraint: ">=1.2.x"}}
  absent pattern: {exec: echo PermitRootLogin yes, exit-status: 0, stdout: ["!/permitrootlogin yes/"]}
  both outputs: {exec: echo a; echo b >&2, exit-status: 0, stdout: [a, "!b"], stderr: [b, "!a"]}
  JSON: {exec: "echo '{\"a\": [1, 2]}'", exit-status: 0, stdout: {gjson: {a.1: 2, "a.#": 2}}}
  slow: {exec: sleep 5, exit-status: 0, timeout: 300}
  skipped: {exec: "false", exit-status: 0, skip: true}
  zero timeout: {exec: "true", exit-status: 0, timeout: 0}
  bytes: {exec: "printf '\\377\\n'", exit-status: 0, stdout: {have-len: 2}}
  NUL: {exec: "printf 'a\\0b\\n'", exit-status: 0, stdout: [a, b]}
  carriage return: {exec: "printf 'a\\r\\n'", exit-status: 0, stdout: ["/^a$/"]}
file:
  $D/file: {exists: true, mode: "0640", size: 8, owner: $U, uid: $I, filetype: file, contents: [one, "!three", /^two$/]}
  mode number: {path: $D/file, exists: true, mode: 0640}
  mode short: {path: $D/file, exists: true, mode: "640"}
  mode other: {path: $D/file, exists: true, mode: "0600"}
  mode matched: {path: $D/file, exists: true, mode: {have-prefix: "06"}}
  size text: {path: $D/file, exists: true, size: "8"}
  size compared: {path: $D/file, exists: true, size: {and: [{gt: 7}, {lt: 9}]}}
  wrong size: {path: $D/file, exists: true, size: 9}
  whole contents: {path: $D/file, exists: true, contents: "one\ntwo\n"}
  whole contents, no end: {path: $D/file, exists: true, contents: "one\ntwo"}
  lines as list: {path: $D/file, exists: true, contents: {contain-elements: [one, two]}}
  lines alone: {path: $D/file, exists: true, contents: {consist-of: [one, two]}}
  old name: {path: $D/file, exists: true, contains: [one]}
  no contents: {path: $D/file, exists: true, contents: []}
  sum: {path: $D/file, exists: true, md5: 0, sha256: c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8}
  right sum: {path: $D/file, exists: true, sha256: c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8}
  link: {path: $D/link, exists: true, filetype: symlink, linked-to: file, contents: [one]}
  broken link: {path: $D/broken, exists: true, filetype: symlink, linked-to: nowhere}
  broken link, contents: {path: $D/broken, exists: true, contents: [a]}
  broken link, absent contents: {path: $D/broken, exists: true, contents: ["!a"]}
  link to no link: {path: $D/file, exists: true, linked-to: file}
  pipe: {path: $D/pipe, exists: true, filetype: pipe}
  folder: {path: $D, exists: true, filetype: directory}
  folder contents: {path: $D, exists: true, contents: ["!a"]}
  device: {path: /dev/null, exists: true, filetype: character-device, mode: "0666"}
  absent: {path: $D/none, exists: false}
  absent, with more: {path: $D/none, exists: false, mode: "0644", contents: [a]}
  there, wanted absent: {path: $D/file, exists: false}
  absent, wanted: {path: $D/none, exists: true, contents: ["!a"]}
  below a file: {path: $D/file/x, exists: false}
  home: {path: ~root, exists: true}
user:
  $U: {exists: true, uid: $I, gid: {ge: 0}, home: {have-prefix: /}, shell: {match-regexp: /}}
  uid text: {username: root, exists: true, uid: "0"}
  uid equal: {username: root, exists: true, uid: {equal: 0}}
  uid equal text: {username: root, exists: true, uid: {equal: "0"}}
  wrong uid: {username: root, exists: true, uid: 1}
  groups: {username: root, exists: true, groups: [root]}
  groups twice: {username: root, exists: true, groups: [root, root]}
  groups, all: {username: root, exists: true, groups: {consist-of: [{not: nobody}]}}
  no such user: {username: nobody-of-this-name, exists: false}
  no such user, wanted: {username: nobody-of-this-name, exists: true}
  by number: {username: "0", exists: true}
group:
  root: {exists: true, gid: 0}
  gid compared: {groupname: root, exists: true, gid: {gt: 0}}
  no such group: {groupname: nobody-of-this-name, exists: false}
package:
  coreutils: {installed: true, versions: {contain-element: {have-prefix: "9"}}}
  no-such-package: {installed: false}
  no-such-package2: {installed: true}
  with versions: {name: coreutils, installed: true, versions: []}
  wrong versions: {name: coreutils, installed: true, versions: ["0"]}
  version text: {name: coreutils, installed: true, versions: {match-regexp: "^[0-9]"}}
port:
  tcp:$P: {listening: true, ip: [127.0.0.1]}
  $P: {listening: true}
  wrong address: {port: tcp:$P, listening: true, ip: [0.0.0.0]}
  address as text: {port: tcp:$P, listening: true, ip: 127.0.0.1}
  address twice: {port: tcp:$P, listening: true, ip: [127.0.0.1, 127.0.0.1]}
  tcp:$Q: {listening: false}
  wanted: {port: tcp:$Q, listening: true}
  of IPv6: {port: tcp6:$P, listening: true}
  udp:$P: {listening: true}
  connected: {port: udp:$C, listening: true}
process:
  sshd: {running: true}
  no-such-process: {running: false}
  no-such-process2: {running: true}
  path: {comm: /usr/sbin/sshd, running: true}
mount:
  /proc: {exists: true, filesystem: proc, opts: [rw], vfs-opts: [rw], source: proc}
  wrong type: {mountpoint: /proc, exists: true, filesystem: ext4}
  opts alone: {mountpoint: /proc, exists: true, opts: {consist-of: [rw, nosuid, nodev, noexec, relatime]}}
  opts absent: {mountpoint: /proc, exists: true, opts: {not: {contain-element: ro}}}
  root: {mountpoint: /, exists: true, usage: {and: [{ge: 0}, {le: 100}]}}
  usage: {mountpoint: /, exists: true, usage: $G}
  nothing there: {mountpoint: $D, exists: true}
interface:
  lo: {exists: true, mtu: {gt: 1000}, addrs: {contain-element: {have-prefix: "127."}}}
  lo text: {name: lo, exists: true, mtu: "65536"}
  none9: {exists: false}
  none8: {exists: true}
kernel-param:
  kernel.ostype: {value: Linux}
  kernel.osrelease: {value: {match-regexp: "^[0-9]"}}
  net.ipv4.ip_local_port_range: {value: {match-regexp: "^[0-9]+\t[0-9]+$"}}
  kernel.pid_max: {value: {gt: 1000}}
  vm.swappiness: {value: 60}
  kernel.no_such_thing: {value: "1"}
dns:
  localhost: {resolvable: true, timeout: 2000, addrs: {contain-element: {or: [127.0.0.1, "::1"]}}}
  no-such-name.invalid: {resolvable: false, timeout: 2000}
  no-such-name2.invalid: {resolvable: true, timeout: 2000}
addr:
  tcp://127.0.0.1:$P: {reachable: true, timeout: 2000}
  tcp://127.0.0.1:$Q: {reachable: false, timeout: 2000}
  wanted: {address: tcp://127.0.0.1:$Q, reachable: true, timeout: 2000}
  no scheme: {address: 127.0.0.1:$P, reachable: true, timeout: 2000}
http:
  $H/fine: {status: 200, body: [well, "!error"], headers: ["X-Board: virt"]}
  headers whole: {url: $H/fine, status: 200, headers: {contain-element: "X-Board: virt"}}
  headers as regex: {url: $H/fine, status: 200, headers: ["/^X-Board: virt$/"]}
  body whole: {url: $H/fine, status: 200, body: all well}
  wrong status: {url: $H/fine, status: 404}
  missing: {url: $H/none, status: 404}
  moved: {url: $H/moved, status: 200}
  moved, not followed: {url: $H/moved, status: 302, no-follow-redirects: true}
  echo: {url: $H/echo, status: 200, method: POST, request-body: hello, request-headers: ["X-A: b"], username: u, password: p, body: ["POST hello b u p"]}
  nobody: {url: "http://127.0.0.1:$Q/", status: 200}
  round: {url: $H/round, status: 302}
`

func TestSectionsBesideGoss(t *testing.T) {
	conn := connect(t)
	server := httptest.NewServer(http.HandlerFunc(serveAnswer))
	defer server.Close()
	udp, err := net.Dial("udp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	_, closed, _ := net.SplitHostPort(closedPort(t))
	port := func(a net.Addr) string { _, p, _ := net.SplitHostPort(a.String()); return p }
	fill := strings.NewReplacer("$D", peerFiles(t), "$P", port(server.Listener.Addr()), "$Q", closed, "$C", port(udp.LocalAddr()),
		"$H", server.URL, "$U", me.Username, "$I", me.Uid, "$G", fmt.Sprint(usedPercent(t, "/")))
	checks := checksIn(t, []byte(fill.Replace(peerSections)))
	s := &Session{Board: conn, dial: conn.DialContext}
	for version, program := range findGosses(t) {
		compareChecks(t, s, version, program, checks)
	}
}

// compareChecks compares the verdicts of goss and of Slipway.
func compareChecks(t *testing.T, s *Session, version, program string, checks map[string]peerCheck) {
	t.Helper()
	theirs, counts := gossVerdicts(t, program, checks), map[string]int{}
	if _, err := os.Stat("/run/systemd/system"); err != nil { // goss then looks into /etc/init.d
		maps.DeleteFunc(checks, func(_ string, c peerCheck) bool { return c.section == "service" })
	}
	for _, id := range slices.Sorted(maps.Keys(checks)) {
		us, them := ourVerdict(t, s, checks[id]), theirs[id]
		counts[us.word]++
		if us.word == "refused" {
			t.Logf("%s: refused%s", id, us.why)
		} else if us.word != them.word && peerReasons[id] == "" {
			t.Errorf("%s: ours %s (%s), goss %s: %s (%s)", id, us.word, us.why, version, them.word, them.why)
		}
	}
	t.Logf("beside goss %s: %v", version, counts)
}

// peerReasons are the reasons for verdicts that differ from goss's.
var peerReasons = map[string]string{
	"command status out of reach": "the board's shell gives 128 and the signal's number; goss gives -1",
}

// If SLIPWAY_GOSS names a clone, this test compares the verdicts for goss's own files. goss
// fills in their templates.
func TestFilesBesideGoss(t *testing.T) {
	clone := os.Getenv("SLIPWAY_GOSS")
	if clone == "" {
		t.Skip("SLIPWAY_GOSS names no clone of goss")
	}
	conn, programs := connect(t), findGosses(t)
	s := &Session{Board: conn, dial: conn.DialContext}
	var files []string
	for _, pattern := range []string{"testdata/*.yaml", "examples/*.yaml", "docs/goss.yaml", "integration-tests/goss/*/goss.yaml"} {
		found, err := filepath.Glob(filepath.Join(clone, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("the clone has no %s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(strings.TrimPrefix(file, clone), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), programs["clone"], "--gossfile", file,
				"--vars", filepath.Join(clone, "integration-tests/goss/vars.yaml"), "--vars-inline", "{inline: bar, overwrite: bar}", "render")
			cmd.Env = append(os.Environ(), "OS="+filepath.Base(filepath.Dir(file)))
			data, err := cmd.Output()
			if err != nil {
				t.Skipf("goss cannot fill it in: %v", err)
			}
			compareChecks(t, s, "clone", programs["clone"], checksIn(t, data))
		})
	}
}

// checksIn returns the checks of a goss file.
func checksIn(t *testing.T, data []byte) map[string]peerCheck {
	t.Helper()
	var sections map[string]map[string]map[string]any
	if err := yaml.Unmarshal(data, &sections); err != nil {
		t.Fatal(err)
	}
	checks := map[string]peerCheck{}
	for section, all := range sections {
		for name, body := range all {
			maps.DeleteFunc(body, func(_ string, v any) bool { return v == nil }) // goss's render writes these
			c := peerCheck{section, name, body}
			checks[c.id()] = c
		}
	}
	return checks
}

func usedPercent(t *testing.T, dir string) int {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	used, err := parseUsage(fmt.Sprintf("%d %d", fs.Blocks, fs.Bfree))
	if err != nil {
		t.Fatal(err)
	}
	return used
}

func peerFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), []byte("one\ntwo\n"), 0o640),
		os.Symlink("file", filepath.Join(dir, "link")), os.Symlink("nowhere", filepath.Join(dir, "broken")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

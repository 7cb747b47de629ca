package suite

import (
	"context"
	"fmt"
	"io/fs"
	"slices"

	"go.yaml.in/yaml/v4"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/flash/boardssh"
	"slipway/layers/plaintext"
)

// Board runs programs on a target. Run may be called by several goroutines at a time.
type Board interface {
	Run(ctx context.Context, argv ...string) (boardssh.Result, error)
}

// Probe inspects a board for one check.
type Probe interface {
	// Inspect returns what the board showed. An error means that the board did not answer.
	Inspect(ctx context.Context, s *Session) (Finding, error)
	// Next returns what the user does after a failure. A suite can name another step.
	Next() string
}

// Kind is a section of a suite: the kind of its checks.
type Kind struct {
	Name  string
	About string             // in a few words
	Keys  []string           // attributes, besides commonKeys
	Read  func(*Entry) Probe // a mistake goes into the entry's Err
}

// kinds are all kinds: those that goss also has, Slipway's own, and those that Register added.
var kinds = []Kind{
	{"command", "a program's exit status and output", []string{"exec", "argv", "exit-status", "stdout", "stderr", "metrics", "table"}, readCommand},
	{"file", "a file, folder, link or device node", []string{
		"path", "exists", "mode", "size", "owner", "group", "uid", "gid", "filetype", "linked-to",
		"contents", "contains", "md5", "sha256", "sha512",
	}, readFile},
	{"service", "a systemd unit", []string{"name", "enabled", "running"}, readService},
	{"mount", "a mounted file system", []string{"mountpoint", "exists", "opts", "vfs-opts", "source", "filesystem", "usage"}, readMount},
	{"port", "a port that something listens on", []string{"port", "listening", "ip"}, readPort},
	{"process", "a program that runs", []string{"comm", "running", "count"}, readProcess},
	{"user", "an account", []string{"username", "exists", "uid", "gid", "groups", "home", "shell"}, readUser},
	{"group", "a group of accounts", []string{"groupname", "exists", "gid"}, readGroup},
	{"package", "a package of dpkg, rpm or opkg", []string{"name", "installed", "versions"}, readPackage},
	{"dns", "a name that the board resolves", []string{"resolve", "resolvable", "resolveable", "addrs"}, readDNS},
	{"addr", "an address that the board reaches", []string{"address", "reachable"}, readAddr},
	{"http", "a web server that the board reaches, its own too", []string{
		"url", "status", "headers", "body", "method", "request-headers", "request-body", "username", "password",
		"allow-insecure", "no-follow-redirects",
	}, readHTTP},
	{"interface", "a network interface", []string{"name", "exists", "addrs", "mtu", "operstate"}, readInterface},
	{"kernel-param", "a value below /proc/sys", []string{"name", "value"}, readKernelParam},
	{"matching", "a value of the suite itself", []string{"content", "as-reader", "matches"}, readMatching},

	{"units", "the board has come up, and no unit has failed", []string{"ignore"}, readUnits},
	{"clock", "the board's time, beside this machine's", []string{"within"}, readClock},
	{"disk", "partitions, root and slot", []string{"labels", "root", "slot"}, readDisk},
	{"module", "a module of the kernel", []string{"name", "loaded", "version"}, readModule},
	{"dmesg", "what the kernel said since it was booted", []string{"has", "never", "ignore"}, readDmesg},
	{"metric", "a number that a command prints, with limits", []string{"exec", "argv", "json", "match", "scale", "unit", "min", "max", "within"}, readMetric},
	{"temperature", "thermal zones and sensors, in °C", []string{"sensors", "min", "max", "within"}, readTemperature},
	{"power", "the rails of power monitors, in W", []string{"sensors", "min", "max", "within"}, readPower},
	{"tap", "a command that prints TAP", []string{"exec", "argv", "exit-status"}, readTAPCommand},
	{"ptest", "package tests, as ptest-runner prints them", []string{"exec", "argv", "exit-status"}, readPtestCommand},
	{"binary", "a program that is sent, run and removed, such as a Go test", []string{"path", "dir", "args", "env", "output", "exit-status", "stdout", "metrics", "table"}, readBinary},
	{"reboot", "a restart, and what holds after it", []string{"then"}, readReboot},
	{"containerd", "containerd answers", []string{"version"}, readContainerd},
	{"container", "a program in a container", []string{"image", "argv", "env", "hook", "gpus", "exit-status", "output", "metrics"}, readContainer},
}

// questions are the kinds whose programs answer at once on a working board: silence means a lost
// one. Others are the user's, or may wait for a remote file system: only their check fails.
var questions = []string{
	"service", "port", "process", "user", "group", "package", "interface", "kernel-param", "clock",
	"disk", "module", "dmesg", "temperature", "power",
}

// Kinds returns the sections that a suite may have.
func Kinds() []Kind { return kinds }

// Register adds kinds of another package. It must be called before a suite is loaded.
func Register(more ...Kind) { kinds = append(kinds, more...) }

// unsupportedKeys are attributes of goss that cannot be checked over SSH, with the reason.
var unsupportedKeys = map[string]string{
	"addr local-address": "the board's sshd chooses what it connects from",
	"dns server":         "the board's own resolver is asked; for another one use a command, like nslookup NAME SERVER",
	"http proxy":         "the board's sshd connects; for a proxy use a command, like curl",
	"http ca-file":       "this machine's certificates are used; for others use a command, like curl --cacert",
	"http cert-file":     "client certificates are not sent; use a command, like curl --cert",
	"http key-file":      "client certificates are not sent; use a command, like curl --key",
	"service runlevels":  "systemd has none; use enabled",
}

// readCheck parses one check of a section. file is the suite's path, and p has its programs. If the
// suite names no next step, the check has that of its probe.
func (k Kind) readCheck(file string, key, value *yaml.Node, p programs) (Check, error) {
	e, err := newEntry(file, k.Name, slices.Concat(k.Keys, commonKeys), key, value)
	if err != nil {
		return Check{}, err
	}
	e.programs = p
	probe := k.Read(e)
	c := Check{
		Kind: k.Name, key: e.Name, Timeout: e.readTimeout(), Skip: e.Bool("skip", false), Alone: e.Bool("alone", false),
		Retries: int(e.Number("retries", 0, 0, maxRetries)), Pause: e.readMillis("pause", defaultPause, 0),
		needs: e.readNeeds(), teardown: e.readTeardown(), probe: probe, then: e.Fields["then"],
	}
	c.asks = c.Retries == 0 && e.Limit == 0 && e.Fields["timeout"] == nil && (p.files == fs.FS(embedded) || slices.Contains(questions, k.Name))
	if p, ok := c.probe.(interface{ Alone() bool }); ok {
		c.Alone = p.Alone()
	}
	if c.Name, c.Next = e.readMeta(); c.Next == "" && e.Err == nil {
		c.Next = c.probe.Next()
	}
	return c, e.Err
}

// Finding is the result of a probe: what the board showed, and which expectations failed.
type Finding struct {
	facts     []string // shown if the check passes
	saw, Want []string // shown if it fails
	Next      string   // replaces the suite's Next, if the cause is not the one that the suite expects
	metrics   []reading
	table     *report.Table
	Proves    report.Proof
	parts     []part // each becomes a result of its own
}

// AddFact adds a line that the report shows if the check passes.
func (f *Finding) AddFact(text string) { f.facts = append(f.facts, text) }

// Expect adds saw as a fact if ok is true. Otherwise it adds saw and want as a failure.
func (f *Finding) Expect(ok bool, want, saw string) {
	if ok {
		f.AddFact(saw)
		return
	}
	f.Want, f.saw = append(f.Want, want), append(f.saw, saw)
}

// expectState expects that have equals want. Its words are what, a name, followed by yes or no.
func (f *Finding) expectState(what string, have, want bool, yes, no string) {
	f.Expect(have == want, what+plaintext.Either(want, yes, no), what+plaintext.Either(have, yes, no))
}

// ExpectMatch compares the value of attribute name with a matcher. It adds saw as a fact if the
// value matches, else as a failure. An empty matcher adds nothing.
func (f *Finding) ExpectMatch(name string, m match.Matcher, value any, saw string) {
	if m.Empty() {
		return
	}
	misses := m.Misses(value)
	if len(misses) == 0 {
		f.AddFact(saw)
		return
	}
	for _, miss := range misses {
		f.Want = append(f.Want, name+": "+miss)
	}
	f.saw = append(f.saw, saw)
}

// expectWhole adds a failure if an output was cut and m tests it. As f's first, it sets f.Next.
func (f *Finding) expectWhole(name string, m match.Matcher, cut bool) {
	if m.Empty() || !cut {
		return
	}
	if f.OK() {
		f.Next = "let it print less, through grep or tail: what is not kept was not looked at"
	}
	f.Want = append(f.Want, name+": all of it")
}

func (f Finding) OK() bool { return len(f.Want) == 0 }

// matching compares a value of the suite itself, in goss mostly of a template, with a matcher.
type matching struct {
	content any
	matches match.Matcher
}

// readMatching parses a check of the section matching, which needs content and matches.
func readMatching(e *Entry) Probe {
	m, t := matching{}, match.Any
	n := e.Fields["content"]
	if n == nil {
		e.Fail(e.Key, "a matching needs content and matches")
		return m
	}
	if err := n.Decode(&m.content); err != nil {
		e.Fail(n, "content: %v", err)
	}
	if e.Bool("as-reader", false) { // as if a command had printed it
		m.content, t = fmt.Sprint(m.content), match.Text
	}
	if m.matches = e.Matcher("matches", t); m.matches.Empty() {
		e.Fail(e.Key, "a matching needs content and matches")
	}
	return m
}

// Inspect compares the suite's own value with the matcher. It does not use the board.
func (m matching) Inspect(context.Context, *Session) (Finding, error) {
	var f Finding
	f.ExpectMatch("content", m.matches, m.content, quoteOutput([]byte(match.TextOf(m.content))))
	return f, nil
}

func (m matching) Next() string {
	return "change the suite: it compares a value of its own with this matcher"
}

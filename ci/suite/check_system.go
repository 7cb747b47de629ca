package suite

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// account is a user or a group.
type account struct {
	database string // passwd or group
	name     string
	exists   bool
	fields   []accountField
	groups   match.Matcher // of a user
}

// accountField is a field of a line of the database.
type accountField struct {
	name   string
	at     int
	number bool
	want   match.Matcher
}

// readUser parses a check of the section user.
func readUser(e *Entry) Probe {
	return readAccount(e, account{database: "passwd", name: e.Text("username", e.Name), groups: e.Matcher("groups", match.List), fields: []accountField{
		{"uid", 2, true, e.Matcher("uid", match.Number)},
		{"gid", 3, true, e.Matcher("gid", match.Number)},
		{"home", 5, false, e.Matcher("home", match.String)},
		{"shell", 6, false, e.Matcher("shell", match.String)},
	}})
}

// readGroup parses a check of the section group.
func readGroup(e *Entry) Probe {
	return readAccount(e, account{database: "group", name: e.Text("groupname", e.Name), fields: []accountField{
		{"gid", 2, true, e.Matcher("gid", match.Number)},
	}})
}

// readAccount sets a.exists from the entry, and refuses an invalid name.
func readAccount(e *Entry, a account) Probe {
	a.exists = e.Bool("exists", true)
	if a.name == "" || strings.HasPrefix(a.name, "-") || strings.ContainsAny(a.name, ":\n\x00/") {
		e.Fail(e.Key, "%q is not a name of a user or group", a.name)
	}
	return a
}

// accountScript prints a line of passwd or group: $1 is the database, $2 the name. Without getent
// it prints the whole file. For a name that getent does not know (status 2) it prints "-".
const accountScript = `if command -v getent >/dev/null; then getent "$1" "$2" || { test $? = 2 && echo -; }; else cat "/etc/$1"; fi`

// Inspect checks that the account exists, or does not, and its fields and groups.
func (a account) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "sh", "-c", accountScript, "sh", a.database, a.name)
	if err != nil {
		return f, err
	}
	if strings.TrimSpace(out) == "" {
		return f, fmt.Errorf("read the board's %s: there is no answer", a.database)
	}
	found := a.findLine(out)
	f.expectState(a.name, found != nil, a.exists, " exists", " does not exist")
	if found == nil || !a.exists {
		return f, nil
	}
	for _, field := range a.fields {
		value := any(found[field.at])
		if field.number {
			value = match.AnsweredNumber(found[field.at])
		}
		f.ExpectMatch(field.name, field.want, value, field.name+" "+found[field.at])
	}
	if a.groups.Empty() {
		return f, nil
	}
	groups, err := s.Output(ctx, "id", "-Gn", a.name)
	if err != nil {
		return f, err
	}
	f.ExpectMatch("groups", a.groups, strings.Fields(groups), "groups "+strings.TrimSpace(groups))
	return f, nil
}

// findLine returns the fields of the account's line in the database, or nil.
func (a account) findLine(text string) []string {
	least := map[string]int{"passwd": 7, "group": 4}[a.database]
	for _, line := range plaintext.Lines(text) {
		if fields := strings.Split(line, ":"); fields[0] == a.name && len(fields) >= least {
			return fields
		}
	}
	return nil
}

func (a account) Next() string {
	return fmt.Sprintf("on the board: grep %s: /etc/%s; accounts are made when the image is built, by useradd or sysusers.d", a.name, a.database)
}

// process checks whether a program runs, by the name that the kernel shows in /proc/PID/comm.
type process struct {
	name    string
	running bool
	count   match.Matcher
}

// commBytes is how much of a program's name the kernel keeps.
const commBytes = 15

// readProcess parses a check of the section process. A bad name is a mistake in e.Err.
func readProcess(e *Entry) Probe {
	p := process{name: e.Text("comm", e.Name), count: e.Matcher("count", match.Number), running: e.Bool("running", true)}
	if p.name == "" || strings.ContainsAny(p.name, "/\n\x00") {
		e.Fail(e.Key, "%q is not a program's name; it is without its folder", p.name)
	}
	return p
}

// processScript prints the names of all processes with one program: a program for each process took
// 30 s on an emulated board. A process that ends meanwhile is no error.
const processScript = `cat /proc/[0-9]*/comm 2>/dev/null; true`

// Inspect checks that processes with the first commBytes of the name run, or none, and their count.
func (p process) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	out, err := s.Output(ctx, "sh", "-c", processScript)
	if err != nil {
		return f, err
	}
	if out == "" { // not even the one that lists them
		return f, errors.New("read /proc/*/comm: it shows no process")
	}
	n := 0
	for _, comm := range plaintext.Lines(out) {
		if comm == p.name[:min(len(p.name), commBytes)] {
			n++
		}
	}
	f.Expect(p.running == (n > 0), plaintext.Either(p.running, p.name+" runs", p.name+" does not run"),
		plaintext.Either(n > 0, fmt.Sprintf("%d of %s run", n, p.name), p.name+" does not run"))
	f.ExpectMatch("count", p.count, n, fmt.Sprintf("%d of them", n))
	return f, nil
}

func (p process) Next() string {
	return "on the board: ps; journalctl -b -t " + ShellLine([]string{p.name})
}

// installedPackage is a package of the board's package manager.
type installedPackage struct {
	name      string
	installed bool
	versions  match.Matcher
}

// readPackage parses a check of the section package. A bad name is a mistake in e.Err.
func readPackage(e *Entry) Probe {
	p := installedPackage{name: e.Text("name", e.Name), versions: e.Matcher("versions", match.List), installed: e.Bool("installed", true)}
	if p.name == "" || strings.HasPrefix(p.name, "-") || strings.ContainsAny(p.name, " \n\x00*?[") {
		e.Fail(e.Key, "%q is not a package's name", p.name)
	}
	return p
}

// packageScript prints the name of the board's package manager and its answer about package $1. It
// exits with 127 if the board has no package manager. It exits with 3 if dpkg or rpm failed, so
// that it is unknown whether the package is installed.
const packageScript = `if command -v dpkg-query >/dev/null; then
	echo dpkg; said=$(dpkg-query -W -f='${db:Status-Status} ${Version}\n' "$1" 2>/dev/null)
elif command -v rpm >/dev/null; then
	echo rpm; said=$(rpm -q --queryformat 'installed %{VERSION}-%{RELEASE}\n' "$1")
elif command -v opkg >/dev/null; then
	echo opkg; opkg list-installed "$1"; exit 0
else
	exit 127
fi
case "$?:$said" in 0:?* | 1:*) echo "$said" ;; *) exit 3 ;; esac`

// Inspect checks by the package manager that the package is installed, or not, and its versions.
func (p installedPackage) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	r, err := s.Board.Run(ctx, "sh", "-c", packageScript, "sh", p.name)
	if err != nil {
		return f, err
	}
	if r.Status == 3 {
		return f, fmt.Errorf("no answer of the package manager about %s", p.name)
	}
	if r.Status != 0 {
		f.Next = "ask for a file of the package instead, or build the image with package management"
		return f, fmt.Errorf("the board has no dpkg, rpm or opkg: %s", DescribeResult(r))
	}
	if len(r.Stdout) == 0 {
		return f, errors.New("no answer about the board's package manager")
	}
	versions := p.parseVersions(string(r.Stdout))
	have := len(versions) > 0
	f.expectState(p.name, have, p.installed, " is installed", " is not installed")
	if have && p.installed {
		f.ExpectMatch("versions", p.versions, versions, "version "+strings.Join(versions, ", "))
	}
	return f, nil
}

// parseVersions returns the versions in packageScript's lines "installed V", or of opkg "NAME - V".
func (p installedPackage) parseVersions(text string) []string {
	var versions []string
	for _, line := range plaintext.Lines(text) {
		if version, ok := strings.CutPrefix(line, "installed "); ok {
			versions = append(versions, version)
		}
		if version, ok := strings.CutPrefix(line, p.name+" - "); ok {
			versions = append(versions, strings.TrimSpace(version))
		}
	}
	return versions
}

func (p installedPackage) Next() string {
	return "add it to the image's packages (debian.packages in board.yml, IMAGE_INSTALL of a recipe), build and flash again"
}

// clock checks that the board's time is near this machine's.
type clock struct{ within time.Duration }

func readClock(e *Entry) Probe {
	return clock{within: time.Duration(e.Number("within", 5, 1, 86400)) * time.Second}
}

// Inspect checks that the board's time differs from this machine's by at most c.within.
func (c clock) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	sent := time.Now()
	out, err := s.Output(ctx, "date", "-u", "+%s")
	if err != nil {
		return f, err
	}
	received := time.Now()
	seconds, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return f, fmt.Errorf("date answered %q", plaintext.Clean(out, 200))
	}
	off := clockOffset(time.Unix(seconds, 0), sent, received)
	f.Expect(off.Abs() <= c.within, fmt.Sprintf("within %v of this machine's clock", c.within),
		fmt.Sprintf("%s; the board says %s", formatOffset(off), time.Unix(seconds, 0).UTC().Format(time.RFC3339)))
	return f, nil
}

// formatOffset returns an offset in words, like "3s behind".
func formatOffset(off time.Duration) string {
	if off == 0 {
		return "no difference"
	}
	return fmt.Sprintf("%v %s", off.Abs().Round(time.Millisecond), plaintext.Either(off < 0, "behind", "ahead"))
}

// clockOffset returns the smallest offset that a clock can have which shows whole seconds and was
// read at an unknown time between sent and received. It is negative for a clock that is behind.
func clockOffset(shown, sent, received time.Time) time.Duration {
	switch {
	case shown.Add(time.Second).Before(sent):
		return shown.Add(time.Second).Sub(sent)
	case shown.After(received):
		return shown.Sub(received)
	}
	return 0
}

func (c clock) Next() string {
	return "on the board: timedatectl; look whether it has a clock with a battery, and reaches a time server"
}

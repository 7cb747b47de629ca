package suite

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// dns is a name that the board's own resolver looks up.
type dns struct {
	name       string
	resolvable bool
	addrs      match.Matcher
}

func readDNS(e *Entry) Probe {
	d := dns{name: e.Text("resolve", e.Name), resolvable: true, addrs: e.Matcher("addrs", match.List)}
	r := e.Flag("resolvable")
	if old := e.Flag("resolveable"); r == nil { // goss's old name of it
		r = old
	}
	if r != nil {
		d.resolvable = *r
	}
	if d.name == "" || strings.HasPrefix(d.name, "-") || strings.ContainsAny(d.name, ": /\n\x00") {
		e.Fail(e.Key, "%q is not a name to resolve; goss's types of records (A:name) are not known, as the board's own resolver is asked", d.name)
	}
	return d
}

// dnsScript looks a name up by getent, or by nslookup on boards with BusyBox. An unknown
// name is no error.
const dnsScript = `if command -v getent >/dev/null; then getent ahosts "$1"
elif command -v nslookup >/dev/null; then nslookup "$1"
else exit 127; fi || test $? != 127`

func (d dns) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	r, err := s.Board.Run(ctx, "sh", "-c", dnsScript, "sh", d.name)
	if err != nil {
		return f, err
	}
	if r.Status != 0 {
		return f, fmt.Errorf("the board has no getent and no nslookup: %s", DescribeResult(r))
	}
	addrs := parseHosts(string(r.Stdout))
	found := strings.Join(addrs, ", ")
	f.Expect(d.resolvable == (len(addrs) > 0), d.name+plaintext.Either(d.resolvable, " is resolved", " is not resolved"),
		d.name+plaintext.Either(found != "", " is "+found, " is not resolved"))
	if d.resolvable && len(addrs) > 0 {
		f.ExpectMatch("addrs", d.addrs, addrs, found)
	}
	return f, nil
}

// parseHosts reads the addresses that getent ahosts or nslookup print. nslookup prints the
// server's address first.
func parseHosts(text string) []string {
	if _, answer, ok := strings.Cut(text, "\nName:"); ok {
		text = answer
	}
	var addrs []string
	for _, line := range plaintext.Lines(text) {
		line, named := strings.CutPrefix(line, "Address")
		if named {
			_, line, _ = strings.Cut(line, ":")
		}
		fields := strings.Fields(line)
		if len(fields) > 0 && isAddress(fields[0]) && !slices.Contains(addrs, fields[0]) {
			addrs = append(addrs, fields[0])
		}
	}
	return addrs
}

func (d dns) Next() string {
	return "on the board: cat /etc/resolv.conf; is the name server reachable, and the name right?"
}

// networkInterface is a network interface of the board.
type networkInterface struct {
	name       string
	exists     bool
	addrs      match.Matcher
	mtu, state match.Matcher
}

func readInterface(e *Entry) Probe {
	i := networkInterface{
		name: e.Text("name", e.Name), exists: true, addrs: e.Matcher("addrs", match.List),
		mtu: e.Matcher("mtu", match.Number), state: e.Matcher("operstate", match.String),
	}
	if exists := e.Flag("exists"); exists != nil {
		i.exists = *exists
	}
	if i.name == "" || i.name == "." || i.name == ".." || strings.HasPrefix(i.name, "-") || strings.ContainsAny(i.name, "/ \n\x00") {
		e.Fail(e.Key, "%q is not an interface's name", i.name)
	}
	return i
}

func (i networkInterface) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	dir := "/sys/class/net/" + i.name
	r, err := s.Board.Run(ctx, "grep", "-Hs", "", dir+"/mtu", dir+"/operstate")
	if err != nil {
		return f, err
	}
	files := parseGrepOutput(string(r.Stdout))
	have := files[dir+"/mtu"] != ""
	if !have && r.Status == 0 {
		return f, fmt.Errorf("read %s: there is no answer", dir)
	}
	f.Expect(have == i.exists, describeExistence(i.name, i.exists), describeExistence(i.name, have))
	if !have || !i.exists {
		return f, nil
	}
	f.ExpectMatch("mtu", i.mtu, match.AnsweredNumber(files[dir+"/mtu"]), "mtu "+files[dir+"/mtu"])
	f.ExpectMatch("operstate", i.state, files[dir+"/operstate"], "it is "+files[dir+"/operstate"])
	if i.addrs.Empty() {
		return f, nil
	}
	out, err := s.Output(ctx, "ip", "-o", "addr", "show", "dev", i.name)
	if err != nil {
		return f, err
	}
	addrs := parseAddrs(out)
	f.ExpectMatch("addrs", i.addrs, addrs, "addresses "+cmp.Or(strings.Join(addrs, ", "), "(none)"))
	return f, nil
}

// parseAddrs reads the addresses that ip -o addr prints, with their prefix lengths.
func parseAddrs(text string) []string {
	var addrs []string
	for _, line := range plaintext.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) > 3 && (fields[2] == "inet" || fields[2] == "inet6") {
			addrs = append(addrs, fields[3])
		}
	}
	return addrs
}

func (i networkInterface) Next() string {
	return "on the board: ip addr; ip link; dmesg | grep " + ShellLine([]string{i.name})
}

package suite

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"slipway/ci/suite/match"
	"slipway/layers/plaintext"
)

// dns is a name that the board's own resolver looks up.
type dns struct {
	name       string
	resolvable bool
	addrs      match.Matcher
}

// readDNS parses a check of the section dns, and refuses goss's types of records.
func readDNS(e *Entry) Probe {
	d := dns{name: e.Text("resolve", e.Name), addrs: e.Matcher("addrs", match.List)}
	d.resolvable = e.Bool("resolvable", e.Bool("resolveable", true)) // the second is goss's old name of it
	if d.name == "" || strings.HasPrefix(d.name, "-") || strings.ContainsAny(d.name, ": /\n\x00") {
		e.Fail(e.Key, "%q is not a name to resolve; goss's types of records (A:name) are not known, as the board's own resolver is asked", d.name)
	}
	return d
}

// dnsScript looks a name up by getent, or BusyBox's nslookup. An unknown name is no error.
const dnsScript = `if command -v getent >/dev/null; then getent ahosts "$1"
elif command -v nslookup >/dev/null; then nslookup "$1"
else exit 127; fi || test $? != 127`

// Inspect checks that the board resolves the name, or does not, and compares its addresses.
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

// parseHosts returns the distinct addresses that getent ahosts or nslookup printed. It skips the
// name server's own address, which nslookup prints first.
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

// readInterface parses a check of the section interface. A bad name is a mistake in e.Err.
func readInterface(e *Entry) Probe {
	i := networkInterface{
		name: e.Text("name", e.Name), addrs: e.Matcher("addrs", match.List),
		mtu: e.Matcher("mtu", match.Number), state: e.Matcher("operstate", match.String), exists: e.Bool("exists", true),
	}
	if i.name == "" || i.name == "." || i.name == ".." || strings.HasPrefix(i.name, "-") || strings.ContainsAny(i.name, "/ \n\x00") {
		e.Fail(e.Key, "%q is not an interface's name", i.name)
	}
	return i
}

// Inspect checks that the interface exists, or does not, and its MTU, state and addresses.
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
	f.expectState(i.name, have, i.exists, " exists", " does not exist")
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

// parseAddrs returns the addresses in the output of ip -o addr, with their prefix lengths.
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

// port is a port that a program on the board listens on, or must not listen on.
type port struct {
	protocol  string // tcp, tcp6, udp, udp6
	number    uint16
	listening bool
	ip        match.Matcher
}

// readPort parses a check of the section port, whose name is like tcp:22, or 22 for tcp.
func readPort(e *Entry) Probe {
	p := port{protocol: "tcp", ip: e.Matcher("ip", match.List)}
	name := e.Text("port", e.Name)
	text := name
	if protocol, rest, ok := strings.Cut(name, ":"); ok {
		p.protocol, text = protocol, rest
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || !slices.Contains([]string{"tcp", "tcp6", "udp", "udp6"}, p.protocol) {
		e.Fail(e.Key, "%q is not a port like tcp:22 (tcp, tcp6, udp or udp6)", name)
	}
	p.number = uint16(number)
	p.listening = e.Bool("listening", true)
	return p
}

// socket is a listening socket of /proc/net.
type socket struct {
	protocol string
	ip       netip.Addr
	port     uint16
}

// tcpListen is the state of a listening TCP socket. UDP has none: all sockets count, as in goss.
const tcpListen = "0A"

// parseSockets parses grep -H of /proc/net: listening TCP sockets, and all of UDP.
func parseSockets(text string) []socket {
	var found []socket
	for _, line := range plaintext.Lines(text) {
		file, rest, ok := strings.Cut(line, ":")
		protocol := file[strings.LastIndexByte(file, '/')+1:]
		fields := strings.Fields(rest)
		if !ok || len(fields) < 4 || strings.HasPrefix(protocol, "tcp") && fields[3] != tcpListen {
			continue
		}
		address, number, _ := strings.Cut(fields[1], ":")
		ip, okIP := kernelAddress(address)
		p, err := strconv.ParseUint(number, 16, 16)
		if okIP && err == nil {
			found = append(found, socket{protocol, ip, uint16(p)})
		}
	}
	return found
}

// kernelAddress parses an IP address as a little-endian kernel prints it in /proc/net: in
// hexadecimal, each group of four bytes reversed.
func kernelAddress(text string) (netip.Addr, bool) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.Addr{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	return netip.AddrFromSlice(raw)
}

// Inspect reads the board's sockets and compares them with the check.
func (p port) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	// A kernel without IPv6 lacks some of the files. grep's status is then not 0.
	r, err := s.Board.Run(ctx, "grep", "-Hs", ":", "/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6")
	if err != nil {
		return f, err
	}
	if len(r.Stdout) == 0 {
		return f, fmt.Errorf("read /proc/net/tcp: %s", DescribeResult(r))
	}
	if isCut, _ := truncatedOutputs(r); isCut {
		return f, fmt.Errorf("read /proc/net: %w: there is %s", errTruncated, moreThan(len(r.Stdout)))
	}
	p.checkSockets(&f, parseSockets(string(r.Stdout)))
	return f, nil
}

// checkSockets compares the board's sockets with the port that the check expects or forbids.
func (p port) checkSockets(f *Finding, all []socket) {
	var ips, elsewhere []string
	for _, s := range all {
		switch {
		case s.port != p.number:
		case s.protocol == p.protocol:
			ips = append(ips, s.ip.String())
		default:
			elsewhere = append(elsewhere, s.protocol+":"+s.ip.String())
		}
	}
	name := fmt.Sprintf("%s:%d", p.protocol, p.number)
	saw := "nothing listens on " + name
	if len(ips) > 0 {
		saw = name + " is listened on at " + strings.Join(ips, ", ")
	} else if len(elsewhere) > 0 {
		saw += "; that port is listened on at " + strings.Join(elsewhere, ", ")
	}
	f.Expect(p.listening == (len(ips) > 0), plaintext.Either(p.listening, "something listens on "+name, "nothing listens on "+name), saw)
	if p.listening && len(ips) > 0 {
		f.ExpectMatch("ip", p.ip, ips, "at "+strings.Join(ips, ", "))
	}
}

func (p port) Next() string {
	return fmt.Sprintf("on the board: ss -lnp | grep :%d; then the journal of the service that should listen there", p.number)
}

// The checks addr and http connect through the board's sshd (SSH forwarding), which also looks
// names up. So the board needs no program for them.

// isAddress reports whether a text is an IP address.
func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

// addr is an address that the board must reach, or must not reach.
type addr struct {
	address   string // host:port
	reachable bool
	timeout   time.Duration
}

// readAddr parses a check of the section addr. The address is HOST:PORT, with or without tcp://.
func readAddr(e *Entry) Probe {
	a := addr{timeout: e.readTimeout()}
	name := e.Text("address", e.Name)
	protocol, address, ok := strings.Cut(name, "://")
	if !ok {
		protocol, address = "tcp", name
	}
	host, port, err := net.SplitHostPort(address)
	if protocol != "tcp" || err != nil || host == "" || port == "" {
		e.Fail(e.Key, "%q is not an address like tcp://192.0.2.1:443 (SSH forwards no UDP)", name)
	}
	a.address = address
	a.reachable = e.Bool("reachable", true)
	return a
}

// Inspect checks that the board can connect to the address, or cannot if the suite wants that. A
// forbidden forwarding is an error.
func (a addr) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	conn, err := s.dial(ctx, "tcp", a.address)
	if err == nil {
		conn.Close()
	}
	if err := s.forwardingError(ctx, err); err != nil {
		return f, err
	}
	saw := a.address + " is reachable"
	if err != nil {
		saw = a.address + " is not reachable: " + err.Error()
	}
	f.Expect(a.reachable == (err == nil), a.address+plaintext.Either(a.reachable, " is reachable", " is not reachable"), saw)
	return f, nil
}

// forwardingError returns nil if err is nil or says only that the address did not answer. Any other
// error it returns: the board's sshd forbids forwarding, the board is lost, TLS or HTTP failed.
func (s *Session) forwardingError(ctx context.Context, err error) error {
	var refused *ssh.OpenChannelError
	var broken *net.OpError
	switch {
	case err == nil, errors.As(err, &refused) && refused.Reason == ssh.ConnectionFailed, errors.As(err, &broken) && broken.Op == "dial":
		return nil
	case refused != nil && refused.Reason == ssh.Prohibited:
		return fmt.Errorf("the board's sshd lets nobody connect through it (AllowTcpForwarding, or PermitOpen): %w", err)
	case errors.Is(context.Cause(ctx), errSlow) && s.isAnswering(context.WithoutCancel(ctx)):
		return nil
	}
	return err
}

func (a addr) Next() string {
	return "on the board: ip route; does a firewall block the way, and does the other side listen?"
}

// maxRedirects is how many redirects Slipway follows, as many as goss.
const maxRedirects = 10

// httpRequest is an HTTP request that Slipway sends through the board, and the expected response.
type httpRequest struct {
	url, method, body   string
	username, password  string
	headers             [][2]string
	insecure, noFollow  bool
	status              match.Matcher
	wantHeaders, answer match.Matcher
}

// readHTTP parses a check of the section http, which needs status, headers or body.
func readHTTP(e *Entry) Probe {
	h := httpRequest{
		url: e.Text("url", e.Name), method: e.Text("method", http.MethodGet), body: e.Text("request-body", ""),
		username: e.Text("username", ""), password: e.Text("password", ""),
		insecure: e.Bool("allow-insecure", false), noFollow: e.Bool("no-follow-redirects", false),
		status: e.Matcher("status", match.Number), wantHeaders: e.Matcher("headers", match.Text), answer: e.Matcher("body", match.Text),
	}
	u, err := url.Parse(h.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		e.Fail(e.Key, "%q is not an address like http://127.0.0.1:8080/health", h.url)
	}
	for i, line := range e.List("request-headers") {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			e.Fail(e.Fields["request-headers"].Content[i], "request-headers must be like \"Name: value\", not %q", line)
		}
		h.headers = append(h.headers, [2]string{name, strings.TrimSpace(value)})
	}
	if h.status.Empty() && h.wantHeaders.Empty() && h.answer.Empty() {
		e.Fail(e.Key, "an http needs status, headers or body")
	}
	if _, err := h.newRequest(context.Background()); err != nil {
		e.Fail(e.Key, "%v", err)
	}
	return h
}

// newRequest returns the request with the body, headers and login of the check.
func (h httpRequest) newRequest(ctx context.Context) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, h.method, h.url, strings.NewReader(h.body))
	if err != nil {
		return nil, err
	}
	for _, header := range h.headers {
		r.Header.Add(header[0], header[1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	if h.username != "" {
		r.SetBasicAuth(h.username, h.password)
	}
	return r, nil
}

// Inspect sends the request from the board and checks the response. If the address does not answer,
// that is a failure. If TLS or HTTP fails, that is an error.
func (h httpRequest) Inspect(ctx context.Context, s *Session) (Finding, error) {
	var f Finding
	request, err := h.newRequest(ctx)
	if err != nil {
		return f, err
	}
	client := h.newClient(s)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err := s.forwardingError(ctx, err); err != nil {
		return f, err
	}
	if err != nil {
		f.Expect(false, "an answer", err.Error())
		return f, nil
	}
	defer response.Body.Close()
	return f, h.checkResponse(&f, response)
}

// newClient returns an HTTP client that connects from the board, with h.insecure and h.noFollow.
func (h httpRequest) newClient(s *Session) *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: s.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: h.insecure}, DisableKeepAlives: true},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			switch {
			case h.noFollow:
				return http.ErrUseLastResponse
			case len(via) >= maxRedirects:
				return fmt.Errorf("redirected more than %d times", maxRedirects)
			}
			return nil
		},
	}
}

// checkResponse compares status, headers and body of a response. A body over maxFileBytes fails.
func (h httpRequest) checkResponse(f *Finding, r *http.Response) error {
	f.ExpectMatch("status", h.status, r.StatusCode, "status "+r.Status)
	headers := headerLines(r.Header)
	f.ExpectMatch("headers", h.wantHeaders, headers, "headers: "+quoteOutput([]byte(headers)))
	if h.answer.Empty() {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxFileBytes+1))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", h.url, err)
	}
	f.expectWhole("body", h.answer, len(body) > maxFileBytes)
	f.ExpectMatch("body", h.answer, string(body), "body: "+quoteOutput(body))
	return nil
}

// headerLines returns the headers as sorted lines, so that equal headers give equal reports.
func headerLines(h http.Header) string {
	var all []string
	for name, values := range h {
		for _, v := range values {
			all = append(all, name+": "+v)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func (h httpRequest) Next() string {
	return "on the board: wget -O- " + ShellLine([]string{h.url}) + "; then the journal of the service that should answer"
}

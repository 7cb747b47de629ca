package suite

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os/user"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/ci/suite/suitetest"
)

// These are answers of real boards.
const (
	netTCP = "/proc/net/tcp:  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"/proc/net/tcp:   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 19 1 0 100 0 0 10 0\n" +
		"/proc/net/tcp:   1: 0F02000A:0016 0202000A:C35A 01 00000000:00000000 02:000 00000000     0        0 20 4 0 20 4 30 10 -1\n" +
		"/proc/net/tcp6:   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 21 1 0 100 0 0 10 0\n" +
		"/proc/net/tcp6:   1: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:0 0 0 0 21 1 0 100 0 0 10 0\n" +
		"/proc/net/udp:  12: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 22 2 0 0\n"
	passwdLines = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nshort:x:1\n"
	kernelLog   = "[    0.000000] Linux version 6.12\n[    1.5] nvgpu: probed\n[    2.0] usb: BUG: bad cable\n[    3.1] Oops: 0002\n[    3.2] Oops: 0003\n"
	ipAddr      = "2: eth0    inet 10.0.2.15/24 brd 10.0.2.255 scope global eth0\\       valid_lft forever\n2: eth0    inet6 fe80::1/64 scope link \\  valid_lft forever\n"
	busyboxDNS  = "Server:\t\t10.0.2.3\nAddress:\t10.0.2.3:53\n\nNon-authoritative answer:\nName:\tupdates.example\nAddress: 192.0.2.7\nAddress 2: 2001:db8::7 updates.example\n"
)

func TestGossSectionsOnRecordedBoards(t *testing.T) {
	sockets := suitetest.Recorded{"grep -Hs :": netTCP}
	accounts := suitetest.Recorded{"sh -c if command -v getent": passwdLines, "id -Gn root": "root docker\n"}
	link := suitetest.Recorded{"grep -Hs  /sys/class/net/eth0/mtu": "/sys/class/net/eth0/mtu:1500\n/sys/class/net/eth0/operstate:up\n", "ip -o addr show dev eth0": ipAddr}
	log := suitetest.Recorded{"sh -c journalctl": kernelLog}
	for _, tt := range []struct {
		name  string
		board suitetest.Recorded
		suite string
		want  string
	}{
		{"a port", sockets, "port: {tcp:8080: {listening: true, ip: [127.0.0.1]}}", "passed: tcp:8080 is listened on at 127.0.0.1; at 127.0.0.1"},
		{"a port by its number", sockets, "port: {x: {port: '8080'}}", "passed: tcp:8080 is listened on at 127.0.0.1"},
		{"a port at another address", sockets, "port: {tcp6:8080: {ip: [0.0.0.0]}}", "failed: at ::1 / ip: a line that is \"0.0.0.0\""},
		{"a port of the other kind", sockets, "port: {tcp:22: {listening: true}}", "failed: nothing listens on tcp:22; that port is listened on at tcp6::: / something listens on tcp:22"},
		{"a port that must be closed", sockets, "port: {tcp:8080: {listening: false}}", "failed: tcp:8080 is listened on at 127.0.0.1 / nothing listens on tcp:8080"},
		{"a port of UDP", sockets, "port: {udp:68: {}}", "passed: udp:68 is listened on at 0.0.0.0"},
		{"no ports at all", suitetest.Recorded{"grep": "", "true": ""}, "port: {tcp:22: {}}", "failed: read /proc/net/tcp: exit status 0, no output / an answer"},
		{"a process", suitetest.Recorded{"sh -c cat": "systemd\nsshd\nsshd\n"}, "process: {sshd: {running: true, count: {ge: 2}}}", "passed: 2 of sshd run; 2 of them"},
		{"a process with a long name", suitetest.Recorded{"sh -c cat": "systemd-journal\n"}, "process: {systemd-journald: {}}", "passed: 1 of systemd-journald run"},
		{"a process that is not there", suitetest.Recorded{"sh -c cat": "systemd\n"}, "process: {x: {comm: weston}}", "failed: weston does not run / weston runs"},
		{"no processes at all", suitetest.Recorded{"sh -c cat": "", "true": ""}, "process: {x: {running: false}}", "failed: read /proc/*/comm: it shows no process / an answer"},
		{"a user", accounts, "user: {root: {exists: true, uid: 0, gid: {lt: 1}, home: /root, shell: {have-prefix: /bin}, groups: [docker]}}", "passed: root exists; uid 0; gid 0; home /root; shell /bin/sh; groups root docker"},
		{"a user that is not there", accounts, "user: {admin: {}}", "failed: admin does not exist / admin exists"},
		{"a user that must not be there", accounts, "user: {admin: {exists: false}}", "passed: admin does not exist"},
		{"a damaged line", accounts, "user: {short: {}}", "failed: short does not exist / short exists"},
		{"a group", suitetest.Recorded{"sh -c if command -v getent": "docker:x:999:\n"}, "group: {docker: {exists: true, gid: 998}}", "failed: gid 999 / gid: 998"},
		{"a package of dpkg", suitetest.Recorded{"sh -c if": "dpkg\ninstalled 1.8-2\n"}, "package: {rauc: {installed: true, versions: ['1.8-2']}}", "passed: rauc is installed; version 1.8-2"},
		{"a package that was removed", suitetest.Recorded{"sh -c if": "dpkg\nconfig-files 1.8-2\n"}, "package: {rauc: {installed: true}}", "failed: rauc is not installed / rauc is installed"},
		{"a package of opkg", suitetest.Recorded{"sh -c if": "opkg\nrauc - 1.15.1-r0\n"}, "package: {rauc: {installed: true, versions: {have-prefix: '1.15'}}}", "passed: rauc is installed; version 1.15.1-r0"},
		{"a package of rpm that is not there", suitetest.Recorded{"sh -c if": "rpm\npackage rauc is not installed\n"}, "package: {rauc: {installed: false}}", "passed: rauc is not installed"},
		{"no package manager", suitetest.Recorded{"sh -c if": "exit 1\n", "true": ""}, "package: {rauc: {installed: true}}", "failed: the board has no dpkg, rpm or opkg: exit status 1, no output / an answer"},
		{"a name by BusyBox", suitetest.Recorded{"sh -c if": busyboxDNS}, "dns: {updates.example: {addrs: {consist-of: ['2001:db8::7', 192.0.2.7]}}}", "passed: updates.example is 192.0.2.7, 2001:db8::7; 192.0.2.7, 2001:db8::7"},
		{"a name that nobody knows", suitetest.Recorded{"sh -c if": "Server: 10.0.2.3\nAddress: 10.0.2.3:53\n\n** server can't find x: NXDOMAIN\n"}, "dns: {x: {resolvable: true}}", "failed: x is not resolved / x is resolved"},
		{"an interface", link, "interface: {eth0: {exists: true, mtu: 1500, operstate: up, addrs: [10.0.2.15/24]}}", "passed: eth0 exists; mtu 1500; it is up; addresses 10.0.2.15/24, fe80::1/64"},
		{"an interface without its address", link, "interface: {eth0: {addrs: [10.0.2.16/24]}}", "failed: addresses 10.0.2.15/24, fe80::1/64 / addrs: a line that is \"10.0.2.16/24\""},
		{"an interface that is not there", suitetest.Recorded{"grep": "exit 1\n"}, "interface: {pf0hpf: {}}", "failed: pf0hpf does not exist / pf0hpf exists"},
		{"a parameter", suitetest.Recorded{"cat /proc/sys/net/ipv4/ip_forward": "1\n"}, "kernel-param: {net.ipv4.ip_forward: {value: '1'}}", "passed: net.ipv4.ip_forward is 1"},
		{"a parameter of a VLAN", suitetest.Recorded{"cat /proc/sys/net/ipv4/conf/eth0.1/forwarding": "0\n"}, "kernel-param: {net/ipv4/conf/eth0.1/forwarding: {value: '1'}}", "failed: net/ipv4/conf/eth0.1/forwarding is 0 / value: \"1\""},
		{"a module", suitetest.Recorded{"sh -c test -d": "36.4.0\n"}, "module: {nvidia-drm: {loaded: true, version: {semver-constraint: '>=36.0.0'}}}", "passed: nvidia_drm is loaded or built in; version 36.4.0"},
		{"a module that is not there", suitetest.Recorded{"sh -c test -d": "exit 1\n"}, "module: {nvgpu: {}}", "failed: nvgpu is not loaded / nvgpu is loaded or built in"},
		{"a module that must not be there", suitetest.Recorded{"sh -c test -d": "exit 1\n"}, "module: {nouveau: {loaded: false}}", "passed: nouveau is not loaded"},
		{"a good kernel", log, "dmesg: {x: {has: ['nvgpu: probed'], never: [panic]}}", "passed: [    1.5] nvgpu: probed; 5 messages of the kernel"},
		{"a bad kernel", log, "dmesg: {x: {never: ['BUG:', Oops], ignore: [bad cable]}}", "failed: [    3.1] Oops: 0002\n[    3.2] Oops: 0003 / no message that matches /BUG:/\nno message that matches /Oops/"},
		{"a silent driver", log, "dmesg: {x: {has: [tegra-pcie]}}", "failed: no message matches /tegra-pcie/ / a message that matches /tegra-pcie/"},
		{"a kernel that says nothing", suitetest.Recorded{"sh -c journalctl": "exit 1\n", "true": ""}, "dmesg: {x: {never: [a]}}", "failed: read the kernel's messages: exit status 1, no output / an answer"},
		{"a value", suitetest.Recorded{}, "matching: {x: {content: [1, 2, 3], matches: {and: [{have-len: 3}, {contain-element: {gt: 2}}]}}}", "passed: \n  1\n  2\n  3"},
		{"another value", suitetest.Recorded{}, "matching: {x: {content: foo, matches: {not: {have-prefix: f}}}}", "failed: foo / content: not begins with \"f\""},
		{"a full file system", suitetest.Recorded{"cat /proc/self/mountinfo": mountLines, "stat -f": "100 9\n"}, "mount: {/data: {usage: {lt: 90}}}", "failed: 91 % in use / usage: less than 90"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, suitetest.FormatResult(runOneCheck(t, tt.board, tt.suite))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The checks understand the output of this machine's real programs.
func TestGossSectionsHere(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, suite := range []string{
		"user: {$U: {exists: true, uid: $I, home: $H}}",
		"user: {nobody-of-this-name: {exists: false}}",
		"group: {root: {gid: 0}}",
		"package: {coreutils: {installed: true, versions: {match-regexp: '^[0-9]'}}}",
		"package: {no-such-package-here: {installed: false}}",
		"dns: {localhost: {resolvable: true, addrs: {or: [{contain-element: 127.0.0.1}, {contain-element: '::1'}]}}}",
		"interface: {lo: {exists: true, mtu: {gt: 1000}}}",
		"interface: {none9: {exists: false}}",
		"kernel-param: {kernel.ostype: {value: Linux}}",
		"module: {no-such-module: {loaded: false}}",
		"process: {no-such-program: {running: false}}",
		"mount: {/: {usage: {ge: 0}}}",
	} {
		suite = strings.NewReplacer("$U", me.Username, "$I", me.Uid, "$H", me.HomeDir).Replace(suite)
		if r := runOneCheck(t, localBoard{}, suite); r.Status != report.Passed {
			t.Errorf("%s: %s", suite, suitetest.FormatResult(r))
		}
	}
}

// A real sshd connects to ports, addresses and web servers.
func TestReachThroughTheBoard(t *testing.T) {
	conn := connect(t)
	server := httptest.NewServer(http.HandlerFunc(serveAnswer))
	defer server.Close()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(serveAnswer))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // one of the requests breaks off
	secure.StartTLS()
	defer secure.Close()
	closed := closedPort(t)
	fill := strings.NewReplacer("$H", server.URL, "$S", secure.URL, "$A", server.Listener.Addr().String(),
		"$P", fmt.Sprint(server.Listener.Addr().(*net.TCPAddr).Port), "$C", closed)
	for _, tt := range []struct{ suite, want string }{
		{"port: {tcp:$P: {ip: [127.0.0.1]}}", "passed: tcp:$P is listened on at 127.0.0.1; at 127.0.0.1"},
		{"addr: {tcp://$A: {reachable: true, timeout: 20000}}", "passed: $A is reachable"},
		{"addr: {tcp://$A: {reachable: false}}", "failed: $A is reachable / $A is not reachable"},
		{"addr: {tcp://$C: {reachable: false}}", ""},
		{"http: {$H/fine: {status: 200, body: [well, '!error'], headers: ['X-Board: virt']}}", "passed: status 200 OK; headers: \n  Content-Length: 9\n  Content-Type: text/plain; charset=utf-8\n  X-Board: virt; body: all well"},
		{"http: {$H/moved: {status: 200, body: [well]}}", "passed: status 200 OK; body: all well"},
		{"http: {$H/moved: {status: 302, no-follow-redirects: true}}", "passed: status 302 Found"},
		{"http: {$H/round: {status: 200}}", "failed: Get \"/round\": redirected more than 10 times / an answer"},
		{"http: {x: {url: $H/headers, request-headers: ['X-A: b', 'X-A: c'], body: ['b, c']}}", "passed: body: b, c"},
		{"http: {x: {url: $H/echo, method: POST, request-body: hello, request-headers: ['X-A: b'], username: u, password: p, body: ['POST hello b u p']}}", "passed: body: POST hello b u p"},
		{"http: {$H/none: {status: 200}}", "failed: status 404 Not Found / status: 200"},
		{"http: {$S/fine: {status: 200, allow-insecure: true}}", "passed: status 200 OK"},
		{"http: {$H/long: {body: [x]}}", "failed: body: \n"},
	} {
		s, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": fill.Replace(tt.suite)}))
		if err != nil {
			t.Fatal(err)
		}
		r := (&Session{Board: conn, dial: conn.DialContext}).RunCheck(t.Context(), s.Checks[0])[0]
		switch {
		case tt.want == "" && r.Status == report.Passed:
		case strings.HasSuffix(tt.want, "\n"):
			if r.Status != report.Failed || !strings.HasPrefix(r.Want, "body: all of it") {
				t.Errorf("%s: want %q", tt.suite, r.Want)
			}
		case suitetest.FormatResult(r) != fill.Replace(tt.want):
			t.Errorf("%s\n got %q\nwant %q", tt.suite, suitetest.FormatResult(r), fill.Replace(tt.want))
		}
	}
	s, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": fill.Replace("http: {$S/fine: {status: 200}}")}))
	if err != nil {
		t.Fatal(err)
	}
	if r := (&Session{Board: conn, dial: conn.DialContext}).RunCheck(t.Context(), s.Checks[0])[0]; r.Status != report.Failed || !strings.Contains(r.Saw, "certificate") {
		t.Errorf("a certificate of nobody: %+v", r)
	}
}

// serveAnswer is the handler of a small web server.
func serveAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil
	w.Header().Set("X-Board", "virt")
	switch r.URL.Path {
	case "/fine":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "all well")
	case "/moved":
		http.Redirect(w, r, "/fine", http.StatusFound)
	case "/round":
		http.Redirect(w, r, "/round", http.StatusFound)
	case "/headers":
		fmt.Fprintln(w, strings.Join(r.Header["X-A"], ", "))
	case "/echo":
		user, password, _ := r.BasicAuth()
		body := make([]byte, 5)
		r.Body.Read(body)
		fmt.Fprintln(w, r.Method, string(body), r.Header.Get("X-A"), user, password)
	case "/long":
		w.Write(slices.Repeat([]byte("y\n"), maxFileBytes))
	default:
		http.NotFound(w, r)
	}
}

// closedPort returns an address of this machine where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// An address that does not answer is not reachable. If the board is silent too, it is lost.
func TestUnreachableInTime(t *testing.T) {
	hang := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	suite, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": "addr: {tcp://192.0.2.1:9: {reachable: false, timeout: 50}}"}))
	if err != nil {
		t.Fatal(err)
	}
	r := (&Session{Board: suitetest.Recorded{"true": ""}, dial: hang}).RunCheck(t.Context(), suite.Checks[0])[0]
	if r.Status != report.Passed {
		t.Errorf("of a board that answers: %s", suitetest.FormatResult(r))
	}
	r = (&Session{Board: suitetest.Recorded{}, dial: hang}).RunCheck(t.Context(), suite.Checks[0])[0]
	if r.Status != report.Failed || !strings.Contains(r.Saw, errLost.Error()) {
		t.Errorf("of a board that is lost: %s", suitetest.FormatResult(r))
	}
}

// FuzzGossAnswers checks that no answer of a board causes a panic.
func FuzzGossAnswers(f *testing.F) {
	for _, text := range []string{netTCP, passwdLines, kernelLog, ipAddr, busyboxDNS, "installed 1\na - 2\n", `{"a": [1]}`, ">=1.2.x || <3", "a 91%\nb"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parseSockets(text)
		parseHosts(text)
		parseAddrs(text)
		parseGrepOutput(text)
		account{database: "passwd", name: "root"}.findLine(text)
		installedPackage{name: "a"}.parseVersions(text)
		if used, err := parseUsage(text); err == nil && (used < 0 || used > 100) {
			t.Fatalf("a usage of %d %%", used)
		}
		_, _ = match.JSONAt(text, "a.0")
		_, _ = match.JSONAt(`{"a": [1, {"b": "c"}]}`, text)
	})
}

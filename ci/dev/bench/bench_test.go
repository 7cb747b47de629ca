package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
}

// The folder that an error names must still exist. A fresh clone has no build folder.
func TestKeepOnFailure(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name     string
		err      error
		stop     bool
		wantLeft bool
	}{{"success", nil, false, false}, {"failure", failed, false, true}, {"stopped", failed, true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var dir string
			err := keepOnFailure(ctx, func(d string) error {
				dir = d
				if tt.stop {
					cancel()
				}
				return errors.Join(tt.err, os.WriteFile(filepath.Join(d, "report"), nil, 0o644))
			})
			if !errors.Is(err, tt.err) || filepath.Base(filepath.Dir(dir)) != "bench" {
				t.Errorf("keepOnFailure in %s = %v; want %v, in build/bench", dir, err, tt.err)
			}
			if _, err := os.Stat(filepath.Join(dir, "report")); (err == nil) != tt.wantLeft {
				t.Errorf("the folder's report: %v; want it left: %v", err, tt.wantLeft)
			}
		})
	}
}

// Wrong options are an error before anything is installed or made.
func TestWrongOptions(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Chdir(t.TempDir())
	for _, tt := range []struct {
		area    string
		options Options
		want    string
	}{
		{"deploy", Options{Only: "nothing"}, "--only=nothing matches none of: plain ours; plain "},
		{"deploy", Options{Only: "["}, "--only: error parsing regexp"},
		{"flash", Options{Only: "^ours$"}, "matches none of: ours raw; "},
		{"layers", Options{Only: "far"}, "matches none of: slipway, cold; "},
		{"hook", Options{Only: "memory"}, "matches none of: tmpfs: plain runc; "},
		{"store", Options{Only: "ours"}, "--only is not for this area"},
		{"hook", Options{MiB: 3}, "--mib=3: the area has no such option"},
		{"flash", Options{Rounds: -1}, "--rounds=-1: "},
		{"store", Options{Before: ".."}, "--before: the area has no such option"},
		{"fleet", Options{}, `unknown area "fleet": say which (deploy, flash, `},
	} {
		var out strings.Builder
		err := Run(t.Context(), &out, tt.area, tt.options)
		if err == nil || !strings.Contains(err.Error(), tt.want) || out.Len() > 0 {
			t.Errorf("bench %s with %+v = %v, %q; want %s", tt.area, tt.options, err, out.String(), tt.want)
		}
	}
	if made, err := os.ReadDir("."); err != nil || len(made) > 0 {
		t.Errorf("refused benches made %v (%v)", made, err)
	}
}

// What bench hook and bench layers need is installed, and not only named.
func TestPackagesAreEnsured(t *testing.T) {
	needRoot(t)
	t.Chdir("../../..")
	t.Setenv("PATH", t.TempDir()) // no dpkg, so that nothing is installed
	for area, want := range map[string]string{"hook": "runc mount binutils", "layers": "python3-distro python3-git", "deploy": "hyperfine"} {
		if err := Run(t.Context(), io.Discard, area, Options{}); err == nil || !strings.Contains(err.Error(), "these Debian packages hold: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("bench %s = %v; want a look for the packages %s", area, err, want)
		}
	}
}

// newSession returns a session whose script is the given one, in a folder like a clone.
func newSession(t *testing.T, script string, o Options) *session {
	t.Helper()
	t.Chdir(t.TempDir())
	err := errors.Join(os.MkdirAll("ci/dev/bench", 0o755), os.WriteFile("ci/dev/bench/test.sh", []byte(script), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return &session{Options: o, name: "test", w: new(strings.Builder), only: regexp.MustCompile(o.Only), line: new(line)}
}

// Commands are measured, in rounds of another order, without the first.
func TestMeasure(t *testing.T) {
	s := newSession(t, `printf %s "$2" >>order; [ "$1" != check ] || echo "$first" >>checks`, Options{Rounds: 3, Only: "^(command|work)$"})
	s.variants = []variant{
		{name: "command", command: "sh -c 'sleep 0.1; test \"$X\" = y && test . -ef /'", env: []string{"X=y"}, dir: "/", prepare: "prepare c", check: "check -"},
		{name: "work", command: "sleep 0.02", prepare: "prepare w"},
		{name: "other", command: "false"},
	}
	rows, err := s.measureVariants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if order := read("order"); !strings.HasPrefix(order, "c-w") || strings.Count(order, "c") != 4 || strings.Count(order, "w") != 4 || read("checks") != "yes\n" {
		t.Errorf("the order was %s, with the checks %q; want c-w first, 4 of each, and a check", order, read("checks"))
	}
	for i, least := range []time.Duration{100 * time.Millisecond, 20 * time.Millisecond} {
		if r := rows[i]; len(r.wall) != 3 || len(r.cpu) != 3 || median(r.wall) < least || median(r.cpu) >= median(r.wall) {
			t.Errorf("%s took %v, %v on a processor; want 3 times, at least %v", r.name, r.wall, r.cpu, least)
		}
	}
	s.only, s.variants = regexp.MustCompile(""), []variant{{name: "fails", command: "ls /nonexistent"}}
	if _, err := s.measureVariants(t.Context()); err == nil || !strings.Contains(err.Error(), "fails, round 0: ") || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a command that fails = %v; want its name and what it wrote", err)
	}
}

// Variants that need one another keep their order, and are checked in each round.
func TestOrdered(t *testing.T) {
	s := newSession(t, `printf %s "$2" >>order`, Options{Rounds: 3})
	s.ordered, s.variants = true, []variant{
		{name: "a", command: "true", prepare: "prepare a"}, {name: "b", command: "true", prepare: "prepare b"}, {name: "c", command: "true", prepare: "prepare c", check: "check d"},
	}
	rows, err := s.measureVariants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if order, err := os.ReadFile("order"); err != nil || string(order) != "abcdabcdabcd" || len(rows[0].wall) != 3 {
		t.Errorf("the order was %s, %v, and %d times were counted; want three times abcd", order, err, len(rows[0].wall))
	}
}

func TestRatios(t *testing.T) {
	times := func(of ...float64) (all []time.Duration) {
		for _, s := range of {
			all = append(all, time.Duration(s*float64(time.Second)))
		}
		return all
	}
	rows := []row{
		{"plain", times(1, 2, 3), times(1, 1, 1), 0, 0},
		{"ours", times(3, 4, 5), times(2, 2, 2), 10, 0},
		{"peer", times(9, 12, 11), times(4, 4, 4), 15, 0},
		{"slow peer", times(99, 99, 99), times(3, 3, 3), 0, 0},
	}
	var out strings.Builder
	s := &session{w: &out, area: area{ratios: []ratio{
		{name: "a", over: "peer", under: "ours"},
		{name: "best", over: "slow peer|peer|absent", under: "ours"},
		{name: "added", over: "peer", under: "ours", base: "plain"},
		{name: "once", over: "peer", under: "ours", base: "plain", baseOver: true},
		{name: "cpu", over: "peer", under: "ours", base: "plain", of: processorSeconds},
		{name: "bytes", over: "peer", under: "ours", of: lineBytes},
		{name: "absent1", over: "absent", under: "ours"},
		{name: "absent2", over: "peer", under: "absent"},
		{name: "absent3", over: "peer", under: "ours", base: "absent"},
	}}}
	err := s.print(rows, "mb=7.00")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := "a=2.75 best=2.75 added=4.00 once=2.00 cpu=3.00 bytes=1.50 mb=7.00"; err != nil || lines[len(lines)-1] != want || len(lines) != 6 {
		t.Errorf("print wrote\n%s\n%v; want a row for each variant, then %s", out.String(), err, want)
	}
}

// Without the delay of the line every figure of it would be wrong.
func TestLine(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				text, _ := io.ReadAll(c)
				c.Write(bytes.ToUpper(text))
			}()
		}
	}()
	const delay = 30 * time.Millisecond
	l, err := listenLine(server.Addr().(*net.TCPAddr).Port, delay)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	began := time.Now()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := bytes.Repeat([]byte("x"), 1<<20)
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, bytes.ToUpper(data)) {
		t.Errorf("%d bytes came back, %v; want those that were sent", len(got), err)
	}
	if took := time.Since(began); took < 4*delay {
		t.Errorf("a request took %s; want a handshake, and there and back, in at least %s", took, 4*delay)
	}
	if n := l.carried.Load(); n != 2<<20 {
		t.Errorf("the line carried %d bytes; want 2 MiB", n)
	}
}

// The data of a variant must make the next one neither faster nor slower: prepare leaves none of
// it on the device, nor in a cache. A wrong image is noticed.
func TestDevice(t *testing.T) {
	needRoot(t)
	t.Chdir("../../..")
	const size = 64 << 20
	dir := t.TempDir()
	s := &session{area: flash, name: "flash", program: filepath.Join(dir, "slipway"), words: map[string]string{"dir": dir, "mib": "64", "board": "virt", "before": ""}}
	must := func(verb string) string {
		t.Helper()
		out, err := s.call(t.Context(), variant{}, verb)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if _, err := exec.LookPath("bmaptool"); err != nil {
		t.Skip("bmaptool is not installed (Debian package bmap-tools)")
	}
	s.addWords(must("setup"))
	t.Cleanup(func() {
		if _, err := s.call(context.Background(), variant{}, "end"); err != nil {
			t.Error(err)
		}
	})
	blocks := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	// A fragmented file also counts the blocks of its extent tree (ext4), seldom more than one.
	near := func(a, b int64) bool { return max(a, b)-min(a, b) <= 64<<10 }
	used := filepath.Join(dir, "used.img")
	want := blocks(used)
	if n := blocks(s.words["raw"]); !near(n, want) || n < size/8 || n > size*3/4 {
		t.Errorf("the image has %d bytes of data, the used file %d; want as many, and a part of %d", n, want, size)
	}
	device := s.words["device"]
	if err := os.WriteFile(device, bytes.Repeat([]byte{1}, size), 0); err != nil {
		t.Fatal(err)
	}
	must("prepare raw")
	if got := blocks(filepath.Join(dir, "device")); !near(got, want) {
		t.Errorf("the device's file holds %d bytes after prepare; want the %d that are mapped", got, want)
	}
	data, err := os.ReadFile(used)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(device); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the device does not hold the used data after prepare (%v)", err)
	}
	if _, err := s.call(t.Context(), variant{}, "check"); err == nil {
		t.Error("check with the used data = nil; want an error")
	}
	image, err := os.ReadFile(s.words["raw"])
	if err := errors.Join(err, os.WriteFile(device, image, 0)); err != nil {
		t.Fatal(err)
	}
	must("check")
}

// The measurements of some areas, with small files.
func TestAreas(t *testing.T) {
	needRoot(t)
	t.Chdir("../../..")
	for _, tt := range []struct {
		area    string
		options Options
		want    []string
	}{
		{"flash", Options{Rounds: 1, MiB: 16, Only: `^(ours|bmaptool) raw$`}, []string{"raw=", "peak_rss_mb="}},
		{"place", Options{Rounds: 1, MiB: 8, Only: `^(ours (2|8|prepared|8 and slow)|(bmaptool|tee|limit read back) 2)$`}, []string{
			"bmaptool_over_ours_2=", "cpu_tee_over_ours_2=", "ours_over_limit_2=", "beside_slow_over_alone=",
		}},
		{"deploy", Options{Rounds: 1, MiB: 2, Only: "^(plain ours|plain sftp|plain ssh cat|far ours|far rsync -W)$"}, []string{"plain_best_over_ours=", "far_best_single_over_ours="}},
	} {
		var out bytes.Buffer
		if err := Run(t.Context(), &out, tt.area, tt.options); err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSpace(out.String())
		last := text[strings.LastIndex(text, "\n")+1:]
		for _, want := range tt.want {
			if !strings.Contains(last, want) {
				t.Errorf("bench %s printed %q last; want %s in it", tt.area, last, want)
			}
		}
	}
}

// The earlier checkout's program runs the same commands, and the last line compares both.
func TestBefore(t *testing.T) {
	s := newSession(t, "", Options{Before: ".", Rounds: 1})
	dir := t.TempDir()
	s.program, s.variants = filepath.Join(dir, "x y"), []variant{{name: "ours", command: "{program} a"}, {name: "peer", command: "true"}}
	for _, program := range []string{s.program, s.program + earlierSuffix} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho $0 >>"+dir+"/ran"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.measureVariants(t.Context())
	if err == nil {
		err = s.print(rows)
	}
	ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
	for _, want := range []string{"/x y\n", "/x y.before\n"} {
		if strings.Count(string(ran), want) != 2 {
			t.Errorf("these ran: %q; want twice %q", ran, want)
		}
	}
	if out := s.w.(*strings.Builder).String(); err != nil || len(rows) != 3 || !strings.Contains(out, "\nbefore_over_now_ours=") {
		t.Errorf("measureVariants = %d rows, %v, and the table is\n%s", len(rows), err, out)
	}
}

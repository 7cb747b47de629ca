package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
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
		{"update", Options{Rounds: 3}, "--rounds=3: the area has no such option"},
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

// Commands are measured, in rounds of another order, without the first.
func TestMeasure(t *testing.T) {
	s := &session{Options: Options{Rounds: 3}, w: io.Discard, only: regexp.MustCompile("^(command|work)$")}
	var order string
	checks := 0
	note := func(c string) func(context.Context, variant) error {
		return func(context.Context, variant) error { order += c; return nil }
	}
	rows, err := s.measure(t.Context(), []variant{
		{name: "command", command: "sh -c 'sleep 0.1; test \"$X\" = y && test . -ef /'", env: []string{"X=y"}, dir: "/", prepare: note("c"), check: func(context.Context) error { checks++; return nil }},
		{name: "work", command: "sleep 0.02", prepare: note("w")},
		{name: "other", command: "false"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(order, "cw") || strings.Count(order, "c") != 4 || strings.Count(order, "w") != 4 || checks != 1 {
		t.Errorf("the order was %s, with %d checks; want cw first, 4 of each, and a check", order, checks)
	}
	for i, least := range []time.Duration{100 * time.Millisecond, 20 * time.Millisecond} {
		if r := rows[i]; len(r.wall) != 3 || len(r.cpu) != 3 || median(r.wall) < least || median(r.cpu) >= median(r.wall) {
			t.Errorf("%s took %v, %v on a processor; want 3 times, at least %v", r.name, r.wall, r.cpu, least)
		}
	}
	s.only = regexp.MustCompile("")
	if _, err := s.measure(t.Context(), []variant{{name: "fails", command: "ls /nonexistent"}}); err == nil || !strings.Contains(err.Error(), "fails, round 0: ") || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a command that fails = %v; want its name and what it wrote", err)
	}
}

func TestRatios(t *testing.T) {
	seconds := func(of ...float64) (all []time.Duration) {
		for _, s := range of {
			all = append(all, time.Duration(s*float64(time.Second)))
		}
		return all
	}
	rows := []row{
		{"plain", seconds(1, 2, 3), seconds(1, 1, 1)},
		{"ours", seconds(3, 4, 5), seconds(2, 2, 2)},
		{"peer", seconds(9, 12, 11), seconds(4, 4, 4)},
		{"slow peer", seconds(99, 99, 99), seconds(3, 3, 3)},
	}
	var out strings.Builder
	s := &session{w: &out}
	err := s.print(rows, []ratio{
		{name: "a", over: "peer", under: "ours"},
		{name: "best", over: "slow peer|peer|absent", under: "ours"},
		{name: "added", over: "peer", under: "ours", base: "plain"},
		{name: "cpu", over: "peer", under: "ours", base: "plain", cpu: true},
		{name: "absent1", over: "absent", under: "ours"},
		{name: "absent2", over: "peer", under: "absent"},
		{name: "absent3", over: "peer", under: "ours", base: "absent"},
	}, figure{"mb", 7})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := "a=2.75 best=2.75 added=4.00 cpu=3.00 mb=7.00"; err != nil || lines[len(lines)-1] != want || len(lines) != 6 {
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

// The data of a variant must make the next one neither faster nor slower: makeUsed leaves
// none of it on the device, nor in a cache. A wrong image is noticed.
func TestDevice(t *testing.T) {
	needRoot(t)
	const size = 64 << 20
	b := flashBench{dir: t.TempDir(), board: "virt"}
	if err := b.makeInputs(t.Context(), size); err != nil {
		t.Skipf("needs bmaptool and zstd: %v", err)
	}
	detach, err := b.attachLoop(t.Context(), size)
	if err != nil {
		t.Skipf("cannot make a loop device (Debian package mount): %v", err)
	}
	t.Cleanup(func() {
		if err := detach(); err != nil {
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
	want := blocks(b.usedPath())
	if n := blocks(b.imagePath("raw")); !near(n, want) || n < size/8 || n > size*3/4 {
		t.Errorf("the image has %d bytes of data, the used file %d; want as many, and a part of %d", n, want, size)
	}
	if err := os.WriteFile(b.device, bytes.Repeat([]byte{1}, size), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.makeUsed(t.Context(), b.imagePath("raw")); err != nil {
		t.Fatal(err)
	}
	if got := blocks(filepath.Join(b.dir, "device")); !near(got, want) {
		t.Errorf("the device's file holds %d bytes after makeUsed; want the %d that are mapped", got, want)
	}
	used, err := os.ReadFile(b.usedPath())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(b.device); err != nil || !bytes.Equal(got, used) {
		t.Errorf("the device does not hold the used data after makeUsed (%v)", err)
	}
	if err := b.checkImage(t.Context()); err == nil {
		t.Error("checkImage with the used data = nil; want an error")
	}
	image, err := os.ReadFile(b.imagePath("raw"))
	if err := errors.Join(err, os.WriteFile(b.device, image, 0)); err != nil {
		t.Fatal(err)
	}
	if err := b.checkImage(t.Context()); err != nil {
		t.Errorf("checkImage with the image = %v", err)
	}
}

// The measurements of two areas, with small files.
func TestAreas(t *testing.T) {
	needRoot(t)
	t.Chdir("../../..")
	for _, tt := range []struct {
		area    string
		options Options
		want    []string
	}{
		{"flash", Options{Rounds: 1, MiB: 16, Only: `^(ours|bmaptool) raw$`}, []string{"raw=", "peak_rss_mb="}},
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
	dir, peer := t.TempDir(), "true"
	s := &session{program: filepath.Join(dir, "x y"), Options: Options{Before: dir, Rounds: 1}, only: regexp.MustCompile(""), w: new(strings.Builder)}
	for _, program := range []string{s.program, s.program + earlierSuffix} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho $0 >>"+dir+"/ran"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.measure(t.Context(), []variant{{name: "ours", command: "{program} a"}, {name: "peer", command: peer}})
	if err == nil {
		err = s.print(rows, nil)
	}
	ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
	for _, want := range []string{"/x y\n", "/x y.before\n"} {
		if strings.Count(string(ran), want) != 2 {
			t.Errorf("these ran: %q; want twice %q", ran, want)
		}
	}
	if out := s.w.(*strings.Builder).String(); err != nil || len(rows) != 3 || !strings.Contains(out, "\nbefore_over_now_ours=") {
		t.Errorf("measure = %d rows, %v, and the table is\n%s", len(rows), err, out)
	}
}

package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh"
	"slipway/images"
)

// holder makes the test binary hold a rig in a folder until it is killed.
const holder = "SLIPWAY_TEST_HOLDS_RIG"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holder); dir != "" {
		r, err := Start(context.Background(), small, dir, []string{"/"})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(r.spaces.first.Process.Pid)
		select {}
	}
	os.Exit(m.Run())
}

// small is a rig with this machine's own userland.
var small = images.Spec{Board: "small-rig", Rig: &images.Rig{
	Ports: []images.RigPort{{Name: "p0", Address: "192.0.2.254/24"}, {Name: "pf0vf0", Address: "198.51.100.254/24"}},
	Places: []images.RigPlace{
		{Name: "leaf1", Port: "p0", Address: "192.0.2.1/24"},
		{Name: "leaf2", Port: "p0", Address: "192.0.2.2/24"},
		{Name: "vf0", Port: "pf0vf0", Address: "198.51.100.1/24"},
	},
}}

func needRig(t *testing.T) {
	t.Helper()
	if err := CheckRoot(); err != nil {
		t.Skip(err)
	}
	for _, program := range []string{"/usr/sbin/sshd", "ip", "sysctl", "ethtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v; apt-get install openssh-server iproute2 procps ethtool", err)
		}
	}
}

// A rig is reached over SSH, its places reach each other through its ports, and nothing
// is left when it is off.
func TestRig(t *testing.T) {
	needRig(t)
	dir := t.TempDir()
	r, err := Start(t.Context(), small, dir, []string{"/"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r != nil {
			r.Stop()
		}
	})
	spaces := namespacesOf(t, r.spaces.first.Process.Pid)
	conn, err := boardssh.WaitDial(t.Context(), r.Address, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := said(t, conn, "hostname"); got != "small-rig" {
		t.Errorf("hostname = %q; want small-rig", got)
	}
	if got := said(t, conn, "readlink", "/proc/1/ns/net"); got != spaces[0] {
		t.Errorf("its first process is in %s; want %s", got, spaces[0])
	}
	if _, err := Start(t.Context(), small, dir, []string{"/"}); err == nil || !strings.Contains(err.Error(), "is on already") {
		t.Errorf("a second Start = %v; want that it is on", err)
	}
	found, err := Find(dir)
	if err != nil || found.Port != r.Address.Port {
		t.Errorf("Find = %v, %v; want port %d", found, err, r.Address.Port)
	}
	if port, place := said(t, conn, "cat", forwarding), said(t, conn, "ip", "netns", "exec", "leaf2", "cat", forwarding); port != "1" || place != "0" {
		t.Errorf("the rig forwards: %s, and leaf2: %s; want 1 and 0", port, place)
	}
	for _, line := range []string{"ethtool -k p0", "ip netns exec leaf2 ethtool -k eth0"} { // drivers would see packets without checksums
		if got := said(t, conn, "sh", "-c", line+" | grep ^tx-checksumming"); got != "tx-checksumming: off" {
			t.Errorf("%s prints %q; want tx-checksumming: off", line, got)
		}
	}
	for _, port := range []string{"p0", "pf0vf0"} { // a switch without rules
		said(t, conn, "ip", "link", "add", "sw-"+port, "type", "bridge")
		for _, end := range []string{"esw-" + port, "wire-" + port} {
			said(t, conn, "ip", "link", "set", end, "master", "sw-"+port)
		}
		said(t, conn, "ip", "link", "set", "sw-"+port, "up")
	}
	for _, leaf := range []string{"leaf1", "leaf2"} {
		if err := r.carries("vf0", leaf, address(leaf)); err != nil {
			t.Errorf("from vf0 to %s: %v", leaf, err)
		}
	}
	conn.Close()
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	r = nil
	awaitGone(t, spaces)
	if left := mounts(t, dir); len(left) > 0 {
		t.Errorf("left mounted: %q", left)
	}
	if _, err := Find(dir); err != ErrOff {
		t.Errorf("Find after Stop = %v; want %v", err, ErrOff)
	}
}

// What holds a rig may be killed.
func TestKilled(t *testing.T) {
	needRig(t)
	dir := t.TempDir()
	held := exec.CommandContext(t.Context(), "/proc/self/exe")
	held.Env = append(os.Environ(), holder+"="+dir)
	out, err := held.StdoutPipe()
	if err == nil {
		err = held.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var first int
	if _, err := fmt.Sscan(line, &first); err != nil {
		t.Fatalf("it said %q", line)
	}
	spaces := namespacesOf(t, first)
	if _, err := Find(dir); err != nil {
		t.Errorf("Find = %v", err)
	}
	held.Process.Kill()
	held.Wait()
	awaitGone(t, spaces)
	if err := Down(t.Context(), dir); err != ErrOff {
		t.Errorf("Down after a kill = %v; want %v", err, ErrOff)
	}
	r, err := Start(t.Context(), small, dir, []string{"/"})
	if err != nil {
		t.Fatalf("Start after a kill: %v", err)
	}
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
}

// A rig that cannot be made leaves nothing.
func TestStartFails(t *testing.T) {
	needRig(t)
	dir := t.TempDir()
	broken := small
	broken.Rig = &images.Rig{Ports: []images.RigPort{{Name: "p0", Address: "192.0.2.254/24"}, {Name: "p0", Address: "192.0.2.253/24"}}}
	if _, err := Start(t.Context(), broken, dir, []string{"/"}); err == nil || !strings.Contains(err.Error(), "lan-p0") {
		t.Errorf("Start = %v; want that lan-p0 exists", err)
	}
	if _, err := Start(t.Context(), small, dir, []string{filepath.Join(dir, "none")}); err == nil || !strings.Contains(err.Error(), "mount overlay") {
		t.Errorf("Start without a userland = %v; want the mount that failed", err)
	}
	if _, err := Find(dir); err != ErrOff {
		t.Errorf("Find = %v; want %v", err, ErrOff)
	}
}

const forwarding = "/proc/sys/net/ipv4/ip_forward"

func address(place string) string {
	i := slices.IndexFunc(small.Rig.Places, func(p images.RigPlace) bool { return p.Name == place })
	a, _, _ := strings.Cut(small.Rig.Places[i].Address, "/")
	return a
}

func said(t *testing.T, conn *boardssh.Conn, argv ...string) string {
	t.Helper()
	r, err := conn.Run(t.Context(), argv...)
	if err != nil || r.Status != 0 {
		t.Fatalf("%q = %d, %v\n%s", argv, r.Status, err, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// carries sends something by TCP from a place to another, and back.
func (r *Rig) carries(from, to, address string) error {
	var listener net.Listener
	var conn net.Conn
	err := r.at(to, func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	err = r.at(from, func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), time.Minute)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := strings.Repeat("over the slow path ", 10000)
	go func() {
		io.WriteString(conn, sent)
		conn.(*net.TCPConn).CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || string(got) != sent {
		return fmt.Errorf("%d bytes came back, %v; want %d", len(got), err, len(sent))
	}
	return nil
}

// at calls f on a thread in the network of a place.
func (r *Rig) at(place string, f func() error) error {
	var fd int
	err := r.spaces.runOnThread(func() (err error) {
		fd, err = unix.Open("/run/netns/"+place, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	done := make(chan error)
	onThread(func() {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	})
	return <-done
}

// mounts are this machine's mounts below a folder. Other tests mount elsewhere meanwhile.
func mounts(t *testing.T, dir string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " "+dir) {
			all = append(all, line)
		}
	}
	return all
}

// namespacesOf are those of a process that are not this test's own.
func namespacesOf(t *testing.T, pid int) (all []string) {
	t.Helper()
	for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc"} {
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			t.Fatal(err)
		}
		if own, err := os.Readlink("/proc/self/ns/" + kind); err != nil || own == its {
			t.Fatalf("the rig is in this machine's own %s namespace, %v", kind, err)
		}
		all = append(all, its)
	}
	return all
}

// awaitGone waits until no thread of any process is in one of the namespaces. A dead one
// has no program any more, but is listed until its parent asks for it, and in a container
// the first process may never ask.
func awaitGone(t *testing.T, spaces []string) {
	t.Helper()
	for inhabited(spaces) != "" {
		select {
		case <-t.Context().Done():
			t.Fatalf("%s is still there", inhabited(spaces))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func inhabited(spaces []string) string {
	links, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/*")
	for _, link := range links {
		space, err := os.Readlink(link)
		if err != nil || !slices.Contains(spaces, space) {
			continue
		}
		if _, err := os.Readlink(filepath.Join(link, "../../exe")); err == nil {
			return link
		}
	}
	return ""
}

func TestState(t *testing.T) {
	dir := t.TempDir()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Find(dir); err == nil || !strings.Contains(err.Error(), "in a moment") {
		t.Errorf("Find of a rig that is being switched on = %v", err)
	}
	text, err := json.Marshal(state{PID: 1})
	if err == nil {
		err = os.WriteFile(stateFile(dir), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "names process 1") {
		t.Errorf("Down of process 1 = %v; want a refusal", err)
	}
}

func TestDownWritesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "board")
	if err := Down(t.Context(), dir); err != ErrOff {
		t.Errorf("Down = %v; want %v", err, ErrOff)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("Down made %s: %v", dir, err)
	}
}

package rshim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/sshd"
	"slipway/flash/flashtest"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// patient never lets a limit be over in a test that is not about it.
var patient = Limits{
	Notice: 10 * time.Minute, Stuck: 10 * time.Minute,
	First: 10 * time.Minute, Silence: 10 * time.Minute, Firmware: 10 * time.Minute, All: 10 * time.Minute,
	Gone: 10 * time.Minute, Poll: time.Millisecond,
}

// ways runs a test on DPUs of this machine and on ones that are reached over SSH.
func ways(t *testing.T, test func(t *testing.T, open func(dir string) *Port)) {
	t.Run("here", func(t *testing.T) { test(t, At) })
	t.Run("over ssh", func(t *testing.T) {
		conn := connect(t)
		test(t, func(dir string) *Port { return Over(conn, dir) })
	})
}

// server is the sshd of all tests, which starts with the first that needs it.
var server = sync.OnceValues(func() (*sshd.Server, error) {
	dir, err := os.MkdirTemp("", "rshim")
	if err != nil {
		return nil, err
	}
	atEnd = append(atEnd, func() { os.RemoveAll(dir) })
	s, err := sshd.New(dir)
	if err == nil {
		err = s.Start(context.Background())
	}
	if err == nil {
		atEnd = append(atEnd, s.Stop)
	}
	return s, err
})

var atEnd []func()

func TestMain(m *testing.M) {
	status := m.Run()
	for _, end := range slices.Backward(atEnd) {
		end()
	}
	os.Exit(status)
}

// connect logs in to a real sshd.
func connect(t *testing.T) *boardssh.Conn {
	t.Helper()
	if _, err := os.Stat(sshd.Program); err != nil {
		t.Skip("sshd is missing (Debian package openssh-server)")
	}
	server, err := server()
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := boardssh.Dial(t.Context(), boardssh.Address{
		Host: "127.0.0.1", Port: server.Port, User: me.Username, KnownHosts: []string{server.KnownHosts}, Identities: []string{server.Identity},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// some is parts whose sizes are no multiples of anything.
func some(bytesEach ...int) ([]Part, []byte) {
	var parts []Part
	var all []byte
	random := rand.NewChaCha8([32]byte{1})
	for _, n := range bytesEach {
		data := make([]byte, n)
		random.Read(data)
		parts = append(parts, Part{Name: "part", Data: bytes.NewReader(data), SizeBytes: int64(n)})
		all = append(all, data...)
	}
	return parts, all
}

// journalOf is a log that may still be written to when its test looks at it.
type journalOf struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journalOf) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journalOf) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func TestPush(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		says := []string{"INFO[BL2]: start", "INFO[MISC]: NIC firmware update done", "INFO[MISC]: Rebooting..."}
		d := &flashtest.DPU{Says: says, SaidOld: flashtest.Boots}
		dir := flashtest.MountDPUs(t, d)[0]
		parts, want := some(300_001, 37, 100_000)
		var log journalOf
		v, err := open(dir).Push(t.Context(), parts, patient, &log)
		if err != nil {
			t.Fatal(err)
		}
		if v.Outcome != Rebooting || v.Line != "INFO[MISC]: Rebooting..." || v.NICFirmware != "updated" || len(v.Errors) > 0 {
			t.Errorf("verdict %+v; want rebooting, the firmware updated, no errors", v)
		}
		if got, pushes := d.Pushed(); !bytes.Equal(got, want) || pushes != 1 || d.Resets() != 1 {
			t.Errorf("%d bytes in %d pushes arrived, %d resets; want the %d bytes that were given, 1, 1", len(got), pushes, d.Resets(), len(want))
		}
		if level, clear := d.Settings(); level != "0" || clear != "0" {
			t.Errorf("the driver is left with DISPLAY_LEVEL %s, CLEAR_ON_READ %s; want 0, 0", level, clear)
		}
		for _, line := range says {
			if !strings.Contains(log.String(), " "+line+"\n") {
				t.Errorf("the log lacks %q:\n%s", line, log.String())
			}
		}
		if strings.Contains(log.String(), "DPU is ready") {
			t.Errorf("the log holds messages from before the push:\n%s", log.String())
		}
	})
}

// A push leaves the driver's settings as the user set them.
func TestPushRestoresSettings(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		for _, want := range []string{"1", "2"} {
			d := &flashtest.DPU{Says: flashtest.Boots}
			dir := flashtest.MountDPUs(t, d)[0]
			for _, line := range []string{"CLEAR_ON_READ 1\n", "DISPLAY_LEVEL " + want + "\n"} {
				if err := os.WriteFile(filepath.Join(dir, "misc"), []byte(line), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			parts, _ := some(1000)
			if _, err := open(dir).Push(t.Context(), parts, patient, &journalOf{}); err != nil {
				t.Error(err)
			}
			if level, clear := d.Settings(); level != want || clear != "1" {
				t.Errorf("the driver is left with DISPLAY_LEVEL %s, CLEAR_ON_READ %s; want %s, 1", level, clear, want)
			}
		}
	})
}

// verdict pushes to one DPU.
func verdict(t *testing.T, d *flashtest.DPU, limits Limits) (Verdict, error) {
	t.Helper()
	dir := flashtest.MountDPUs(t, d)[0]
	parts, _ := some(70_000)
	var log journalOf
	return At(dir).Push(t.Context(), parts, limits, &log)
}

func TestVerdicts(t *testing.T) {
	boot := "INFO[BL2]: start"
	for _, test := range []struct {
		name     string
		dpu      *flashtest.DPU
		want     Outcome
		firmware string
		wantErr  string
	}{
		{"a system boots", &flashtest.DPU{Says: flashtest.Boots}, Up, "", ""},
		{"a system is installed", &flashtest.DPU{Says: flashtest.Installs}, Rebooting, "updated", ""},
		{"only ready", &flashtest.DPU{Says: []string{boot, "INFO[MISC]: DPU is ready"}}, Ready, "", ""},
		{"an old driver", &flashtest.DPU{Says: flashtest.Boots, SaidOld: flashtest.Boots, CannotClr: true}, Up, "", ""},
		{"an old driver, the log stays", &flashtest.DPU{Says: flashtest.Installs, SaidOld: flashtest.Boots, CannotClr: true, KeepsLog: true}, Rebooting, "updated", ""},
		{"ready is from before the reset", &flashtest.DPU{Says: append([]string{"INFO[MISC]: DPU is ready"}, flashtest.Installs...)}, Rebooting, "updated", ""},
		{"short writes", &flashtest.DPU{Says: flashtest.Boots, TakesOnly: 4099}, Up, "", ""},
		{"away for a while", &flashtest.DPU{Says: flashtest.Boots, AwayFor: 5}, Up, "", ""},
		{"enhanced NIC mode", &flashtest.DPU{Mode: "DPU mode", Says: []string{boot, "INFO[UEFI]: In Enhanced NIC mode"}}, NICMode, "", ""},
		{"DPU mode", &flashtest.DPU{Mode: "DPU mode", Says: flashtest.Boots}, Up, "", ""},
		{"an error on the way", &flashtest.DPU{Says: []string{boot, "ERR[MISC]: Failed to create VLAN.", "INFO[MISC]: Rebooting..."}}, Rebooting, "", ""},
		{"no firmware reset", &flashtest.DPU{Says: []string{boot, "INFO[MISC]: NIC Firmware reset is not supported. Host power cycle is required", "INFO[MISC]: Rebooting..."}}, Rebooting, "", ""},
		{"another thing reboots", &flashtest.DPU{Says: []string{boot, "INFO[MISC]: Rebooting BMC...", "INFO[MISC]: Linux up"}}, Up, "", ""},
		{"critical error", &flashtest.DPU{Says: []string{boot, "ERR[MISC]: CRITICAL ERROR: no disk", "INFO[MISC]: Linux up"}}, "", "", "gave up"},
		{"panic", &flashtest.DPU{Says: []string{boot, "PANIC(BL31): PC = 0x1234"}}, "", "", "the DPU's boot crashed"},
		{"exception", &flashtest.DPU{Says: []string{boot, "Exception(UEFI): syndrome = 0x96000010(Data Abort)"}}, "", "", "the DPU's boot crashed"},
		{"assertion", &flashtest.DPU{Says: []string{"ASSERT[BL2]: x"}}, "", "", "the DPU's boot crashed"},
		{"firmware failed", &flashtest.DPU{Says: []string{boot, "INFO[MISC]: Updating NIC firmware...", "INFO[MISC]: NIC firmware update failed", "INFO[MISC]: Rebooting..."}}, Rebooting, "failed", "but not the NIC's firmware"},
		{"firmware not done", &flashtest.DPU{Says: []string{boot, "INFO[MISC]: Updating NIC firmware...", "INFO[MISC]: Rebooting..."}}, Rebooting, "begun", "never said that the NIC's firmware"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, err := verdict(t, test.dpu, patient)
			if test.wantErr == "" && err != nil || test.wantErr != "" && (err == nil || !strings.Contains(err.Error(), test.wantErr)) {
				t.Errorf("error %v; want %q", err, test.wantErr)
			}
			if v.Outcome != test.want || v.NICFirmware != test.firmware {
				t.Errorf("verdict %+v; want %q, firmware %q", v, test.want, test.firmware)
			}
		})
	}
}

func TestVerdictNotes(t *testing.T) {
	v, err := verdict(t, &flashtest.DPU{Says: []string{
		"INFO[BL2]: start", "ERR[MISC]: Failed to create VLAN.", "INFO[MISC]: NIC Firmware reset is not supported. Host power cycle is required", "INFO[MISC]: Rebooting...",
	}}, patient)
	if err != nil || !v.PowerCycle || !slices.Equal(v.Errors, []string{"ERR[MISC]: Failed to create VLAN."}) {
		t.Errorf("verdict %+v, %v; want the error and the power cycle in it", v, err)
	}
}

// TestLimits has DPUs that stop talking. One limit at a time is over at once.
func TestLimits(t *testing.T) {
	for _, test := range []struct {
		name  string
		dpu   *flashtest.DPU
		short func(*Limits)
		want  string
	}{
		{"nothing", &flashtest.DPU{}, func(l *Limits) { l.First = time.Nanosecond }, "the DPU said nothing for 1ns"},
		{"no more", &flashtest.DPU{Says: []string{"INFO[BL2]: start"}}, func(l *Limits) { l.Silence = time.Nanosecond }, "the DPU has said nothing for 1ns; the DPU said last: INFO[BL2]: start"},
		{"firmware", &flashtest.DPU{Says: []string{"INFO[BL2]: start", "INFO[MISC]: Updating NIC firmware..."}}, func(l *Limits) { l.Firmware = time.Nanosecond }, "do not cut its power"},
		{"never done", &flashtest.DPU{Says: slices.Repeat([]string{"INFO[BL2]: start"}, 1<<20)}, func(l *Limits) { l.All = 50 * time.Millisecond }, "has not said within 50ms that it is done"},
		{"gone", &flashtest.DPU{AwayFor: -1}, func(l *Limits) { l.Gone = time.Nanosecond }, "cannot be followed any longer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			limits := patient
			test.short(&limits)
			_, err := verdict(t, test.dpu, limits)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v; want %q", err, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	locked := &flashtest.DPU{Mode: "DPU mode", Locked: true}
	dropped := &flashtest.DPU{Dropped: true}
	nic := &flashtest.DPU{Mode: "NIC mode"}
	dirs := flashtest.MountDPUs(t, locked, dropped, nic)
	parts, _ := some(500_000)
	for dir, want := range map[string]string{
		dirs[0]: "it is locked (SECURE_NIC_MODE)", dirs[1]: "let go of it (DROP_MODE)", dirs[2]: "it is in NIC mode", dirs[1] + "9": "systemctl restart rshim",
	} {
		if _, err := At(dir).Push(t.Context(), parts, patient, &journalOf{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want %q", dir, err, want)
		}
	}
	if locked.Resets()+dropped.Resets()+nic.Resets() != 0 {
		t.Error("a DPU was reset")
	}
}

// TestDriverRefuses tests errors that only appear when boot is opened or written.
func TestDriverRefuses(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		locked := &flashtest.DPU{Locked: true} // a BlueField-2 does not say so in misc
		busy := &flashtest.DPU{Says: flashtest.Boots}
		deaf := &flashtest.DPU{DeafAfter: 65536, Says: []string{"ERR[BL2]: DDR init fail on MSS0"}}
		dirs := flashtest.MountDPUs(t, locked, busy, deaf)
		holder, err := os.OpenFile(filepath.Join(dirs[1], "boot"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Close()
		parts, _ := some(500_000)
		for i, want := range []string{
			"the DPU is locked and takes nothing from this host", "another program is pushing a stream to this DPU",
			"the DPU said last: ERR[BL2]: DDR init fail on MSS0",
		} {
			_, err := open(dirs[i]).Push(t.Context(), parts, patient, &journalOf{})
			if err == nil || !strings.Contains(err.Error(), want) || i == 2 && !strings.Contains(err.Error(), "BOOT_TIMEOUT") {
				t.Errorf("%s: error %v; want %q", dirs[i], err, want)
			}
		}
		if locked.Resets() != 0 || busy.Resets() != 1 { // once, by the holder
			t.Errorf("resets: %d of the locked one, %d of the busy one; want 0, 1", locked.Resets(), busy.Resets())
		}
		if _, clear := busy.Settings(); clear != "0" {
			t.Errorf("CLEAR_ON_READ is left at %s", clear)
		}
	})
}

// TestPushEnds breaks off a push that waits in the driver, as a Ctrl-C does.
func TestPushEnds(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		d := &flashtest.DPU{HangAfter: 65536}
		dir := flashtest.MountDPUs(t, d)[0]
		p := open(dir)
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("Ctrl-C")
		go func() {
			<-d.Hanging()
			cancel(stop)
		}()
		parts, _ := some(5_000_000)
		_, err := p.Push(ctx, parts, patient, &journalOf{})
		if !errors.Is(err, stop) || !strings.Contains(err.Error(), "of 5000000 bytes") || !strings.Contains(err.Error(), "next: repeat the line") {
			t.Errorf("error %v; want %v, how far it came, and what is next", err, stop)
		}
		if p.conn != nil {
			// Where a busy machine fell silent, the connection was given up, and the program
			// there ends with the driver's own limit.
			d.TimeOut()
		}
		// boot is closed, so that the next push can begin
		for began := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			if _, pushes := d.Pushed(); pushes == 1 {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatal("boot is still open a minute later")
			}
		}
		if _, clear := d.Settings(); clear != "0" && p.conn == nil {
			t.Errorf("CLEAR_ON_READ is left at %s", clear)
		}
	})
}

// TestPushStuck has a driver that waits for ever.
func TestPushStuck(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		d := &flashtest.DPU{HangAfter: 65536, WaitSec: 1}
		dir := flashtest.MountDPUs(t, d)[0]
		told := &progresstest.Recorder{}
		reporter := progress.New(told)
		defer reporter.Close()
		limits := patient
		limits.Notice, limits.Stuck = 0, 0
		parts, _ := some(5_000_000)
		p := open(dir)
		_, err := p.Push(progress.With(t.Context(), reporter), parts, limits, &journalOf{})
		if !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "longer than its BOOT_TIMEOUT of 1s") || !strings.Contains(err.Error(), "systemctl restart rshim") {
			t.Errorf("error %v; want one that says that the push is stuck, and what is next", err)
		}
		if !told.Saw("push to "+p.name, "the DPU has taken nothing for") {
			t.Error("the user was not told that the push stands still")
		}
	})
}

func TestPushShrunk(t *testing.T) {
	ways(t, func(t *testing.T, open func(string) *Port) {
		dir := flashtest.MountDPUs(t, &flashtest.DPU{Says: flashtest.Boots})[0]
		parts, _ := some(100_000, 1000)
		parts[0].SizeBytes += 10
		_, err := open(dir).Push(t.Context(), parts, patient, &journalOf{})
		if err == nil || !strings.Contains(err.Error(), "became shorter while it was pushed") {
			t.Errorf("error %v; want one about a file that became shorter", err)
		}
	})
}

func TestSeveralAtOnce(t *testing.T) {
	dpus := []*flashtest.DPU{{Says: flashtest.Boots}, {Says: []string{"PANIC(BL2): PC = 0x0"}}, {Says: flashtest.Installs}}
	dirs := flashtest.MountDPUs(t, dpus...)
	errs := make([]error, len(dpus))
	var wg sync.WaitGroup
	for i, dir := range dirs {
		parts, _ := some(200_000)
		wg.Go(func() { _, errs[i] = At(dir).Push(t.Context(), parts, patient, &journalOf{}) })
	}
	wg.Wait()
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("errors %v; want one, of the second", errs)
	}
}

// TestHold has a second program come to a DPU that another one is at work on.
func TestHold(t *testing.T) {
	d := &flashtest.DPU{Says: flashtest.Boots}
	dir := flashtest.MountDPUs(t, d)[0]
	first := At(dir)
	if err := first.Hold(); err != nil {
		t.Fatal(err)
	}
	parts, _ := some(1000)
	_, pushed := At(dir).Push(t.Context(), parts, patient, &journalOf{})
	for what, err := range map[string]error{
		"Push": pushed, "Show": Show(t.Context(), io.Discard, []string{dir}, false),
	} {
		if !errors.Is(err, errHeld) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s meanwhile gives %v; want %v", what, err, errHeld)
		}
	}
	if d.Resets() != 0 {
		t.Errorf("%d resets; want none", d.Resets())
	}
	if _, err := first.Push(t.Context(), parts, patient, &journalOf{}); err != nil {
		t.Errorf("Push by the one who holds it gives %v", err)
	}
	first.Close()
	if _, err := At(dir).Push(t.Context(), parts, patient, &journalOf{}); err != nil {
		t.Errorf("Push once it was let go gives %v", err)
	}
}

// TestSwapped has another DPU in the place of the one that was confirmed.
func TestSwapped(t *testing.T) {
	d := &flashtest.DPU{Says: flashtest.Boots}
	p := At(flashtest.MountDPUs(t, d)[0])
	if _, err := p.CheckReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Swap("usb-1.0")
	parts, _ := some(1000)
	_, err := p.Push(t.Context(), parts, patient, &journalOf{})
	if err == nil || !strings.Contains(err.Error(), "at pcie-0000:03:00.2, and is BlueField-2(Rev 1) at usb-1.0 now") || d.Resets() != 0 {
		t.Errorf("error %v, %d resets; want one that names both, and none", err, d.Resets())
	}
}

// TestFollowEnds interrupts the wait for the final message.
func TestFollowEnds(t *testing.T) {
	d := &flashtest.DPU{Says: flashtest.Boots[:1]}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("Ctrl-C")
	parts, _ := some(1000)
	_, err := At(flashtest.MountDPUs(t, d)[0]).Push(ctx, parts, patient, writerFunc(func(p []byte) (int, error) {
		cancel(stop)
		return len(p), nil
	}))
	if !errors.Is(err, stop) || !strings.Contains(err.Error(), "the DPU continues by itself") {
		t.Errorf("error %v; want %v, and that the DPU continues", err, stop)
	}
	if level, clear := d.Settings(); level != "0" || clear != "0" {
		t.Errorf("the driver is left with DISPLAY_LEVEL %s, CLEAR_ON_READ %s; want 0, 0", level, clear)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestSaid tests recorded output of remote programs.
func TestSaid(t *testing.T) {
	long := strings.Repeat("é", 400)
	for _, test := range []struct {
		status int
		stderr string
		is     error
		want   string
	}{
		{0, "65536 bytes copied\n", nil, ""},
		{1, "dd: failed to open '/dev/rshim0/boot': Device or resource busy\n", errBusy, "device is busy"},
		{1, "dd: can't open '/dev/rshim0/boot': Resource busy\n", errBusy, "device is busy"},
		{1, "cat: can't open '/dev/rshim0/misc': No such file or directory\n", errMissing, "no such device"},
		{127, "env: 'dd': No such file or directory\n", nil, "that machine lacks env, cat or dd: env: 'dd': No such"},
		{137, "", nil, "ended with status 137"},
		{1, "x\x1b[2J\xff\ny", nil, "x[2J? y"},
		{1, "x" + long, nil, "x" + long[:498]},
	} {
		err := commandError(boardssh.Result{Status: test.status, Stderr: []byte(test.stderr)}, nil)
		if test.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), test.want) && !strings.HasSuffix(err.Error(), test.want) || !utf8.ValidString(err.Error()) || test.is != nil && !errors.Is(err, test.is) {
			t.Errorf("status %d, %.40q gives %q; want %q", test.status, test.stderr, err, test.want)
		}
	}
}

// TestFullLog has a full disk for the messages.
func TestFullLog(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no file that is always full: %v", err)
	}
	defer full.Close()
	dir := flashtest.MountDPUs(t, &flashtest.DPU{Says: flashtest.Boots})[0]
	parts, _ := some(1000)
	v, err := At(dir).Push(t.Context(), parts, patient, full)
	if err != nil || v.Outcome != Up || len(v.Errors) != 1 || !strings.Contains(v.Errors[0], "no space left") {
		t.Errorf("verdict %+v, %v; want that it is up, and one error that names the lack of space", v, err)
	}
}

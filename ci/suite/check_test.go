package suite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"

	"slipway/ci/report"
	"slipway/ci/suite/match"
	"slipway/ci/suite/suitetest"
	"slipway/layers/plaintext"
)

// runOneCheck runs the one check of a suite.
func runOneCheck(t *testing.T, board Board, suite string) report.CheckResult {
	t.Helper()
	s, err := Load(suitetest.WriteSuite(t, map[string]string{"main.yml": suite}))
	if err != nil {
		t.Fatal(err)
	}
	session := Session{Board: board}
	return session.RunCheck(t.Context(), s.Checks[0])[0]
}

func TestCommandAndFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a file"), []byte("one\ntwo\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a file", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	const none = "no such command here"
	for _, tt := range []struct{ suite, want string }{
		{"command: {'true': {}}", "passed: exit status 0"},
		{"command: {echo hi: {stdout: [hi], stderr: []}}", "passed: exit status 0; stdout: hi"},
		{"command: {'echo a; echo b': {stdout: [a]}}", "passed: exit status 0; stdout: \n  a\n  b"},
		{"command: {x: {argv: [echo, 'a; b $HOME']}}", "passed: exit status 0"},
		{"command: {'exit 3': {exit-status: {gt: 2}}}", "passed: exit status 3"},
		{"command: {'echo out; echo err >&2; exit 3': {stdout: [other]}}", "failed: exit status 3\nstdout: out\nstderr: err / exit status: 0\nstdout: a line with \"other\""},
		{"command: {'false': {}}", "failed: exit status 1, no output / exit status: 0"},
		{"command: {'exec sleep 60': {timeout: 200}}", "failed: no answer in time (200ms) / an answer"},
		{"command: {'false': {skip: true}}", "skipped: the suite says skip"},
		{"file: {x: {path: $D/a file, mode: '0640', uid: {ge: 0}, filetype: file, size: 8, owner: $U, contents: [one, '!three']}}", "passed: $D/a file exists; mode 0640; a file; 8 bytes; owner $U; uid $I; contents: \n  one\n  two"},
		{"file: {$D/a file: {mode: '0600', contents: [three]}}", "failed: mode 0640\ncontents: \n  one\n  two / mode: \"0600\"\ncontents: a line with \"three\""},
		{"file: {$D/a file: {sha256: 5bcd7a2e3b1f}}", "failed: sha256 c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8 / sha256: \"5bcd7a2e3b1f\""},
		{"file: {$D/link: {filetype: symlink, linked-to: a file, contains: ['/^t/']}}", "passed: $D/link exists; a symlink; links to a file; contents: \n  one\n  two"},
		{"file: {$D: {filetype: file}}", "failed: a directory / filetype: \"file\""},
		{"file: {$D/none: {}}", "failed: $D/none does not exist / $D/none exists"},
		{"file: {$D/none: {exists: false}}", "passed: $D/none does not exist"},
		{"file: {$D/link: {exists: false}}", "failed: $D/link exists / $D/link does not exist"},
		{"file: {/dev/null: {filetype: character-device, mode: '0666'}}", "passed: /dev/null exists; mode 0666; a character-device"},
		{"mount: {/proc: {filesystem: proc, opts: [rw], vfs-opts: [rw]}}", ""},
		{"mount: {/proc: {filesystem: ext4}}", "failed: proc / filesystem: \"ext4\""},
		{"mount: {$D: {}}", "failed: nothing is mounted on $D / a file system is mounted on $D"},
		{"mount: {$D: {exists: false}}", "passed: nothing is mounted on $D"},
		{"clock: {now: {within: 2}}", ""},
		{"command: {'printf \"a\\033[31mb\\007c\\377d\\200\"': {stdout: [b]}}", "passed: exit status 0; stdout: abc�d�"},
		{"command: {'yes | head -c 100000': {stdout: [n]}}", none},
	} {
		fill := strings.NewReplacer("$D", dir, "$U", fileOwner(t, dir), "$I", fmt.Sprint(os.Getuid()))
		r := runOneCheck(t, localBoard{}, fill.Replace(tt.suite))
		want := fill.Replace(tt.want)
		switch {
		case tt.want == "" && r.Status == report.Passed:
		case tt.want == none && r.Status == report.Failed && len(r.Saw) < 2*report.MaxSawBytes && strings.Contains(r.Saw, "bytes more"):
		case suitetest.FormatResult(r) != want:
			t.Errorf("%s\n got %q\nwant %q", tt.suite, suitetest.FormatResult(r), want)
		}
	}
}

func fileOwner(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("stat", "-c", "%U", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return plaintext.TrimNewline(string(out))
}

// These are answers of a board with Debian 13.
const (
	mountLines = "24 1 254:3 / / rw,noatime shared:1 - ext4 /dev/vda3 rw\n" +
		"31 24 254:5 / /data rw,noatime shared:2 - ext4 /dev/vda5 rw\n" +
		"32 24 0:5 / /with\\040space ro - tmpfs tmpfs rw,size=4k\n" +
		"33 24 0:6 / /data ro - tmpfs above rw\n"
	uevents = "/sys/block/vda/vda1/uevent:MAJOR=254\n/sys/block/vda/vda1/uevent:MINOR=1\n/sys/block/vda/vda1/uevent:DEVNAME=vda1\n" +
		"/sys/block/vda/vda1/uevent:DEVTYPE=partition\n/sys/block/vda/vda1/uevent:PARTN=1\n/sys/block/vda/vda1/uevent:PARTNAME=loader\n" +
		"/sys/block/vda/vda10/uevent:MAJOR=254\n/sys/block/vda/vda10/uevent:MINOR=10\n/sys/block/vda/vda10/uevent:DEVNAME=vda10\n" +
		"/sys/block/vda/vda10/uevent:DEVTYPE=partition\n/sys/block/vda/vda10/uevent:PARTN=10\n/sys/block/vda/vda10/uevent:PARTNAME=data\n" +
		"/sys/block/vda/vda3/uevent:MAJOR=254\n/sys/block/vda/vda3/uevent:MINOR=3\n/sys/block/vda/vda3/uevent:DEVNAME=vda3\n" +
		"/sys/block/vda/vda3/uevent:DEVTYPE=partition\n/sys/block/vda/vda3/uevent:PARTN=3\n/sys/block/vda/vda3/uevent:PARTNAME=rootA\n" +
		"/sys/block/vdb/vdb1/uevent:MAJOR=254\n/sys/block/vdb/vdb1/uevent:MINOR=17\n/sys/block/vdb/vdb1/uevent:DEVNAME=vdb1\n" +
		"/sys/block/vdb/vdb1/uevent:DEVTYPE=partition\n/sys/block/vdb/vdb1/uevent:PARTN=1\n/sys/block/vdb/vdb1/uevent:PARTNAME=loader\n"
	listFailed = "systemctl list-units --state=failed"
	isRunning  = "systemctl is-system-running --wait"
)

func TestRecordedBoards(t *testing.T) {
	disk := suitetest.Recorded{"cat /proc/self/mountinfo": mountLines, "sh -c grep": uevents, "cat /proc/cmdline": "quiet rauc.slot=A ro\n"}
	for _, tt := range []struct {
		name  string
		board suitetest.Recorded
		suite string
		want  string
	}{
		{"all up", suitetest.Recorded{isRunning: "running\n", listFailed: ""}, "units: {x: }", `passed: system is "running"; no failed units`},
		{"a unit failed", suitetest.Recorded{
			isRunning: "exit 1\ndegraded\n", listFailed: "bad.service loaded failed failed Bad\n",
			"journalctl": "[ 7.1] virt bad[9]: \x1b[31mboom\x1b[0m\n[ 7.2] virt systemd[1]: bad.service: Failed\n",
		}, "units: {x: }", "failed: system is \"degraded\"\nbad.service failed; its last lines:\n  [ 7.1] virt bad[9]: boom\n  [ 7.2] virt systemd[1]: bad.service: Failed / system is \"running\"\nbad.service has not failed"},
		{"a unit that may fail", suitetest.Recorded{isRunning: "exit 1\ndegraded\n", listFailed: "bad.service loaded failed failed Bad\n"}, "units: {x: {ignore: [bad.service]}}", `passed: system is "degraded"; no failed units`},
		{"many units failed", suitetest.Recorded{
			isRunning: "exit 1\ndegraded\n", listFailed: strings.Repeat("bad.service loaded failed failed Bad\n", 1000), "journalctl": strings.Repeat("x", 100000),
		}, "units: {x: }", "long"},
		{"a service that runs", suitetest.Recorded{"systemctl show": "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nResult=success\n"}, "service: {ssh: {running: true, enabled: true}}", "passed: unit file is enabled; active (running)"},
		{"a service that failed", suitetest.Recorded{"systemctl show": "LoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=disabled\nResult=exit-code\n"}, "service: {ssh: {running: true, enabled: true}}", "failed: unit file is disabled\nfailed (failed), result: exit-code / enabled\nrunning"},
		{"no such service", suitetest.Recorded{"systemctl show": "LoadState=not-found\nActiveState=inactive\nSubState=dead\n"}, "service: {ssh: {running: true}}", "failed: ssh.service is not known to systemd / ssh.service is installed"},
		{"a service that must be off", suitetest.Recorded{"systemctl show": "LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"}, "service: {ssh: {running: false, enabled: false}}", "passed: unit file is absent; inactive (dead)"},
		{"the disk", disk, "disk: {x: {labels: [loader, rootA, data], root: [rootA, rootB], slot: [A, B]}}", "passed: vda has loader, rootA, data; root is on rootA (vda3); slot A is booted"},
		{"another order", disk, "disk: {x: {labels: [rootA, loader]}}", "failed: vda has loader, rootA, data / partitions rootA, loader"},
		{"another root and slot", disk, "disk: {x: {root: [rootB], slot: [B]}}", "failed: root is on rootA (vda3)\nslot A is booted / root on rootB\nbooted from slot B"},
		{"no slot", suitetest.Recorded{"cat /proc/self/mountinfo": mountLines, "sh -c grep": uevents, "cat /proc/cmdline": "quiet\n"}, "disk: {x: {slot: [A]}}", "failed: the kernel's command line names no slot: quiet / booted from slot A"},
		{"root on no partition", suitetest.Recorded{"cat /proc/self/mountinfo": "1 0 0:1 / / rw - overlay over rw\n", "sh -c grep": uevents}, "disk: {x: {root: [rootA]}}", "failed: root is \"over\" (overlay), which is no partition / root is on a partition"},
		{"the upper of two mounts", disk, "mount: {/data: {filesystem: tmpfs, source: above}}", "passed: a file system is mounted on /data; tmpfs; from above"},
		{"a mount with a space", disk, "mount: {/with space: {opts: [ro], vfs-opts: [size=4k]}}", "passed: a file system is mounted on /with space; opts ro; vfs-opts rw,size=4k"},
		{"a clock of 1970", suitetest.Recorded{"date": "61\n"}, "clock: {x: }", "long"},
		{"a clock that talks", suitetest.Recorded{"date": "noon\n", "true": ""}, "clock: {x: }", "failed: date answered \"noon\\n\" / an answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := runOneCheck(t, tt.board, tt.suite)
			if tt.want == "long" {
				if r.Status != report.Failed || len(r.Saw) > 2*report.MaxSawBytes || r.Next == "" {
					t.Errorf("%+v", r)
				}
				return
			}
			if diff := cmp.Diff(tt.want, suitetest.FormatResult(r)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestClockOffset(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, tt := range []struct {
		name           string
		shown          time.Time
		sent, received time.Duration
		want           time.Duration
	}{
		{"the same second", at, 200 * time.Millisecond, 400 * time.Millisecond, 0},
		{"a slow answer", at, -10 * time.Second, 10 * time.Second, 0},
		{"ahead", at.Add(10 * time.Second), 0, time.Second, 9 * time.Second},
		{"behind", at.Add(-10 * time.Second), 0, time.Second, -9 * time.Second},
	} {
		if got := clockOffset(tt.shown, at.Add(tt.sent), at.Add(tt.received)); got != tt.want {
			t.Errorf("%s: clockOffset = %v; want %v", tt.name, got, tt.want)
		}
	}
}

// FuzzBoardAnswers checks that no answer of a board causes a panic.
func FuzzBoardAnswers(f *testing.F) {
	f.Add(mountLines)
	f.Add(uevents)
	f.Add("1 2 3 \\777 \\04 \\0400 - - - -\n")
	f.Add("81a4 8 root root 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, _ := mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
		var found Finding
		disk{labels: []string{"a"}, root: []string{"b"}}.checkLayout(&found, parsePartitions(text), mounts)
		_ = file{size: match.Equals(8)}.checkStat(&found, text)
		bootedSlot(text)
		if id := identityOf(map[string]string{"/etc/os-release": text, "/proc/uptime": text}); len(id.OS) > len(text) {
			t.Fatalf("identityOf made %d bytes of %d", len(id.OS), len(text))
		}
		if got := plaintext.Clean(text, 100); len(got) > 400 {
			t.Fatalf("clean kept %d bytes", len(got))
		}
	})
}

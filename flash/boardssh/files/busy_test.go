package files

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// writers are the processes that have a file open for writing.
func writers(t *testing.T, name string) (pids []string) {
	t.Helper()
	var file unix.Stat_t
	if err := unix.Stat(name, &file); err != nil {
		t.Fatal(err)
	}
	open, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		var st unix.Stat_t
		if unix.Stat(fd, &st) != nil || st.Dev != file.Dev || st.Ino != file.Ino {
			continue
		}
		if info, err := os.Lstat(fd); err == nil && info.Mode()&0o200 != 0 {
			pids = append(pids, fd)
		}
	}
	return pids
}

const externalSFTP = "Subsystem sftp /usr/lib/openssh/sftp-server"

// A program can be run as soon as it was sent: no process of the server has it open.
func TestSentFilesAreClosed(t *testing.T) {
	for name, settings := range map[string][]string{"internal": nil, "external": {externalSFTP}, "shell": {"Subsystem sftp /bin/false"}} {
		t.Run(name, func(t *testing.T) {
			c := boardtest.Connect(t, settings...)
			remote := filepath.Join(t.TempDir(), "program")
			for _, size := range []int{10, smallPacket, 3 << 20, severalBytes + 1} {
				if _, err := PutBytes(t.Context(), c, sshtest.RandomBytes(size), remote, 0o755); err != nil {
					t.Fatal(err)
				}
				if held := writers(t, remote); len(held) > 0 {
					t.Fatalf("%d bytes: open for writing: %q", size, held)
				}
			}
		})
	}
}

// Also where a connection broke off or stalled during the transfer, and its process continues.
func TestFilesOfBrokenStreamsAreClosed(t *testing.T) {
	s := sshtest.StartSSHD(t, externalSFTP)
	for name, stall := range map[string]bool{"stalls": true, "breaks off": false} {
		t.Run(name, func(t *testing.T) {
			other, _ := boardtest.StartRelay(t, boardtest.AddressOf(s), 1<<20, stall)
			c, lead := dialSwitched(t, boardtest.AddressOf(s))
			lead(other.Port)
			remote := filepath.Join(t.TempDir(), "program")
			if _, err := PutBytes(t.Context(), c, sshtest.RandomBytes(severalBytes+1), remote, 0o755); err != nil {
				t.Fatal(err)
			}
			if held := writers(t, remote); len(held) > 0 {
				t.Errorf("open for writing: %q", held)
			}
		})
	}
}

// What an earlier upload brought before it was killed may be open there for long.
func TestResumedProgramIsClosed(t *testing.T) {
	c := boardtest.Connect(t, externalSFTP)
	dir := t.TempDir()
	data := sshtest.RandomBytes(resumeBytes + 1)
	src, remote := sshtest.WriteFile(t, data), filepath.Join(dir, "program")
	f, opened, err := openSource(src)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id, err := opened.sourceID(remote)
	if err != nil {
		t.Fatal(err)
	}
	b, err := openChannel(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	part := hiddenName(remote, id)
	if _, err := b.createFile(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	if _, err := b.openFile(part); err != nil { // and it stays open
		t.Fatal(err)
	}
	if _, err := Put(t.Context(), c, src, remote, 0o755); err != nil {
		t.Fatal(err)
	}
	if held := writers(t, remote); len(held) > 0 {
		t.Errorf("open for writing: %q", held)
	}
	sshtest.CheckFile(t, remote, data, 0o755)
}

// The same for each of a folder, while other programs are started all the time.
// SLIPWAY_LONG=1 does it 300 times.
func TestSentProgramsRunAtOnce(t *testing.T) {
	rounds := 5
	if os.Getenv("SLIPWAY_LONG") != "" {
		rounds = 300
	}
	for _, settings := range [][]string{nil, {externalSFTP}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			c := boardtest.Connect(t, settings...)
			local, remote := t.TempDir(), t.TempDir()
			for round := range rounds {
				for i := range 4 {
					script := fmt.Sprintf("#!/bin/sh\necho %d.%d\n#%s", round, i, strings.Repeat("x", i*(smallBytes/2)))
					name := filepath.Join(local, strconv.Itoa(i))
					if err := os.WriteFile(name, []byte(script), fs.FileMode(0o755)); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := PutDir(t.Context(), c, local, remote, DirOptions{}); err != nil {
					t.Fatal(err)
				}
				for i := range 4 {
					r, err := c.Run(t.Context(), filepath.Join(remote, strconv.Itoa(i)))
					if err != nil || string(r.Stdout) != fmt.Sprintf("%d.%d\n", round, i) {
						t.Fatalf("round %d: %q %q, %v", round, r.Stdout, r.Stderr, err)
					}
				}
			}
		})
	}
}

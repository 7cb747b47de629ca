package inject

import (
	"errors"
	"os"
	"reflect"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseIDMap(t *testing.T) {
	tests := []struct {
		name, text string
		want       idMap
		wantErr    error
	}{
		{"one range", "         0     100000      65536\n", idMap{100000, []idRange{{0, 100000, 65536}}}, nil},
		{"the root comes last", "1 100000 65535\n0 1000 1\n", idMap{1000, []idRange{{1, 100000, 65535}, {0, 1000, 1}}}, nil},
		{"a range that the hook's namespace lacks", "0 1000 1\n1 4294967295 10\n", idMap{1000, []idRange{{0, 1000, 1}}}, nil},
		{"a root that the hook's namespace lacks", "0 4294967295 1\n", idMap{}, errNoRoot},
		{"no root", "1 100000 65536\n", idMap{ranges: []idRange{{1, 100000, 65536}}}, errNoRoot},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseIDMap(tt.text)
			if !errors.Is(err, tt.wantErr) || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("parseIDMap(%q) = %v, %v; want %v, %v", tt.text, got, err, tt.want, tt.wantErr)
			}
		})
	}
	for _, text := range []string{"", "0 1", "0 -1 1", "0 4294967296 1", "a b c"} {
		if got, err := parseIDMap(text); err == nil {
			t.Errorf("parseIDMap(%q) = %v; want an error", text, got)
		}
	}
}

func TestIDMapHas(t *testing.T) {
	m := idMap{0, []idRange{{0, 1000, 1}, {1, 4294967290, 5}}}
	for id, want := range map[uint32]bool{0: false, 999: false, 1000: true, 1001: false, 4294967290: true, 4294967294: true, 4294967295: false} {
		if got := m.hasID(id); got != want {
			t.Errorf("has(%d) = %v; want %v", id, got, want)
		}
	}
}

// rights are the thread's file ids and effective capabilities.
func rights(t *testing.T) [4]int {
	t.Helper()
	uid, _ := unix.SetfsuidRetUid(-1)
	gid, _ := unix.SetfsgidRetGid(-1)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(t, unix.Capget(&header, &data[0]))
	return [4]int{uid, gid, int(data[0].Effective), int(data[1].Effective)}
}

// The hook has its own rights back after each thing that it makes for the
// container's root, also where that failed.
func TestOwnerGivesBack(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it acts as another user")
	}
	runtime.LockOSThread()
	dir, err := os.Open(t.TempDir())
	must(t, err)
	defer dir.Close()
	must(t, dir.Chown(5, 5))
	for _, root := range []uint32{100000, 0} {
		ids := idMap{root, []idRange{{0, root, 1}}}
		o, failed, before := &owner{ids, ids}, errors.New("failed"), rights(t)
		err = o.runIn(dir, func() error {
			if now := rights(t); now[0] != int(root) || now[1] != int(root) || now[2]&fsCaps != 0 {
				t.Errorf("rights %x; want those of user %d in a folder that is another's", now, root)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Errorf("in = %v; want the error of what was run", err)
		}
		if after := rights(t); after != before {
			t.Errorf("rights %x; want %x as before", after, before)
		}
	}
}

package device

import (
	"fmt"
	"strings"
	"testing"
)

// The disk that is there is named.
func TestNearestDisk(t *testing.T) {
	m := fake(t, laptop)
	for name, want := range map[string]string{"dev/sda": "/dev/sda", "/dev/sdaa": "/dev/sda", "root@host:/dev/mmcblk0": "/dev/mmcblk0", "sda": "/dev/sda", "nvme1n2": "/dev/nvme"} {
		if _, err := m.newFile(name, false); err == nil || !strings.Contains(err.Error(), "did you mean "+want) {
			t.Errorf("%s: %v; want %s named", name, err, want)
		}
	}
	if _, err := m.newFile("nvme0n1x", false); err == nil || strings.Contains(err.Error(), "nvme0n1?") {
		t.Errorf("nvme0n1x: %v; want the system's disk not named", err)
	}
	if got := fmt.Sprint(m.newFile("file.bin", true)); !strings.Contains(got, "file.bin") {
		t.Errorf("a file that is meant: %s", got)
	}
}

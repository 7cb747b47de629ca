package device

import (
	"strings"
	"testing"
)

func TestNamesOfFiles(t *testing.T) {
	m := fake(t, laptop)
	for _, name := range []string{"dev/sda", "/dev/sdaa", "root@host:/dev/mmcblk0", "sda", "nvme1n2", "nvme0n1x"} {
		if _, err := m.newFile(name, false); err == nil || !strings.HasSuffix(err.Error(), "\nnext: devices") {
			t.Errorf("newFile(%s) = %v; want an error that leads to the devices", name, err)
		}
	}
	if d, err := m.newFile("file.bin", true); err != nil || !strings.HasSuffix(d.Path, "/file.bin") {
		t.Errorf("newFile(file.bin), which is meant, = %+v, %v", d, err)
	}
}

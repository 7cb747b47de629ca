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
	for name, want := range map[string]string{"rshim0": "/dev/rshim0", "1-2.3": "usb:1-2.3", "usb1-2": "usb:1-2"} {
		if _, err := m.newFile(name, false); err == nil || !strings.HasSuffix(err.Error(), "\nnext: repeat the line with "+want+" for "+name) {
			t.Errorf("newFile(%s) = %v; want a line with %s", name, err, want)
		}
	}
	if d, err := m.newFile("1-2", true); err != nil || !strings.HasSuffix(d.Path, "/1-2") {
		t.Errorf("newFile(1-2), which is meant, = %+v, %v", d, err)
	}
	if d, err := m.newFile("file.bin", true); err != nil || !strings.HasSuffix(d.Path, "/file.bin") {
		t.Errorf("newFile(file.bin), which is meant, = %+v, %v", d, err)
	}
}

package inject

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A path that an image's cache names is anything. Only an empty file of the container's
// own layer goes, and only where no other container can have a mount on it.
func TestRemoveBlank(t *testing.T) {
	tests := []struct {
		name    string
		path    string
		overlay bool
		want    bool // it is a blank
		gone    bool
	}{
		{"a blank", "/opt/lib/blank", true, true, true},
		{"through the image's link", "/opt/way/blank", true, true, true},
		{"a root that containers may share", "/opt/lib/blank", false, true, false},
		{"a link to one", "/opt/lib/link", true, true, false},
		{"a library", "/opt/lib/full", true, false, false},
		{"a folder", "/opt/lib", true, false, false},
		{"nothing", "/opt/gone/blank", true, false, false},
		{"a volume's", "/opt/volume/blank", true, true, false},
		{"a volume's through a link", "/opt/voyage/blank", true, true, false},
		{"the kernel's", "/proc/sys/kernel/hostname", true, true, false},
		{"the board's through a link out of the image", "/opt/out/blank", true, false, false},
		{"a FIFO", "/opt/lib/fifo", true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			board, rootfs := stage(t)
			must(t, os.WriteFile(board+"/blank", nil, 0o644))
			if tt.overlay {
				dir := filepath.Dir(board)
				must(t, os.Mkdir(dir+"/upper", 0o755))
				must(t, os.Mkdir(dir+"/work", 0o755))
				must(t, unix.Mount("overlay", rootfs, "overlay", 0, "lowerdir="+rootfs+",upperdir="+dir+"/upper,workdir="+dir+"/work"))
			}
			for _, dir := range []string{"/opt/lib", "/opt/volume", "/proc"} {
				must(t, os.MkdirAll(rootfs+dir, 0o755))
			}
			for name, text := range map[string]string{"blank": "", "full": "library"} {
				must(t, os.WriteFile(rootfs+"/opt/lib/"+name, []byte(text), 0o644))
			}
			for name, target := range map[string]string{"lib/link": "blank", "way": "lib", "voyage": "volume", "out": board} {
				must(t, os.Symlink(target, rootfs+"/opt/"+name))
			}
			must(t, unix.Mkfifo(rootfs+"/opt/lib/fifo", 0o644))
			must(t, unix.Mount(board, rootfs+"/opt/volume", "", unix.MS_BIND, ""))
			must(t, unix.Mount("proc", rootfs+"/proc", "proc", 0, ""))
			r, err := Process{}.Open(rootfs)
			must(t, err)
			defer r.Close()
			if got := r.RemoveBlank(tt.path); got != tt.want {
				t.Errorf("RemoveBlank(%q) = %v; want %v", tt.path, got, tt.want)
			}
			_, err = os.Lstat(rootfs + "/opt/lib/blank")
			if gone := err != nil; gone != tt.gone {
				t.Errorf("the blank is gone: %v; want %v", gone, tt.gone)
			}
			for _, p := range []string{board + "/blank", rootfs + "/opt/lib/link", rootfs + "/opt/lib/full", rootfs + "/opt/lib/fifo"} {
				if _, err := os.Lstat(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

package inject

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A path that an image's cache names is anything.
func TestIsBlank(t *testing.T) {
	board, rootfs := stage(t)
	must(t, os.MkdirAll(rootfs+"/opt/lib", 0o755))
	for name, text := range map[string]string{"blank": "", "full": "library"} {
		must(t, os.WriteFile(rootfs+"/opt/lib/"+name, []byte(text), 0o644))
	}
	must(t, os.WriteFile(board+"/blank", nil, 0o644))
	for name, target := range map[string]string{"lib/link": "blank", "way": "lib", "out": board} {
		must(t, os.Symlink(target, rootfs+"/opt/"+name))
	}
	must(t, unix.Mkfifo(rootfs+"/opt/lib/fifo", 0o644))
	r, err := Process{}.Open(rootfs)
	must(t, err)
	defer r.Close()
	for path, want := range map[string]bool{
		"/opt/lib/blank": true, "/opt/way/blank": true, "/opt/lib/link": true,
		"/opt/lib/full": false, "/opt/lib": false, "/opt/lib/fifo": false, "/opt/gone/blank": false,
		"/opt/out/blank": false, // the board's, by a link out of the image
	} {
		if got := r.IsBlank(path); got != want {
			t.Errorf("IsBlank(%q) = %v; want %v", path, got, want)
		}
	}
}

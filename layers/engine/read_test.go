package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	large := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(large, []byte(strings.Repeat("x", 2048)), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadFile(large, 2048); err != nil || len(data) != 2048 {
		t.Errorf("a file of the limit: %d bytes, %v", len(data), err)
	}
	for name, want := range map[string]string{
		large:             large + ": larger than 1 KiB; is it the right file?",
		"/proc/cmdline/x": "open /proc/cmdline/x: ",
		"/":               "read /: is a directory",
	} {
		if data, err := ReadFile(name, 1024); data != nil || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("ReadFile(%s) = %d bytes, %v; want %q", name, len(data), err, want)
		}
	}
	endless := strings.NewReader(strings.Repeat("x", 1<<20))
	if _, err := ReadAll(endless, "a", 1024); err == nil || endless.Len() != 1<<20-1025 {
		t.Errorf("ReadAll: %v; it left %d bytes unread", err, endless.Len())
	}
}

package qemu

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A trial that failed once, because the machine was busy, must not decide for ever.
func TestRemembered(t *testing.T) {
	tests := []struct {
		name, content string
		age           time.Duration
		want          string
	}{
		{"kvm", "kvm", 1000 * time.Hour, KVM},
		{"tcg, new", "tcg", time.Hour, TCG},
		{"tcg, old", "tcg", 25 * time.Hour, ""},
		{"tcg, of tomorrow", "tcg", -time.Hour, ""},
		{"something else", "kvm,dirty-ring-size=1", 0, ""},
		{"nothing", "", 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "kvm")
			if err := os.WriteFile(file, []byte(tt.content), 0o644); err != nil {
				t.Fatal(err)
			}
			at := time.Now().Add(-tt.age)
			if err := os.Chtimes(file, at, at); err != nil {
				t.Fatal(err)
			}
			if got := cachedTrial(file); got != tt.want {
				t.Errorf("remembered %q of %s ago = %q; want %q", tt.content, tt.age, got, tt.want)
			}
		})
	}
	if got := cachedTrial(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("remembered without a file = %q", got)
	}
}

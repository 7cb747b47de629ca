package boardssh

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// A pipe has no size: what counts is how much comes out of it.
func TestLimitOfFilesWithoutSize(t *testing.T) {
	for _, test := range []struct {
		name string
		most int
		read func(file string) error
	}{
		{"a key", maxKeyBytes, func(file string) error { _, err := readIdentity(file); return err }},
		{"known hosts", maxTrustBytes, func(file string) error { _, err := readKnownHosts([]string{file}); return err }},
		{"revoked keys", maxTrustBytes, func(file string) error { return checkRevoked(t.Context(), file, nil) }},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, _ = w.Write(make([]byte, test.most+1<<20)) // ends where nobody reads on
			w.Close()
		}()
		pipe := fmt.Sprintf("/proc/self/fd/%d", r.Fd()) // as a shell names that of <(...)
		if err := test.read(pipe); err == nil || !strings.Contains(err.Error(), pipe+": larger than") {
			t.Errorf("%s: %v", test.name, err)
		}
		r.Close()
		<-written
	}
}

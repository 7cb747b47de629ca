package files

import (
	"os"
	"path/filepath"
	"testing"

	"slipway/flash/boardssh/boardtest"
	"slipway/flash/boardssh/sshtest"
)

// The digest that is computed during the transfer is that of the whole file, by GNU's programs,
// by busybox's, and where none is at hand the file is proved in another stream.
func TestDigestAlong(t *testing.T) {
	data := sshtest.RandomBytes(24<<20 + 77)
	for name, tt := range map[string]struct {
		settings []string
		want     bool
	}{
		"GNU":     {want: true},
		"busybox": {settings: []string{sshtest.OnlyBusybox(t)}, want: true},
		"nothing": {settings: []string{fakeDigests(t, nil)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := boardtest.Connect(t, tt.settings...)
			local := sshtest.WriteFile(t, data)
			file, err := os.Open(local)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			q := newQueue(wholeFile(int64(len(data))), func(int64) {})
			f := startBoardDigest(t.Context(), c, local, local, int64(len(data)), q)
			defer f.stopProgram()
			for {
				p, ok := q.nextPiece(t.Context(), 1<<20)
				if !ok {
					break
				}
				q.recordAnswer(p, nil)
			}
			want := ""
			if tt.want {
				want = (<-source{data: file, size: int64(len(data))}.startDigest()).hex
			}
			if got := f.waitForDigest(t.Context()).digest; got != want {
				t.Errorf("the digest is %q; want %q", got, want)
			}
			remote := filepath.Join(t.TempDir(), "f")
			if _, err := Put(t.Context(), c, local, remote, 0o600); err != nil {
				t.Fatal(err)
			}
			sshtest.CheckFile(t, remote, data, 0o600)
		})
	}
}

func TestFront(t *testing.T) {
	q := newQueue(wholeFile(100), func(int64) {})
	first, _ := q.nextPiece(t.Context(), 10)
	second, _ := q.nextPiece(t.Context(), 10)
	steps := []struct {
		do   func()
		want int64
	}{
		{func() {}, 0},
		{func() { q.recordAnswer(second, nil) }, 0},
		{func() { q.recordAnswer(first, nil) }, 20},
		{func() { p, _ := q.nextPiece(t.Context(), 30); q.recordAnswer(p, errShrunk) }, 20},
		{func() { p, _ := q.nextPiece(t.Context(), 80); q.recordAnswer(p, nil) }, 50},
		{func() { p, _ := q.nextPiece(t.Context(), 80); q.recordAnswer(p, nil) }, 100},
	}
	for i, step := range steps {
		step.do()
		if got := q.contiguousBytes(100); got != step.want {
			t.Errorf("step %d: there are %d bytes without a gap; want %d", i, got, step.want)
		}
	}
}

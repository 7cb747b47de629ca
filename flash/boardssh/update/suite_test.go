package update_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/flash/boardssh"
	"slipway/flash/boardssh/update"
)

// board is a board that has the engine under test.
type board struct {
	Conn *boardssh.Conn
	Bus  string // its D-Bus, "" where it has none

	Name    string            // how the engine's name begins
	Good    string            // a bundle that it takes, with the version 2
	Refused map[string]string // bundles that it must not take, by what is wrong with them

	Running func() string // what is in the slot that runs
	Other   func() string // what is in the slot that does not
	New     string        // what is in a slot after Good
	Restart func()        // starts what the boot loader would start next
}

// makeFile makes a file of that size at least that has the form of a bundle of RAUC's,
// and is not one: enough for whoever only carries it.
func makeFile(t *testing.T, sizeBytes int) string {
	t.Helper()
	text, err := os.ReadFile("testdata/verity.cms")
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, sizeBytes)
	rand.Read(data)
	copy(data, "hsqs")
	data = binary.BigEndian.AppendUint64(append(data, signature...), uint64(len(signature)))
	name := filepath.Join(t.TempDir(), "bundle.raucb")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// runSuite is the suite that every engine runs: what update.Engine promises, in the order of an update.
func runSuite(t *testing.T, b board) {
	e, err := update.FindEngine(t.Context(), b.Conn, b.Bus)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(e.Name(), b.Name) {
		t.Fatalf("Name() = %q; want %s", e.Name(), b.Name)
	}
	before := status(t, e)
	booted, ok := before.BootedSlot()
	if !ok || before.WaitsForRestart() {
		t.Fatalf("at first Status() = %+v; want one slot that runs, and nothing that waits", before)
	}
	for wrong, file := range b.Refused {
		t.Run(wrong, func(t *testing.T) { refused(t, b, e, file) })
	}
	t.Run("no file", func(t *testing.T) {
		if _, err := update.OpenBundle(t.Context(), filepath.Join(t.TempDir(), "none")); err == nil {
			t.Error("Open() worked")
		}
	})
	installed(t, b, e)
	if b.Other() != b.New {
		t.Errorf("the slot holds %q; want %q", b.Other(), b.New)
	}
	b.Restart()
	after := status(t, e)
	if now, _ := after.BootedSlot(); len(before.Slots) > 1 && now.Name == booted.Name {
		t.Errorf("after the restart Status() = %+v; want another slot than %s to run", after, booted.Name)
	}
	if err := e.MarkGood(t.Context()); err != nil {
		t.Errorf("MarkGood() = %v", err)
	}
	if s := status(t, e); s.WaitsForRestart() {
		t.Errorf("after MarkGood Status() = %+v; want nothing that waits", s)
	}
	if err := e.MarkBad(t.Context()); err != nil {
		t.Errorf("MarkBad() = %v", err)
	}
	if s := status(t, e); len(s.Slots) > 1 && s.Primary != booted.Name {
		t.Errorf("after MarkBad Status() = %+v; want %s to be next", s, booted.Name)
	}
}

func status(t *testing.T, e update.Engine) update.Status {
	t.Helper()
	s, err := e.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// offer opens a bundle and makes it available.
func offer(t *testing.T, b board, e update.Engine, file string) *update.Source {
	t.Helper()
	bundle, err := update.OpenBundle(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bundle.Close() })
	from, err := update.OfferBundle(t.Context(), b.Conn, e, bundle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(from.Close)
	return from
}

func refused(t *testing.T, b board, e update.Engine, file string) {
	runs := b.Running()
	err := e.Install(t.Context(), offer(t, b, e, file), func(int, string) {})
	if err == nil {
		t.Fatal("Install() took it")
	}
	t.Log(err)
	if status(t, e).WaitsForRestart() {
		t.Error("the board waits for a restart into it")
	}
	if got := b.Running(); got != runs {
		t.Errorf("the slot that runs holds %q; want %q", got, runs)
	}
}

func installed(t *testing.T, b board, e update.Engine) {
	t.Helper()
	from := offer(t, b, e, b.Good)
	runs, last := b.Running(), 0
	err := e.Install(t.Context(), from, func(percent int, text string) {
		if percent < last || percent > 100 {
			t.Errorf("%d %% %s after %d %%", percent, text, last)
		}
		last = percent
	})
	if err != nil {
		t.Fatal(err)
	}
	if last != 100 {
		t.Errorf("it ended at %d %%", last)
	}
	if from.ServedBytes() == 0 {
		t.Error("nothing of the bundle went to the board")
	}
	if err := e.WaitUntilIdle(t.Context()); err != nil {
		t.Errorf("WaitUntilIdle() = %v", err)
	}
	if s := status(t, e); len(s.Slots) > 1 && !s.WaitsForRestart() {
		t.Errorf("after Install Status() = %+v; want one slot that waits for a restart", s)
	}
	if got := b.Running(); got != runs {
		t.Errorf("the slot that runs holds %q; want %q", got, runs)
	}
}

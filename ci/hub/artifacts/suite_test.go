package artifacts

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"slipway/layers/bus"
)

// serveAsRegistry does what "docker-registry serve CONFIG" does, for the tests of flash/store.
func serveAsRegistry(config string) error {
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), `addr: "`)
	address, _, _ := strings.Cut(rest, `"`)
	dir := filepath.Join(filepath.Dir(config), "hub")
	keys, err := bus.LoadKeys(dir)
	if err != nil {
		return err
	}
	s, err := bus.Start(bus.ServerOptions{Name: "hub", StoreDir: filepath.Join(dir, "engine"), Keys: keys, Log: os.Stderr})
	if err != nil {
		return err
	}
	nc, err := s.Connect()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	a, err := New(context.Background(), bus.Engine{JetStream: js, Replicas: 1}, 0, func(*http.Request) (string, error) { return "admin", nil })
	if err != nil {
		return err
	}
	return http.ListenAndServe(address, a) //nolint:gosec // a test, ended by its parent
}

// The tests of flash/store that use a registry pass with this one in the place of docker-registry.
// Those of logins and of a setting of docker-registry are its own.
func TestSuiteOfRegistries(t *testing.T) {
	if os.Getenv("CI") == "" {
		t.Skip("CI is not set: flash/store's tests are compiled for it, which takes a minute; run it with CI=1")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(program, filepath.Join(bin, "docker-registry")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "-count=1", "-skip=^(TestLogin|TestRefusedDeletes)$",
		"-run=^(TestPushAndPull|TestPullIntoFolder|TestListAndClean|TestFetchReports|TestCutLine|TestStoppedPull|TestStoppedPush|TestUnknownRepository|TestTooLargeForProxy|TestORAS)$", "slipway/flash/store")
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("the tests of flash/store: %v", err)
	}
	for _, name := range []string{"TestPushAndPull/registry", "TestPullIntoFolder/registry", "TestCutLine", "TestStoppedPull", "TestStoppedPush"} {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not run", name)
		}
	}
}

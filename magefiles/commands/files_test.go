package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/hub/access"
	"slipway/layers/bus"
)

// Each command that reads a file reports a missing file, and where to look for it, before it
// contacts a board or writes anything.
func TestFilesThatAreNotHere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("hosts.yml", []byte("all: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	here, whole := `read "no/such" on this machine: no such file or directory`+"\nnext: ls .", `read "`+dir+`/no/such" on this machine: no such file or directory`+"\nnext: ls "+dir
	for line, want := range map[string]string{
		"bfb list no/such":                                        here,
		"bfb check no/such":                                       here,
		"bfb extract no/such":                                     here,
		"bfb make out.bfb --base=no/such":                         here,
		"bmap no/such":                                            here,
		"doctor --conf=no/such --branch=scarthgap":                here,
		"update virt root@127.0.0.1:1 no/such --yes":              here,
		"deploy container virt root@127.0.0.1:1 no/such":          whole,
		"deploy run virt root@127.0.0.1:1 oci-dir:no/such":        whole,
		"fleet list no/such":                                      here,
		"fleet smoke virt no/such":                                here,
		"fleet update virt hosts.yml no/such --yes":               here,
		"flash virt disk.img --image=no/such":                     whole,
		"flash virt disk.img --image=hosts.yml --signers=no/such": here,
	} {
		err := Run(t.Context(), Root(), strings.Fields(line))
		if err == nil || !strings.HasSuffix(err.Error(), want) || strings.Count(err.Error(), "no/such") != 1 {
			t.Errorf("%s: %v; want it to end with %s, and the name once", line, err, want)
		}
	}
}

// An artifact goes to the hub that the line names, not to the one that was joined last.
func TestHubOfTheLine(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_STATE_HOME", home)
	t.Setenv(access.Variable, "")
	hubs := filepath.Join(home, "slipway", "hubs")
	files := map[string]string{"last": "b:1\n"}
	for _, hub := range []string{"a:1", "b:1"} {
		files[bus.Token(hub)+".json"] = `{"v":1,"hub":"` + hub + `"}`
	}
	if err := os.MkdirAll(hubs, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(hubs, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"b:1", "a:1"} {
		name := strings.TrimPrefix(want, "b:1")
		_ = onHub(t.Context(), name, nil) // nobody answers there
		if r, err := access.Registry(); err != nil || r.Address != want {
			t.Errorf("after --hub=%s, hub: is %q, %v; want %q", name, r.Address, err, want)
		}
		t.Setenv(access.Variable, "")
	}
}

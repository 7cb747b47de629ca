package commands

import (
	"os"
	"strings"
	"testing"
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

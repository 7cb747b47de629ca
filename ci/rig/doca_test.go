package rig

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const frrFiles = "../../recipes/dynamic-layers/networking-layer/frr/files"

// The translation of FRR's rules for DOCA needs neither of them. That the test can
// fail is shown with rules that it must not accept.
func TestDOCARules(t *testing.T) {
	program := compile(t, filepath.Join(frrFiles, "doca"), []string{"check/test_rules.c", "rule.c"})
	text, err := os.ReadFile(filepath.Join(frrFiles, "rules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	rules := 0
	for _, line := range lines {
		if strings.HasPrefix(line, "match ") {
			rules++
		}
	}
	const post = "match src-ip 10.1.0.0/16; match ip-protocol udp; match dst-port 53 | | udp 10.1.0.0/16 to any:"
	for _, tt := range []struct {
		name, file, want string
	}{
		{"all", string(text), fmt.Sprintf("%d rules translated", rules)},
		{"another port", "# one\n\n" + post + "54\n", ":3: want udp 10.1.0.0/16 to any:54\n  got udp 10.1.0.0/16 to any:53\n"},
		{"the kernel's", "match mark 7 | | any any to any\n", ":1: want any any to any\n  got kernel: it matches more"},
		{"not the kernel's", post[:len(post)-len("udp 10.1.0.0/16 to any:")] + "kernel: it is not IPv4\n", ":1: want kernel: it is not IPv4\n  got udp"},
		{"no rule", "match colour blue | | any any to any\n", ":1: no rule that this test can read"},
		{"no state", "match mark 7 | asleep | kernel: it sleeps\n", ":1: no rule that this test can read"},
		{"no outcome", "match mark 7\n", ":1: want a rule, its state and what comes of it"},
		{"a long line", strings.Repeat("match mark 7; ", 50) + "\n", ":1: longer than"},
		{"no rules at all", "# none\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "rules.txt")
			if err := os.WriteFile(file, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), program, file).CombinedOutput()
			if (err == nil) != (tt.name == "all") || !strings.Contains(string(out), tt.want) {
				t.Errorf("test_rules: %v\n%s\nwant %q", err, out, tt.want)
			}
		})
	}
}

// What the plugin asks of DOCA is held against a fake, by declarations of our own. It
// proves nothing about DOCA.
func TestDOCAOffload(t *testing.T) {
	folder := filepath.Join(frrFiles, "doca")
	program := compile(t, folder, []string{"check/test_offload.c", "check/fake.c", "offload.c"}, "-I"+filepath.Join(folder, "check", "include"))
	out, err := exec.CommandContext(t.Context(), program).CombinedOutput()
	if err != nil {
		t.Errorf("test_offload: %v", err)
	}
	if got, want := bytes.Count(out, []byte("PASS: ")), 38; got != want || bytes.Contains(out, []byte("FAIL: ")) {
		t.Errorf("%d tests passed; want %d, and none failed:\n%s", got, want, out)
	}
}

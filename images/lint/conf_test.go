package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	at := func(line, column int) Position { return Position{File: "a.conf", Line: line, Column: column} }
	word := func(line, column int, text string) Word { return Word{at(line, column), text} }
	tests := []struct {
		name, text string
		want       []Statement
		bad        []Position
	}{
		{"all operators", "A=\"1\"\nA ?= '1'\nA??=\"1\"\nA := \"1\"\nA+=\"1\"\nA =+ \"1\"\nA.=\"1\"\nA =. \"1\"\n", []Statement{
			{at(1, 1), "A", "", "=", "1", []Word{word(1, 4, "1")}},
			{at(2, 1), "A", "", "?=", "1", []Word{word(2, 7, "1")}},
			{at(3, 1), "A", "", "??=", "1", []Word{word(3, 6, "1")}},
			{at(4, 1), "A", "", ":=", "1", []Word{word(4, 7, "1")}},
			{at(5, 1), "A", "", "+=", "1", []Word{word(5, 5, "1")}},
			{at(6, 1), "A", "", "=+", "1", []Word{word(6, 7, "1")}},
			{at(7, 1), "A", "", ".=", "1", []Word{word(7, 5, "1")}},
			{at(8, 1), "A", "", "=.", "1", []Word{word(8, 7, "1")}},
		}, nil},
		{"continued", "# list\nI:append = \" a \\\n   b\\\nc \\\n\"\nM = \"x\"", []Statement{
			{at(2, 1), "I:append", "", "=", " a    bc ", []Word{word(2, 14, "a"), word(3, 4, "bc")}},
			{at(6, 1), "M", "", "=", "x", []Word{word(6, 6, "x")}},
		}, nil},
		{"flags, exports, other quotes", "A[doc] = \"it's\"\nexport B = 'say \"x\"'\nexport C\n", []Statement{
			{at(1, 1), "A", "doc", "=", "it's", []Word{word(1, 11, "it's")}},
			{at(2, 8), "B", "", "=", `say "x"`, []Word{word(2, 13, "say"), word(2, 17, `"x"`)}},
			{at(3, 1), "export", "", "", "C", []Word{word(3, 8, "C")}},
		}, nil},
		{"directives, and a variable with such a name", "require conf/x.conf\ninclude = \"1\"\n", []Statement{
			{at(1, 1), "require", "", "", "conf/x.conf", []Word{word(1, 9, "conf/x.conf")}},
			{at(2, 1), "include", "", "=", "1", []Word{word(2, 12, "1")}},
		}, nil},
		{"comments go on too", "# a \\\n# b\nA = \"# no comment\"\n", []Statement{
			{at(3, 1), "A", "", "=", "# no comment", []Word{word(3, 6, "#"), word(3, 8, "no"), word(3, 11, "comment")}},
		}, nil},
		{"a comment that swallows", "# a \\\nA = \"1\"\n", nil, []Position{at(2, 1)}},
		{"what bitbake does not read", "A = 1\n B = \"1\"\nC = \"1\nhello\nD[x = \"1\"\nE = \"1' # x\n", nil, []Position{at(1, 5), at(2, 1), at(3, 5), at(4, 5), at(5, 2), at(6, 5)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, bad, err := parseConf(Source{File: "a.conf", Text: tt.text})
			if err != nil {
				t.Fatal(err)
			}
			var places []Position
			for _, b := range bad {
				places = append(places, b.At)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("parse: (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.bad, places); diff != "" {
				t.Errorf("unread lines: (-want +got)\n%s", diff)
			}
		})
	}
}

// The real bitbake reads the same lines, and stops at the same ones.
func TestParseAsBitbakeDoes(t *testing.T) {
	source := os.Getenv("SLIPWAY_BITBAKE")
	if source == "" {
		t.Skip("SLIPWAY_BITBAKE is not set: it names a git clone of bitbake, 2.0 or later")
	}
	lines := []string{
		`A = "1"`, ` A = "1"`, `A="1"`, `A ??= "1"`, `A:append = " x"`, `A_append = "x"`, `export B = "x"`, `export B`, `A = "x" # c`,
		`A = "a" "b"`, `A = 'it"s'`, `A = "a 'b' c"`, `A[x] = "1"`, `A = x`, `require x.conf`, `  require x.conf`, `include x`, `inherit foo`,
		`A.x = "1"`, `A@x = "1"`, `A = "x"y"`, `A = 'x'y'`, `unset A`, `A .= "1"`, `A.="1"`, `A =. '1'`, `A += ""`, `A = ""`, `A = "`, `= "1"`, `A`, `A == "1"`,
		`A-b+c = "1"`, `${X}/y = "1"`, `A [x] = "1"`, `A[x y] = "1"`, `addtask x`, `A:=':'`,
	}
	const program = `
import sys
sys.path.insert(0, sys.argv[1])
from bb.parse import ast
from bb.parse.parse_py import ConfHandler
for line in sys.stdin:
    try:
        ConfHandler.feeder(1, line.rstrip("\n"), "a.conf", ast.StatementGroup())
        print("read")
    except Exception:
        print("stops")
`
	cmd := exec.Command("python3", "-W", "ignore", "-c", program, filepath.Join(source, "lib"))
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bitbake's parser: %v", err)
	}
	answers := strings.Fields(string(out))
	if len(answers) != len(lines) {
		t.Fatalf("bitbake gave %d answers to %d lines", len(answers), len(lines))
	}
	for i, line := range lines {
		all, err := Check([]Source{{File: "a.conf", Text: line}}, Layers{})
		if got := map[bool]string{true: "stops", false: "read"}[len(all) > 0]; err != nil || got != answers[i] {
			t.Errorf("%s: %s, %v; bitbake: %s", line, got, err, answers[i])
		}
	}
}

func TestParseLimits(t *testing.T) {
	for _, text := range []string{strings.Repeat("#", maxTextBytes+1), strings.Repeat("A=\"\"\n", maxStatements+1), `A="` + strings.Repeat("a ", maxWords+1) + `"`} {
		if _, _, err := parseConf(Source{File: "a.conf", Text: text}); err == nil || !strings.Contains(err.Error(), "a.conf: more than") {
			t.Errorf("parse of %d bytes = %v; want a limit", len(text), err)
		}
	}
}

func FuzzConf(f *testing.F) {
	f.Add("IMAGE_INSTALL_append = \" nvidia-docker \\\n  cuda-container-csv\"\nMACHINE ??= 'jetson-nano'\n")
	f.Add("A[b] += \"${@x}\"\nexport C\nrequire d\n# e \\\nf\n")
	f.Add("IMAGE_INSTALL = \"docker #x\"\nDISTRO_FEATURES:remove:x = \"ldconfig\"")
	f.Fuzz(func(t *testing.T, text string) {
		src := Source{File: "a.conf", Line: 1, Text: text}
		statements, bad, err := parseConf(src)
		if err != nil {
			return
		}
		lines := strings.Split(text, "\n")
		for _, s := range statements {
			for _, w := range s.Words {
				if w.At.Line < 1 || w.At.Line > len(lines) || w.At.Column < 1 || w.At.Column > len(lines[w.At.Line-1]) {
					t.Fatalf("word %q is at %v, which is not in the text", w.Text, w.At)
				}
			}
		}
		for _, b := range bad {
			if b.At.Line < 1 || b.At.Line > len(lines) {
				t.Fatalf("unread line at %v, which is not in the text", b.At)
			}
		}
		for _, branch := range []string{"zeus", "scarthgap", "wrynose"} {
			if _, err := Check([]Source{src}, on(branch)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

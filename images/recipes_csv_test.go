package images

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Runs the part of slipway-csv.bbclass that needs no bitbake.
const csvProgram = `
import json, sys
sys.path.insert(0, "../layers/meta-slipway/lib")
import slipway_csv
answers = []
for asked in json.load(sys.stdin):
    try:
        lines = slipway_csv.of_files(asked["root"], asked["paths"] or []) + slipway_csv.of_extra(asked["extra"])
        answers.append({"lines": lines})
    except ValueError as e:
        answers.append({"error": str(e)})
print(json.dumps(answers))
`

func TestRecipesLibrariesBecomeCSVLines(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH; apt install python3")
	}
	tests := []struct {
		name    string
		tree    map[string]string // a link's value begins with ->
		paths   []string
		extra   string
		want    []string
		wantErr string
	}{
		{
			name:  "a library, its link and what is none",
			tree:  map[string]string{"/usr/lib/liba.so.1.2": "", "/usr/lib/liba.so.1": "->liba.so.1.2", "/usr/share/doc/a": ""},
			paths: []string{"/usr/lib/liba.so.1.2", "/usr/lib/liba.so.1", "/usr/share/doc/a"},
			want:  []string{"lib, /usr/lib/liba.so.1.2", "sym, /usr/lib/liba.so.1"},
		},
		{
			name:  "a link through a link, and by a whole path",
			tree:  map[string]string{"/usr/lib/x/liba.so.1.2": "", "/usr/lib/liba.so.1": "->/usr/lib/x/liba.so.1.2", "/usr/lib/liba.so": "->liba.so.1"},
			paths: []string{"/usr/lib/liba.so.1", "/usr/lib/liba.so"},
			want:  []string{"sym, /usr/lib/liba.so", "sym, /usr/lib/liba.so.1"},
		},
		{
			name:  "links into nothing, to folders and in circles",
			tree:  map[string]string{"/lib/liba.so": "->gone.so", "/lib/libb.so": "->d", "/lib/d/f": "", "/lib/libc.so": "->libc.so", "/lib/libd.so.1": ""},
			paths: []string{"/lib/liba.so", "/lib/libb.so", "/lib/libc.so", "/lib/libd.so.1", "/lib/never.so"},
			want:  []string{"lib, /lib/libd.so.1"},
		},
		{
			name:  "names that are almost libraries",
			tree:  map[string]string{"/lib/liba.so.gz": "", "/lib/liba.son": "", "/lib/liba.so.debug/x": "", "/lib/libnvrtc.so.11.2": ""},
			paths: []string{"/lib/liba.son", "/lib/libnvrtc.so.11.2", "/lib/liba.so.debug/x"},
			want:  []string{"lib, /lib/libnvrtc.so.11.2"},
		},
		{name: "a pattern", tree: map[string]string{"/lib/lib[a].so": ""}, paths: []string{"/lib/lib[a].so"}, wantErr: "pattern"},
		{
			name:  "what a recipe adds",
			extra: "dev, /dev/nvmap\n\n dir ,/etc/vulkan\nlib, /usr/lib/libx*.so\n",
			want:  []string{"dev, /dev/nvmap", "dir, /etc/vulkan", "lib, /usr/lib/libx*.so"},
		},
		{name: "an unknown kind", extra: "bin, /usr/bin/x", wantErr: "none of dev, dir, lib, sym"},
		{name: "the whole board", extra: "dir, /", wantErr: "must be absolute"},
		{name: "a path outside", extra: "dir, /etc/../root", wantErr: "must be absolute"},
		{name: "no path", extra: "dev", wantErr: "must be absolute"},
	}
	var asked []any
	for _, test := range tests {
		asked = append(asked, map[string]any{"root": plant(t, test.tree), "paths": test.paths, "extra": test.extra})
	}
	answers := runCSV(t, python, asked)
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := answers[i]
			if test.wantErr != "" {
				if !strings.Contains(got.Error, test.wantErr) {
					t.Errorf("error %q; want %q in it", got.Error, test.wantErr)
				}
				return
			}
			if diff := cmp.Diff(test.want, got.Lines); diff != "" || got.Error != "" {
				t.Errorf("error %q, lines (-want +got):\n%s", got.Error, diff)
			}
		})
	}
}

type csvAnswer struct {
	Lines []string
	Error string
}

func runCSV(t *testing.T, python string, asked []any) []csvAnswer {
	t.Helper()
	in, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-B", "-c", csvProgram)
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(in)), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3: %v", err)
	}
	var got []csvAnswer
	if err := json.Unmarshal(out, &got); err != nil || len(got) != len(asked) {
		t.Fatalf("python3 wrote %q: %v", out, err)
	}
	return got
}

func plant(t *testing.T, tree map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range tree {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(path, []byte(content), 0o644)
		if target, link := strings.CutPrefix(content, "->"); link {
			os.Remove(path)
			err = os.Symlink(target, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

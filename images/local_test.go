package images

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLocalFolders(t *testing.T) {
	board := map[string]string{"oe": "/board/oe", "b": "/board/b"}
	for _, tt := range []struct {
		env, wantErr string
		want         map[string]string
	}{
		{"", "", board},
		{"off", "", nil},
		{"oe=/mine/oe,c=/mine/c", "", map[string]string{"oe": "/mine/oe", "b": "/board/b", "c": "/mine/c"}},
		{"oe", "SLIPWAY_LOCAL: ", nil},
	} {
		t.Setenv(localEnvironment, tt.env)
		got, err := localFolders(Spec{Local: board})
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("localFolders with %q = %v; want an error with %q", tt.env, err, tt.wantErr)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("localFolders with %q: %v (-want +got)\n%s", tt.env, err, diff)
		}
	}
	if err := (Spec{Board: "b", Local: map[string]string{"oe": "oe"}}).validateBuild(); err == nil || !strings.Contains(err.Error(), "local.oe") {
		t.Errorf("validateBuild of a relative folder = %v; want it refused", err)
	}
}

// What lies in folders of this machine does not travel to a builder.
func TestLocalLayers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(BoardsVariable, filepath.Join(dir, "boards"))
	const pinned = "  meta-x: {url: https://git.example.com/meta-x, commit: 0123456789abcdef0123456789abcdef01234567, layers: {meta-x: }}\n"
	for name, tt := range map[string]struct{ board, repos, env, want string }{
		"pinned":            {"", pinned, "", ""},
		"its own folder":    {"", pinned + "  mine: {layers: {meta-mine: }}\n", "", "mine"},
		"another folder":    {"", pinned + "  mine: {path: /tmp, layers: {meta-mine: }}\n", "", "mine"},
		"local in board":    {"local: {meta-x: /tmp}\n", pinned, "", "meta-x"},
		"local in variable": {"", pinned, "meta-x=/tmp", "meta-x"},
	} {
		placeBoards(t, dir, map[string]string{
			"boards/lab/board.yml": "extends: raspberrypi5\n" + tt.board, "boards/lab/meta-mine/conf/layer.conf": "", "boards/lab/kas.yml": "header: {version: 14}\nmachine: m\nrepos:\n" + tt.repos,
		})
		t.Setenv(localEnvironment, tt.env)
		for board, want := range map[string]string{"lab": tt.want, "raspberrypi5": strings.TrimSuffix(tt.env, "=/tmp"), "virt": strings.TrimSuffix(tt.env, "=/tmp")} {
			spec, err := Load(board)
			if err != nil {
				t.Fatal(err)
			}
			got, err := LocalLayers(t.Context(), spec, Options{Dir: filepath.Join(dir, "build")})
			if err != nil || strings.Join(got, ",") != want {
				t.Errorf("%s: LocalLayers of %s = %q, %v; want %q", name, board, got, err, want)
			}
		}
	}
}

// The error of an unknown repository names where the user wrote it.
func TestUnknownLocal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(BoardsVariable, filepath.Join(dir, "boards"))
	board := filepath.Join(dir, "boards/lab/board.yml")
	err := errors.Join(os.MkdirAll(filepath.Dir(board), 0o755),
		os.WriteFile(board, []byte("extends: raspberrypi5\nlocal: {rr: /tmp}\n"), 0o644),
		os.WriteFile(filepath.Join(filepath.Dir(board), "kas.yml"), []byte("header: {version: 14}\nrepos: {r: }\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{"": board + ":2:9: local.rr: local folder /tmp: ", "rr=/usr": "SLIPWAY_LOCAL: local folder /usr: "} {
		t.Setenv(localEnvironment, env)
		spec, err := Load("lab")
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = Project(t.Context(), spec, Options{Dir: filepath.Join(dir, "build")})
		if !errors.Is(err, ErrBoardFile) || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "unset") != (env != "") {
			t.Errorf("Project with SLIPWAY_LOCAL=%q = %v; want %q", env, err, want)
		}
	}
}

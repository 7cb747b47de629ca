package images

import (
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

package builder

import (
	"path/filepath"
	"strings"
	"testing"

	"slipway/layers"
	"slipway/layers/progress"
	"slipway/layers/progress/progresstest"
)

// What is too large for the check may be fine for bitbake: Slipway warns, and the build continues.
func TestWarn(t *testing.T) {
	p := layers.Project{LocalConf: map[string]string{"large": strings.Repeat("A = \"\"\n", 30_000)}}
	b := projectBuild{project: p, workspace: layers.Workspace{Dir: filepath.Join(t.TempDir(), "layers")}}
	s := &progresstest.Recorder{}
	b.warnOfFindings(progress.With(t.Context(), progress.New(s)))
	if e := s.Last("warning"); !strings.HasPrefix(e.Detail, "the configuration was not looked at: ") {
		t.Errorf("warn said %+v; want that it did not look", e)
	}
}

package starter

import "testing"

func TestTry(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, like := range []string{"jetson-orin-nano-devkit", "virt", "jetson-nano-wrlinux"} {
		p, err := PlanProject(t.Context(), Request{Folder: "x", Like: like, Pipelines: []string{"github", "gitlab"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range p.Files {
			t.Logf("== %s\n%s", f.Path, f.Text)
		}
	}
}

package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReachedPackages(t *testing.T) {
	packages := []goPackage{
		{Dir: "/c/layers", ImportPath: "m/layers"},
		{Dir: "/c/layers/run", ImportPath: "m/layers/run"},
		{Dir: "/c/images", ImportPath: "m/images", Imports: []string{"m/layers"}},
		{Dir: "/c/flash", ImportPath: "m/flash", TestImports: []string{"m/images"}},
		{Dir: "/c/ci", ImportPath: "m/ci", XTestImports: []string{"m/flash"}},
	}
	all := []string{"m/layers", "m/layers/run", "m/images", "m/flash", "m/ci"}
	for _, tt := range []struct {
		name    string
		changed []string
		want    []string
	}{
		{"nothing", nil, nil},
		{"a package that nobody imports", []string{"/c/layers/run/run.go"}, []string{"m/layers/run"}},
		{"importers, also of tests", []string{"/c/images/spec.go"}, []string{"m/images", "m/flash", "m/ci"}},
		{"data below a package", []string{"/c/flash/testdata/a/b.txt"}, []string{"m/flash", "m/ci"}},
		{"two", []string{"/c/ci/up.go", "/c/layers/run/x_test.go"}, []string{"m/layers/run", "m/ci"}},
		{"go.mod", []string{"/c/ci/up.go", "/c/go.mod"}, all},
		{"another module's", []string{"/c/runtime-hook/hook.go"}, all},
	} {
		var got []string
		for _, p := range reachedPackages(packages, tt.changed) {
			got = append(got, p.ImportPath)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

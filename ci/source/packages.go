package source

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"slipway/layers/run"
)

// goPackage is what go list says of one package.
type goPackage struct {
	Dir          string
	ImportPath   string
	Name         string
	Standard     bool
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Module       *goModule
}

type goModule struct {
	Path string
	Dir  string
	Main bool
}

const packageFields = "-json=Dir,ImportPath,Name,Standard,GoFiles,Imports,TestImports,XTestImports,Module"

// goList lists packages of the module in dir, with env added to the environment.
func goList(ctx context.Context, dir string, env []string, args ...string) ([]goPackage, error) {
	c := command(dir, append([]string{"go", "list", "-tags=" + tags, packageFields}, args...)...)
	c.Env = env
	out, err := run.Output(ctx, c)
	if err != nil {
		return nil, err
	}
	var all []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// programs returns the import paths of the module's main packages.
func programs(packages []goPackage) []string {
	var paths []string
	for _, p := range packages {
		if p.Name == "main" {
			paths = append(paths, p.ImportPath)
		}
	}
	return paths
}

package source

import (
	"bytes"
	"context"
	"encoding/json"

	"slipway/layers/run"
)

// goPackage is the output of go list for one package.
type goPackage struct {
	Dir          string
	ImportPath   string
	Name         string
	Standard     bool
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

const packageFields = "-json=Dir,ImportPath,Name,Standard,Imports,TestImports,XTestImports,Module"

// goList lists packages of the module in dir, with env added to the environment.
func goList(ctx context.Context, dir string, env []string, args ...string) ([]goPackage, error) {
	c := command(dir, append([]string{"go", "list", "-tags=" + tags, packageFields}, args...)...)
	c.Env = env
	out, err := run.Output(ctx, c)
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); err == nil && dec.More(); {
		var p goPackage
		err = dec.Decode(&p)
		all = append(all, p)
	}
	return all, err
}

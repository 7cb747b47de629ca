package commands

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"slipway/images"
)

func versionCommand() *Command {
	c := New("version", "Print the version of Slipway, and the commit and modules that it was compiled from")
	c.Long = `It prints the version, the commit, the release of Go and the modules. A development build is of
no release. "unknown" is what nobody recorded: for the commit, compile with -buildvcs=true in a
clone. Reports and artifacts name the same version and commit.`
	c.Example = `slipway version
slipway version --json`
	asJSON := c.Switch("json", "print it as JSON, with the version of each module")
	c.Run = func(_ context.Context, _ []string) error {
		v := thisVersion()
		if *asJSON {
			return printJSON(v)
		}
		_, err := fmt.Fprintf(stdout, "slipway %s\n%s, %s, %d modules (--json lists them)\n", v.Program, v.Go, v.Platform, len(v.Modules))
		return err
	}
	return c
}

// version is all that is known of this program.
type version struct {
	images.Program
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	Modules  []module `json:"modules"`
}

type module struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Sum     string `json:"sum,omitempty"`
}

func thisVersion() version {
	v := version{images.ThisProgram(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, []module{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			v.Modules = append(v.Modules, module{m.Path, m.Version, m.Sum})
		}
	}
	return v
}

package release

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"slipway/ci/dev/source"
	"slipway/layers/progress"
	"slipway/layers/run"
)

// mainPackage is the package of the program, in the repository.
const mainPackage = "./magefiles/slipway"

// program is a built executable.
type program struct {
	path string
	data []byte
	info *debug.BuildInfo
}

// version returns the version that the go command recorded in the program.
func (p program) version() string { return p.info.Main.Version }

// build builds the program for each architecture, below folder.
func (c commit) build(ctx context.Context, folder string) (map[string]program, error) {
	all := map[string]program{}
	for _, arch := range architectures {
		err := progress.Run(ctx, "build "+arch, func(*progress.Step) (string, error) {
			p, err := c.buildFor(ctx, arch, filepath.Join(folder, arch, "slipway"))
			all[arch] = p
			return "", err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// buildFor builds a static program for one architecture, with fixed values of all settings that a
// user's environment could change, and checks the commit in it.
func (c commit) buildFor(ctx context.Context, arch, path string) (program, error) {
	err := run.Run(ctx, run.Command{
		Argv: []string{"go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", path, mainPackage},
		Dir:  c.source,
		Env: []string{
			"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0",
			"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off",
		},
	})
	if err != nil {
		return program{}, err
	}
	p := program{path: path}
	if p.data, err = os.ReadFile(path); err != nil {
		return p, err
	}
	if p.info, err = buildinfo.Read(bytes.NewReader(p.data)); err != nil {
		return p, err
	}
	return p, c.checkRecord(p.info)
}

// checkRecord checks that the go command recorded this commit and version in the program.
func (c commit) checkRecord(info *debug.BuildInfo) error {
	recorded := map[string]string{}
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	if recorded["vcs.revision"] != c.id || recorded["vcs.modified"] != "false" {
		return fmt.Errorf("build %s: the go command recorded commit %q, modified %q", c.id, recorded["vcs.revision"], recorded["vcs.modified"])
	}
	if c.version != "" && info.Main.Version != c.version {
		return fmt.Errorf("build version %s: the go command recorded %q", c.version, info.Main.Version)
	}
	return nil
}

// completions maps a shell to the path of its completion script in Debian.
var completions = map[string]string{
	"bash": "usr/share/bash-completion/completions/slipway",
	"zsh":  "usr/share/zsh/vendor-completions/_slipway",
	"fish": "usr/share/fish/vendor_completions.d/slipway.fish",
}

// addCompletions adds the completion scripts, which the new program prints, to the documents.
func (p *product) addCompletions(ctx context.Context) error {
	native, ok := p.programs[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("print completions: no released program runs on %s\nnext: go tool mage release, on a machine of %s", runtime.GOARCH, architectures)
	}
	for shell, name := range completions {
		text, err := run.Output(ctx, run.Command{Argv: []string{native.path, "completion", shell}})
		if err != nil {
			return err
		}
		p.docs = append(p.docs, file{path: name, mode: 0o644, data: text})
	}
	return nil
}

const (
	docFolder   = "usr/share/doc/slipway"
	licencePath = docFolder + "/LICENSE"
	noticesPath = docFolder + "/NOTICES"
)

// addLicences adds Slipway's licence and those of linked modules to the documents and p.licences.
func (p *product) addLicences(ctx context.Context) error {
	own, err := os.ReadFile(filepath.Join(p.source, "LICENSE"))
	if err != nil {
		return err
	}
	notices, err := source.Notices(ctx, p.source, mainPackage)
	if err != nil {
		return fmt.Errorf("read licences: %w", err)
	}
	p.licences = map[string]string{}
	var texts bytes.Buffer
	texts.WriteString("The programs of Slipway link these Go modules, and Go's standard library, which is under the\nlicence of golang.org/x/sys.\n")
	for _, n := range notices {
		fmt.Fprintf(&texts, "\n%s\n%s, %s\n\n%s\n", strings.Repeat("-", 60), n.Module, n.File, bytes.TrimSpace(n.Text))
		if n.Licence != "" {
			p.licences[n.Module] = n.Licence
		}
	}
	p.docs = append(p.docs, file{path: noticesPath, mode: 0o644, data: texts.Bytes()}, file{path: licencePath, mode: 0o644, data: own})
	return nil
}

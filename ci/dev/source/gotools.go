package source

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"slipway/layers/run"
)

// All rules set the tag of magefiles: without it, the tools silently skip magefiles.
const tags = "mage"

func checkFormat(ctx context.Context, t tree) ([]string, error) {
	return listFindings(ctx, t.root, t.tools["gofumpt"], "-l", ".")
}

func runVet(ctx context.Context, t tree) ([]string, error) {
	return t.inModules(ctx, "go", "vet", "-tags="+tags, "./...")
}

func runStaticcheck(ctx context.Context, t tree) ([]string, error) {
	return t.inModules(ctx, t.tools["staticcheck"], "-tags="+tags, "./...")
}

// checkTidy finds changes that go mod tidy would make in the modules and in ci/tools.mod.
func checkTidy(ctx context.Context, t tree) ([]string, error) {
	found, err := t.inModules(ctx, "go", "mod", "tidy", "-diff")
	if err != nil {
		return found, err
	}
	err = t.withToolsModule(func(dir string) error {
		more, err := runChecker(ctx, dir, "go", "mod", "tidy", "-diff")
		found = append(found, more...)
		return err
	})
	return found, err
}

// withToolsModule calls do with a folder that has a copy of ci/tools.mod, if there is one, as
// go.mod. go mod tidy needs that: beside our packages it would add their imports.
func (t tree) withToolsModule(do func(dir string) error) error {
	mod := filepath.Join(t.root, toolsMod)
	if _, err := os.Stat(mod); os.IsNotExist(err) {
		return nil
	}
	dir, err := os.MkdirTemp("", "slipway-tools-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := copyFile(mod, filepath.Join(dir, "go.mod")); err != nil {
		return err
	}
	if err := copyFile(sumFile(mod), filepath.Join(dir, "go.sum")); err != nil {
		return err
	}
	return do(dir)
}

func sumFile(mod string) string { return mod[:len(mod)-len(".mod")] + ".sum" }

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return renameio.WriteFile(to, data, 0o644)
}

// formatFiles runs gofumpt, and go mod tidy in the modules and for ci/tools.mod.
func (t tree) formatFiles(ctx context.Context) error {
	if err := runGo(ctx, t.root, t.tools["gofumpt"], "-w", "."); err != nil {
		return err
	}
	for _, dir := range t.modules {
		if err := runGo(ctx, dir, "go", "mod", "tidy"); err != nil {
			return err
		}
	}
	return t.withToolsModule(func(dir string) error {
		if err := runGo(ctx, dir, "go", "mod", "tidy"); err != nil {
			return err
		}
		mod := filepath.Join(t.root, toolsMod)
		if err := copyFile(filepath.Join(dir, "go.sum"), sumFile(mod)); err != nil {
			return err
		}
		return copyFile(filepath.Join(dir, "go.mod"), mod)
	})
}

func runGo(ctx context.Context, dir string, argv ...string) error {
	return run.Run(ctx, command(dir, argv...))
}

// command returns a command of Go that a cancel stops as by Ctrl-C: go then ends its children and
// removes its work folder, which it does not at SIGTERM.
func command(dir string, argv ...string) run.Command {
	return run.Command{Argv: argv, Dir: dir, Stop: func(p *os.Process) error {
		go interruptUntilDone(p)
		return syscall.Kill(-p.Pid, syscall.SIGINT)
	}}
}

// interruptAgain is how long a program has to end after a Ctrl-C. It is a variable for tests.
var interruptAgain = 10 * time.Second

// interruptUntilDone interrupts a process group again and again until its leader is gone. While it
// is interrupted, go test can start one more package's test, and waits for it without limit.
func interruptUntilDone(leader *os.Process) {
	for {
		time.Sleep(interruptAgain)
		if leader.Signal(syscall.Signal(0)) != nil {
			return
		}
		_ = syscall.Kill(-leader.Pid, syscall.SIGINT) // it may have ended by now
	}
}

package source

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"slipway/layers/localfile"
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

// checkTidy finds changes that go mod tidy would make in the modules and in that of the tools.
func checkTidy(ctx context.Context, t tree) ([]string, error) {
	t.modules = t.modulesWithTools()
	return t.inModules(ctx, "go", "mod", "tidy", "-diff")
}

// modulesWithTools returns the modules and, if there is one, that of the tools. Other rules skip
// the latter, which has no packages.
func (t tree) modulesWithTools() []string {
	tools := filepath.Join(t.root, toolsFolder)
	if !localfile.Exists(filepath.Join(tools, "go.mod")) {
		return t.modules
	}
	return append(slices.Clone(t.modules), tools)
}

// formatFiles runs gofumpt, and go mod tidy in the modules and in that of the tools.
func (t tree) formatFiles(ctx context.Context) error {
	if err := run.Run(ctx, command(t.root, t.tools["gofumpt"], "-w", ".")); err != nil {
		return err
	}
	for _, dir := range t.modulesWithTools() {
		if err := run.Run(ctx, command(dir, "go", "mod", "tidy")); err != nil {
			return err
		}
	}
	return nil
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

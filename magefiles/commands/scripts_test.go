package commands

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts run the compiled program by "slipway WORDS...". "status N LINE..." runs a line
// that exits with N.
func TestScripts(t *testing.T) {
	program := compileProgram(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(program)+string(os.PathListSeparator)+e.Getenv("PATH"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"slipway": func(ts *testscript.TestScript, not bool, args []string) {
				if err := ts.Exec(program, args...); (err != nil) != not {
					ts.Fatalf("slipway %v: %v", args, err)
				}
			},
			"status": func(ts *testscript.TestScript, _ bool, args []string) {
				var ended *exec.ExitError
				if err := ts.Exec(args[1], args[2:]...); !errors.As(err, &ended) || ended.String() != "exit status "+args[0] {
					ts.Fatalf("%q: %v; want exit status %s", args[1:], err, args[0])
				}
			},
		},
	})
}

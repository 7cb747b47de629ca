package commands

import (
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// The commands of stores, as a person types them.
func TestStoreCommands(t *testing.T) {
	program := compileProgram(t)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(program)+string(filepath.ListSeparator)+e.Getenv("PATH"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"slipway": func(ts *testscript.TestScript, not bool, args []string) {
				if err := ts.Exec(program, args...); (err != nil) != not {
					ts.Fatalf("slipway %v: %v", args, err)
				}
			},
		},
	})
}

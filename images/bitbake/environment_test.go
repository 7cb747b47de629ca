package bitbake

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"slipway/layers"
	"slipway/layers/kastest"
	"slipway/layers/run"
)

// scriptProject is a project of folders with these files. Each folder with a file is a repository.
func scriptProject(t *testing.T, header string, files map[string]string) (layers.Project, layers.Workspace, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	repos := map[string]bool{}
	for name, content := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, run.WriteProgram(path, []byte(content), 0o755))
		repo, _, _ := strings.Cut(name, "/")
		repos[repo] = true
	}
	text := "header: {version: 14}\n" + header + "\nrepos:\n"
	for _, repo := range slices.Sorted(maps.Keys(repos)) {
		text += "  " + repo + ": {path: " + filepath.Join(dir, repo) + "}\n"
	}
	file := filepath.Join(dir, "kas.yml")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	ws := layers.Workspace{Dir: dir}
	p, err := layers.Load(t.Context(), file, ws)
	must(t, err)
	build := filepath.Join(dir, "build")
	must(t, layers.Configure(p, ws, build))
	return p, ws, build
}

func TestFind(t *testing.T) {
	const own = "touch ran; export OWN=1 PATH=$PWD/tools:$PATH\n"
	tests := []struct {
		name, header string
		files        map[string]string
		programs     string // below the project's folder
		environment  string // one variable that bitbake has
		wantErr      string
	}{
		{"bitbake alone", "", map[string]string{"bb/bin/bitbake": ""}, "bb/bin", "BUILDDIR=@/build", ""},
		{"poky", "", map[string]string{"poky/bitbake/bin/bitbake": "", "poky/oe-init-build-env": "export A=$2"}, "poky/bitbake/bin", "A=@/poky/bitbake", ""},
		{"bitbake beside the script comes first", "", map[string]string{"a/bin/bitbake": "", "oe/oe-init-build-env": "export A=$2", "bitbake/bin/bitbake": ""}, "bitbake/bin", "A=@/bitbake", ""},
		{"isar", "build_system: isar", map[string]string{"isar/bitbake/bin/bitbake": "", "isar/isar-init-build-env": "export A=isar", "isar/oe-init-build-env": "exit 1"}, "isar/bitbake/bin", "A=isar", ""},
		{"a script that adds a folder to PATH", "", map[string]string{"x/oe-init-build-env": own, "x/tools/bitbake": "", "bb/bin/bitbake": ""}, "x/tools", "OWN=1", ""},
		{"a script without bitbake", "", map[string]string{"x/oe-init-build-env": "true"}, "", "BBPATH=@/build", ""},
		{"arguments", "", map[string]string{"x/oe-init-build-env": `export A="$1 $# $PWD"`}, "", "A=@/build 2 @/x", ""},
		{"no variables of the user's", "", map[string]string{"x/oe-init-build-env": `export A="$SECRET"; unset IFS`}, "", "A=", ""},
		{"neither", "", map[string]string{"x/a": ""}, "", "", "none of its repositories holds bitbake"},
		{"two", "", map[string]string{"x/oe-init-build-env": "", "y/oe-init-build-env": ""}, "", "", "two repositories hold an oe-init-build-env: @/x and @/y;"},
		{"a script that fails", "", map[string]string{"x/oe-init-build-env": "echo no python >&2\nreturn 3"}, "", "", "@/x/oe-init-build-env @/build: exit status 3\n  | no python\nnext: bash -c '. @/x/oe-init-build-env @/build'"},
		{"a command that fails", "", map[string]string{"x/oe-init-build-env": "false\ntrue"}, "", "", "exit status 1\nnext: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("SECRET", "s")
			p, ws, build := scriptProject(t, tt.header, tt.files)
			tree, err := Find(t.Context(), p, ws, filepath.Dir(build), build)
			at := strings.NewReplacer("@", ws.Dir)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), at.Replace(tt.wantErr)) {
					t.Fatalf("Find = %v; want an error with %q", err, at.Replace(tt.wantErr))
				}
				return
			}
			must(t, err)
			if rel := strings.TrimPrefix(tree.Programs, ws.Dir+"/"); rel != tt.programs {
				t.Errorf("bitbake is in %q; want %q", rel, tt.programs)
			}
			if env := tree.Environment(); !slices.Contains(env, at.Replace(tt.environment)) {
				t.Errorf("Environment() = %q; want %q in it", env, at.Replace(tt.environment))
			}
			if err := tree.CheckPrograms(); (err == nil) != (tt.programs != "") {
				t.Errorf("CheckPrograms() = %v", err)
			}
		})
	}
}

// environmentOf returns the last value of each variable, as a program gets it.
func environmentOf(tree Tree) map[string]string {
	vars := map[string]string{}
	for _, variable := range tree.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		vars[name] = value
	}
	return vars
}

func TestEnvironment(t *testing.T) {
	const script = `export BITBAKEDIR=/script MACHINE_OF=script DL_DIR=/script/dl SSTATE_DIR=/script/sstate
export EDITION=script http_proxy=http://script LC_ALL=C.UTF-8
export BB_ENV_PASSTHROUGH_ADDITIONS="BITBAKEDIR MACHINE DL_DIR"
f() { :; }
export -f f
`
	t.Setenv("MACHINE", "users")
	t.Setenv("SSTATE_DIR", "/users/sstate")
	t.Setenv("BITBAKEDIR", "/users")
	t.Setenv("http_proxy", "http://user")
	for _, name := range []string{"DL_DIR", "BB_HASHSERVE_DB_DIR", "EDITION"} {
		t.Setenv(name, "") // so that it comes back
		must(t, os.Unsetenv(name))
	}
	for _, tt := range []struct{ name, source, pass, other string }{
		{"recent", passSince2, passSince2, passBefore2},
		{"old", passBefore2, passBefore2, passSince2},
		{"of another form", "", passSince2, passBefore2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ws, build := scriptProject(t, "env: {EDITION: project, FORWARD: null}", map[string]string{
				"x/oe-init-build-env": script, "x/bitbake/bin/bitbake": "", "x/bitbake/lib/bb/utils.py": "if '" + tt.source + "' in os.environ:\n",
			})
			tree, err := Find(t.Context(), p, ws, filepath.Dir(build), build)
			must(t, err)
			tree.Set = []string{"GIVEN=1"}
			got := environmentOf(tree)
			want := map[string]string{
				"BITBAKEDIR": "/script", "DL_DIR": "/script/dl", "EDITION": "project", "GIVEN": "1", "LC_ALL": "C.UTF-8",
				"BB_HASHSERVE_DB_DIR": "/users/sstate",
				tt.pass:               strings.Join(slices.Sorted(slices.Values(append(slices.Clone(passedVariables), "EDITION", "FORWARD", "GIVEN", "BITBAKEDIR"))), " "),
			}
			for name, value := range want {
				if got[name] != value {
					t.Errorf("%s = %q; want %q", name, got[name], value)
				}
			}
			for _, name := range []string{tt.other, "SSTATE_DIR", "http_proxy", "MACHINE", "HOME", "PWD", "SHLVL", "BASH_FUNC_f%%"} {
				if value, set := got[name]; set {
					t.Errorf("%s = %q; want it left as it is", name, value)
				}
			}
		})
	}
}

// What a script sets reaches a shell of kas's as it reaches ours.
func TestEnvironmentAsKas(t *testing.T) {
	kas, err := kastest.Find(t.Context(), kastest.Testing)
	if err != nil {
		t.Skip(err)
	}
	for _, system := range []string{"openembedded", "isar"} {
		name := initScripts[system]
		p, ws, build := scriptProject(t, "build_system: "+system+"\nenv: {EDITION: project}", map[string]string{
			"x/" + name: "export A=\"$1 $PWD\" PATH=$PWD/tools:$PATH BB_ENV_PASSTHROUGH_ADDITIONS='A SHELL_OF'\nexport BUILDDIR=$1 BBPATH=$1", "x/tools/bitbake": "",
		})
		tree, err := Find(t.Context(), p, ws, filepath.Dir(build), build)
		must(t, err)
		out, err := run.Output(t.Context(), kas.Command(ws.Dir, "shell", p.File, "-c", "env -0"))
		must(t, err)
		theirs, err := parseVariables(out)
		must(t, err)
		ours := environmentOf(tree)
		for _, name := range []string{"A", "BUILDDIR", "BBPATH", "EDITION", "LC_ALL"} {
			if ours[name] != theirs[name] || ours[name] == "" {
				t.Errorf("%s: %s = %q; want kas's %q", system, name, ours[name], theirs[name])
			}
		}
		for _, vars := range []map[string]string{ours, theirs} {
			if pass := strings.Fields(vars[passSince2]); !slices.Contains(pass, "A") || !slices.Contains(pass, "EDITION") {
				t.Errorf("%s: %s = %q; want A and EDITION in it", system, passSince2, pass)
			}
			if first, _, _ := strings.Cut(vars["PATH"], ":"); first != filepath.Join(ws.Dir, "x/tools") {
				t.Errorf("%s: PATH = %q; want the script's folder first", system, vars["PATH"])
			}
		}
	}
}

// A build folder outlives a release: the template of the older is not the newer's.
func TestConfigureForgetsTheTemplate(t *testing.T) {
	p, ws, build := scriptProject(t, "", map[string]string{
		"x/oe-init-build-env": `[ ! -e "$1/conf/templateconf.cfg" ] || { echo "TEMPLATECONF value points to nonexistent directory" >&2; return 1; }
echo meta-poky/conf >"$1/conf/templateconf.cfg"`,
	})
	for range 2 {
		must(t, layers.Configure(p, ws, build))
		_, err := Find(t.Context(), p, ws, filepath.Dir(build), build)
		must(t, err)
	}
}

func FuzzParseVariables(f *testing.F) {
	f.Add([]byte("A=1\x00B=\n=\x00BASH_FUNC_f%%=() { :\n}\x00PWD=/\x00"))
	f.Add([]byte("\x00=\x00A\x00"))
	f.Fuzz(func(t *testing.T, out []byte) {
		vars, err := parseVariables(out)
		if err != nil {
			return
		}
		for name, value := range vars {
			if !variableName().MatchString(name) || strings.Contains(value, "\x00") {
				t.Errorf("parseVariables(%q) has %q = %q", out, name, value)
			}
		}
	})
}

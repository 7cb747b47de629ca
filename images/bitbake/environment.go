package bitbake

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"slipway/layers"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// initScripts set up bitbake's environment in a shell. kas chooses by build system too.
var initScripts = map[string]string{"openembedded": "oe-init-build-env", "isar": "isar-init-build-env"}

// findInitScript returns the path of the script that sets up the project's build system, "" if no
// repository has one. As kas does, it refuses a project in which two repositories have one.
func findInitScript(p layers.Project, ws layers.Workspace) (string, error) {
	system, _, _ := strings.Cut(p.BuildSystem, "-")
	name := initScripts[cmp.Or(system, "openembedded")]
	var found string
	for _, r := range p.Repos {
		path := filepath.Join(p.Dir(ws, r), name)
		if path == found || !localfile.Exists(path) {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("%s: two repositories hold an %s: %s and %s; remove one of them from repos\nnext: layers dump %s",
				p.File, name, filepath.Dir(found), filepath.Dir(path), plaintext.Quote(p.File))
		}
		found = path
	}
	return found, nil
}

// sourceLine is a shell command that sources a script and prints the environment after it. As in
// kas, the first command of the script that fails ends it.
const sourceLine = `set -e; script=$1; shift; source "$script" "$@" >&2; exec env -0`

// sourceScript runs the init script for the folders build and bitbake (or "") in bash, and returns
// the variables that it sets. The shell has only PATH and HOME of the user's environment.
func sourceScript(ctx context.Context, script, build, bitbake string) (map[string]string, error) {
	out, err := run.Output(ctx, run.Command{
		Argv: []string{"bash", "--noprofile", "--norc", "-c", sourceLine, "bash", script, build, bitbake},
		Dir:  filepath.Dir(script), Unset: otherVariables("PATH", "HOME"),
	})
	if err == nil {
		var vars map[string]string
		if vars, err = parseVariables(out); err == nil {
			return vars, nil
		}
	}
	if ctx.Err() != nil {
		return nil, err
	}
	if failed, is := errors.AsType[*run.Failure](err); is {
		failed.Argv = []string{script, build} // not the shell's own words
	}
	return nil, fmt.Errorf("set up bitbake's environment: %w\nnext: bash -c %s", err,
		plaintext.SingleQuote(". "+plaintext.Quote(script)+" "+plaintext.Quote(build)))
}

// otherVariables returns the names of this process's environment variables except those in keep.
func otherVariables(keep ...string) []string {
	var names []string
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains(keep, name) {
			names = append(names, name)
		}
	}
	return names
}

const (
	maxEnvironmentBytes = 4 << 20 // the kernel gives a program less
	maxVariables        = 2000
)

var variableName = plaintext.Regexp(`^[A-Za-z_][A-Za-z0-9_]*$`)

// shellVariables describe the shell that ran the script. Slipway drops them.
var shellVariables = []string{"PWD", "OLDPWD", "SHLVL", "_", "HOME"}

// parseVariables parses the output of env -0, and refuses more than maxVariables. It leaves out
// shellVariables, and functions that bash exports, whose names are no plain names.
func parseVariables(out []byte) (map[string]string, error) {
	if len(out) > maxEnvironmentBytes {
		return nil, fmt.Errorf("it leaves an environment of more than %d bytes", maxEnvironmentBytes)
	}
	vars := map[string]string{}
	for variable := range bytes.SplitSeq(out, []byte{0}) {
		name, value, _ := strings.Cut(string(variable), "=")
		if variableName().MatchString(name) && !slices.Contains(shellVariables, name) {
			vars[name] = value
		}
	}
	if len(vars) > maxVariables {
		return nil, fmt.Errorf("it leaves %d variables; at most %d are read", len(vars), maxVariables)
	}
	return vars, nil
}

// addedProgramDir returns the first folder with a bitbake that the script added to PATH, "" without
// one. It ignores folders of the user's own PATH: a bitbake in these is not the project's.
func addedProgramDir(path string) string {
	users := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range filepath.SplitList(path) {
		if filepath.IsAbs(dir) && !slices.Contains(users, dir) && localfile.Exists(filepath.Join(dir, "bitbake")) {
			return dir
		}
	}
	return ""
}

// passedVariables are what bitbake passes on from the environment, besides its own short list, the
// project's env and the script's. They tell how to reach servers or how much of the machine to use.
var passedVariables = []string{
	"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy", "SSH_AUTH_SOCK", "GIT_SSL_CAINFO",
	"BB_NUMBER_THREADS", "PARALLEL_MAKE", "BB_NO_NETWORK", "DL_DIR", "SSTATE_DIR", hashDirVariable,
}

// hashDirVariable names the folder of bitbake's database of equivalent hashes, from 2.18 on.
const hashDirVariable = "BB_HASHSERVE_DB_DIR"

// bitbake's list of variables to let through. Each generation refuses the other's name.
const (
	passSince2  = "BB_ENV_PASSTHROUGH_ADDITIONS"
	passBefore2 = "BB_ENV_EXTRAWHITE"
)

// passVariable returns the name of the variable that lists the variables to pass to bitbake:
// BB_ENV_PASSTHROUGH_ADDITIONS or, before 2.0, BB_ENV_EXTRAWHITE. It looks in bitbake's source,
// because the name changed between two commits of 1.53.0.
func (t Tree) passVariable() string {
	source, _ := os.ReadFile(filepath.Join(t.Programs, "../lib/bb/utils.py"))
	if bytes.Contains(source, []byte(passBefore2)) && !bytes.Contains(source, []byte(passSince2)) {
		return passBefore2
	}
	return passSince2
}

// passedNames returns the names of the environment variables that bitbake lets through to the
// recipes. Of the names that the script lists, it takes only those that the script sets. The
// others, such as MACHINE, would come from the user's environment and override the project file.
func (t Tree) passedNames() []string {
	names := slices.Concat(passedVariables, slices.Sorted(maps.Keys(t.Env)))
	for _, set := range t.Set {
		name, _, _ := strings.Cut(set, "=")
		names = append(names, name)
	}
	for _, name := range strings.Fields(t.sourced[passSince2] + " " + t.sourced[passBefore2]) {
		if _, set := t.sourced[name]; set {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Environment returns what Slipway adds to the user's environment for bitbake's programs: variables
// of the project's script or OpenEmbedded's defaults, the names to pass on, and the project's own.
func (t Tree) Environment() []string {
	values := map[string]string{"LC_ALL": "en_US.UTF-8", "BUILDDIR": t.Build, "BBPATH": t.Build, "PATH": os.Getenv("PATH")}
	maps.Copy(values, t.sourced)
	if t.Programs != "" && !slices.Contains(filepath.SplitList(values["PATH"]), t.Programs) {
		values["PATH"] = t.Programs + ":" + values["PATH"]
	}
	maps.DeleteFunc(values, func(name, _ string) bool { return name == passSince2 || name == passBefore2 || t.isUsers(name) })
	values[t.passVariable()] = strings.Join(t.passedNames(), " ")
	if t.Pre != "" {
		values["BBPRECONF"] = t.Pre
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		env = append(env, name+"="+values[name])
	}
	return slices.Concat(env, t.defaultEnv(), t.Set)
}

// isUsers reports whether the user's environment overrides the script's value of a variable. Only
// passedVariables and the project's env can be overridden, and never PATH.
func (t Tree) isUsers(name string) bool {
	_, set := os.LookupEnv(name)
	_, projects := t.Env[name]
	return set && name != "PATH" && (projects || slices.Contains(passedVariables, name))
}

// defaultEnv returns the variables that the user's environment does not set: the project's env, and
// the folders for downloads, shared state and, unless on NFS, bitbake's hashes. All boards share
// these folders by default, because they are large and safe to share.
func (t Tree) defaultEnv() []string {
	shared := cmp.Or(t.Shared, filepath.Dir(t.Dir))
	values := map[string]string{
		"DL_DIR":     cmp.Or(t.sourced["DL_DIR"], filepath.Join(shared, "downloads")),
		"SSTATE_DIR": cmp.Or(t.sourced["SSTATE_DIR"], filepath.Join(shared, "sstate-cache")),
	}
	for name, value := range t.Env {
		if value != nil {
			values[name] = *value
		}
	}
	if t.Pre != "" {
		delete(values, "BBPRECONF") // bitbake would read the project's file in place of the cache's
	}
	// The hashes belong to what was built. bitbake refuses to start if they are on NFS.
	if sstate := cmp.Or(os.Getenv("SSTATE_DIR"), values["SSTATE_DIR"]); cmp.Or(values[hashDirVariable], t.sourced[hashDirVariable]) == "" && !onNFS(sstate) {
		values[hashDirVariable] = sstate
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, set := os.LookupEnv(name); !set {
			env = append(env, name+"="+values[name])
		}
	}
	return env
}

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"slipway/flash/qemu"
	"slipway/images"
	"slipway/images/builder"
	"slipway/images/lint"
	"slipway/layers/host"
	"slipway/layers/localfile"
	"slipway/layers/plaintext"
	"slipway/layers/run"
)

// checkClone checks for a clone of Slipway here and an installed go, if the build needs them.
func checkClone(_ context.Context, p boardBuild) []Finding {
	if !images.NeedsClone(p.spec) {
		return []Finding{okFinding("clone", "none is needed for %s", cmp.Or(p.spec.Project, p.spec.BoardFile()))}
	}
	f := Finding{What: "clone", State: Stops, Why: "images are built from the clone", Fix: "clone Slipway, and run this in the clone's top folder"}
	if _, err := os.Stat(filepath.Join("runtime-hook", "go.mod")); err != nil {
		f.Saw = "this folder is not Slipway's clone"
		return []Finding{f}
	}
	if p.spec.Debian == nil {
		return []Finding{okFinding("clone", "here")}
	}
	path, err := exec.LookPath("go")
	if err != nil {
		f.Saw = "no go command"
		return []Finding{f}
	}
	return []Finding{okFinding("clone", "here, with %s", path)}
}

// checkPackages checks that the Debian packages for the build and the virtual board are installed.
func checkPackages(ctx context.Context, p boardBuild) []Finding {
	f := Finding{What: "packages", State: Stops, Why: "the build and the virtual board run these programs"}
	needed := append(builder.HostPackages(p.spec, p.project.BuildSystem), qemu.HostPackages(p.spec)...)
	missing, err := host.Missing(ctx, needed...)
	switch {
	case err != nil:
		f.State, f.Saw, f.Fix = Warning, err.Error(), "install them with this machine's own package manager"
	case len(missing) > 0:
		f.Saw, f.Fix = "missing: "+strings.Join(missing, " "), host.AptLine(missing)
	default:
		f = okFinding("packages", "all %d installed", len(needed))
	}
	return []Finding{f}
}

// checkBuildable runs the host checks that build runs first, without checkUser's check for root.
func checkBuildable(ctx context.Context, p boardBuild) []Finding {
	var all []Finding
	for _, c := range builder.CheckHost(ctx, p.spec, p.project.BuildSystem) {
		switch {
		case c.Err == nil && c.What == "user" || errors.Is(c.Err, builder.ErrRoot):
		case c.Err == nil:
			all = append(all, okFinding(c.What, "%s", c.Fine))
		default:
			all = append(all, hostErrorFinding(c.What, c.Err))
		}
	}
	return all
}

// hostErrorFinding returns the finding for a failed host check: the first line, then the fix.
func hostErrorFinding(what string, err error) Finding {
	saw, fix, _ := strings.Cut(err.Error(), "\n")
	saw = strings.TrimSuffix(strings.TrimSuffix(saw, ":"), "; run")
	return Finding{what, Stops, saw, "build would stop here", cmp.Or(strings.TrimSpace(strings.TrimPrefix(fix, "next: ")), "fix what it says")}
}

// checkUser checks that the user is not root, and can make and remove a folder in the build folder,
// or in the nearest existing folder above it.
func checkUser(_ context.Context, p boardBuild) []Finding {
	if os.Geteuid() == 0 {
		user := os.Getenv("SUDO_USER")
		fix := "sudo -u " + cmp.Or(user, "NAME") + " -H " + host.ProgramName() + " build " + plaintext.Quote(p.spec.TypedName())
		if inContainer() || p.buildsWithIsar() && user == "" { // whose user needs more than a home
			fix = builderCommands(p)
		}
		return []Finding{{"user", Stops, "root", "bitbake does not build as root: packages would get files with root's rights by mistake", fix}}
	}
	dir := nearestExisting(p.Build.Dir)
	if probe, err := os.MkdirTemp(dir, ".doctor-"); err != nil {
		fix := fmt.Sprintf("sudo chown -R %d:%d %s", os.Getuid(), os.Getgid(), dir)
		if build, _ := filepath.Abs(p.Build.Dir); build != dir {
			fix = fmt.Sprintf("sudo install -d -o %d -g %d %s", os.Getuid(), os.Getgid(), build)
		}
		return []Finding{{"user", Stops, err.Error(), "the build writes there", fix}}
	} else if err := os.Remove(probe); err != nil {
		return []Finding{{"user", Warning, err.Error(), "what the build removes would stay", "look at the rights of " + dir}}
	}
	return []Finding{okFinding("user", "uid %d, which may write in %s", os.Geteuid(), dir)}
}

// builderCommands returns shell commands that add a user builder, and build as that user in a copy
// of the clone, since other users may not enter root's home. With Isar the user may run sudo.
func builderCommands(p boardBuild) string {
	fix := "{ id -u builder || useradd -m builder; } && cp -a . /home/builder/slipway && chown -R builder: /home/builder/slipway && cd /home/builder/slipway && "
	if filepath.IsAbs(p.Build.Dir) {
		build := plaintext.Quote(p.Build.Dir)
		fix += "mkdir -p " + build + " && chown -R builder: " + build + " && "
	}
	if p.buildsWithIsar() {
		fix += "usermod -aG sbuild builder && echo 'builder ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/builder && "
	}
	return fix + "runuser -u builder -- env HOME=/home/builder " + host.ProgramName() + " build " + plaintext.Quote(p.spec.TypedName())
}

func (p boardBuild) buildsWithIsar() bool { return p.project.BuildSystem == "isar-privileged" }

func inContainer() bool {
	marks := []string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"}
	return slices.ContainsFunc(marks, localfile.Exists) || os.Getenv("container") != ""
}

// checkUmask checks, as bitbake does, that others can read new files, if the umask is known.
func checkUmask(context.Context, boardBuild) []Finding {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil
	}
	_, rest, _ := strings.Cut(string(status), "\nUmask:")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 8, 32)
	if err != nil {
		return nil
	}
	if mask&0o755 != 0 {
		return []Finding{{"umask", Stops, fmt.Sprintf("%04o", mask), "files in the image would have these rights too, and bitbake refuses it", "umask 022"}}
	}
	return []Finding{okFinding("umask", "%04o", mask)}
}

// tool is a program, with the oldest versions that Yocto's releases accept.
type tool struct {
	name, pkg string
	argv      []string
	minimums  []minSince
}

// minSince is the oldest accepted version, from a release of Yocto on.
type minSince struct{ release, version string }

// The versions are those of each release's sanity.bbclass.
var hostTools = []tool{
	{"python", "python3", []string{"python3", "--version"}, []minSince{{"thud", "3.4"}, {"dunfell", "3.5"}, {"hardknott", "3.6"}, {"mickledore", "3.8"}, {"walnascar", "3.9"}}},
	{"gcc", "gcc", []string{"gcc", "-dumpfullversion", "-dumpversion"}, []minSince{{"dunfell", "5.0"}, {"gatesgarth", "6.0"}, {"kirkstone", "7.5"}, {"mickledore", "8.0"}, {"whinlatter", "10.1"}}},
	{"tar", "tar", []string{"tar", "--version"}, []minSince{{"thud", "1.24"}, {"zeus", "1.28"}}},
	{"git", "git", []string{"git", "--version"}, []minSince{{"thud", "1.8.3.1"}, {"master", "2.22.0"}}},
	{"make", "make", []string{"make", "--version"}, []minSince{{"kirkstone", "4.0"}}},
}

const buildtools = "use a newer distribution, or run scripts/install-buildtools of the checkout of openembedded-core and source what it names"

// checkTools compares the versions of programs on this machine with those that the release accepts,
// and checks Python's modules. It skips programs that are not installed.
func checkTools(ctx context.Context, p boardBuild) []Finding {
	release := p.layers.Release()
	var bad []Finding
	var seen []string
	for _, t := range hostTools {
		version, err := t.installedVersion(ctx)
		least := t.minVersion(release)
		switch {
		case err != nil:
			continue // build's own check says which program is missing
		case isOlder(version, least):
			bad = append(bad, Finding{"tools", Stops, fmt.Sprintf("%s is %s", t.name, version), fmt.Sprintf("%s wants %s at least", release, least), buildtools})
		}
		seen = append(seen, t.name+" "+version)
	}
	bad = append(bad, checkPython(ctx, release)...)
	if len(bad) > 0 {
		return bad
	}
	return []Finding{okFinding("tools", "%s", strings.Join(seen, ", "))}
}

// checkPython checks that this Python has the modules that older releases of Yocto import.
func checkPython(ctx context.Context, release string) (bad []Finding) {
	lacks := func(statement string) bool {
		return run.Run(ctx, run.Command{Argv: []string{"python3", "-W", "ignore", "-c", statement}}) != nil
	}
	if lint.Before(release, "mickledore") && lacks("import distutils.sysconfig") {
		bad = append(bad, Finding{"tools", Stops, "python3 has no distutils", release + " imports it, and Python has none from 3.12 on", "sudo apt-get install -y --no-install-recommends python3-setuptools, or build on an older distribution"})
	}
	// dunfell, which is maintained for long, has learned the new place.
	if lint.Before(release, "hardknott") && release != "dunfell" && lacks("from collections import Mapping") {
		bad = append(bad, Finding{"tools", Stops, "python3 is 3.10 or later", release + "'s bitbake does not begin under it (cannot import name 'MutableMapping' from 'collections')", "build in a container with an older distribution (Debian 11 has Python 3.9), or source the buildtools that the release comes with"})
	}
	return bad
}

var versionNumber = plaintext.Regexp(`\d+(\.\d+)+|\d+`)

// installedVersion runs the tool and returns the first version number in its output.
func (t tool) installedVersion(ctx context.Context) (string, error) {
	out, err := run.Output(ctx, run.Command{Argv: t.argv, Env: []string{"LC_ALL=C"}})
	if err != nil {
		return "", err
	}
	if v := versionNumber().FindString(string(out)); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("%v says no version", t.argv)
}

// minVersion returns the oldest version that a release accepts, "" for any or an unknown release.
func (t tool) minVersion(release string) string {
	version := ""
	for _, s := range t.minimums {
		if release != "" && !lint.Before(release, s.release) {
			version = s.version
		}
	}
	return version
}

// isOlder reports whether version have is older than least, compared number by number. A missing
// number is 0. A part that is no number ends the comparison with false.
func isOlder(have, least string) bool {
	h, l := strings.Split(have, "."), strings.Split(least, ".")
	for i := range l {
		want, err := strconv.Atoi(l[i])
		if err != nil {
			return false
		}
		got := 0
		if i < len(h) {
			if got, err = strconv.Atoi(h[i]); err != nil {
				return false
			}
		}
		if got != want {
			return got < want
		}
	}
	return false
}

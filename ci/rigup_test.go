package ci

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"slipway/ci/report"
	softrig "slipway/ci/rig"
	"slipway/ci/suite/suitetest"
	"slipway/images"
)

// smallRig is a rig with this machine's own userland, and a suite. DIR in the suite is
// the board's folder.
func smallRig(t *testing.T, suite string) *rigRun {
	t.Helper()
	if err := softrig.CheckRoot(); err != nil {
		t.Skip(err)
	}
	for _, program := range []string{"/usr/sbin/sshd", "ip", "sysctl", "ethtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v; apt-get install openssh-server iproute2 procps ethtool", err)
		}
	}
	dir := t.TempDir()
	suite = strings.ReplaceAll(suite, "DIR", dir)
	spec := images.Spec{Board: "small-rig", Rig: &images.Rig{
		Ports:  []images.RigPort{{Name: "p0", Address: "192.0.2.254/24"}},
		Places: []images.RigPlace{{Name: "leaf1", Port: "p0", Address: "192.0.2.1/24"}},
	}, Suites: []string{suitetest.WriteSuite(t, map[string]string{"main.yml": suite})}}
	spec.SSH.User = "root"
	return &rigRun{spec: spec, opt: RigOptions{Out: io.Discard, Build: images.Options{Dir: dir}}, dir: dir, report: report.New(spec), layers: []string{"/"}}
}

// readyStages are the stages after the build.
func (u *rigRun) readyStages() []stage {
	return slices.DeleteFunc(u.rigStages(), func(s stage) bool { return s.name == "packages" || s.name == "build" })
}

func (u *rigRun) wantOff(t *testing.T) {
	t.Helper()
	if _, err := softrig.Find(u.dir); !errors.Is(err, softrig.ErrOff) {
		t.Errorf("the rig afterwards: %v; want %v", err, softrig.ErrOff)
	}
}

func TestRigUpStages(t *testing.T) {
	var got []string
	for _, s := range (&rigRun{dir: "build/small-rig"}).rigStages() {
		got = append(got, s.name)
		if s.next == "" {
			t.Errorf("stage %s says not what to do when it fails", s.name)
		}
	}
	if want := []string{"packages", "build", "rig", "smoke"}; !slices.Equal(got, want) {
		t.Errorf("stages are %q; want %q", got, want)
	}
}

func TestRigUpFails(t *testing.T) {
	u := smallRig(t, "command: {a port: {exec: ip link show p0}, no port: {exec: ip link show p7}}")
	err := u.runStages(t.Context(), u.readyStages())
	if !errors.Is(err, report.ErrFailed) {
		t.Fatalf("run = %v; want %v", err, report.ErrFailed)
	}
	last := u.report.Stages[len(u.report.Stages)-1]
	if last.Name != "smoke" || last.Status != report.Failed {
		t.Errorf("the last stage is %+v; want smoke, failed", last)
	}
	if n := u.report.Counts().Checks; n[report.Passed] != 1 || n[report.Failed] != 1 {
		t.Errorf("checks: %v; want one that passed and one that failed", n)
	}
	u.wantOff(t)
}

// A Ctrl-C in the middle of a check leaves a report, and no rig.
func TestRigUpStops(t *testing.T) {
	u := smallRig(t, "command: {for ever: {exec: 'echo > DIR/ssh/began; sleep 1000', timeout: 600000}}")
	ctx, interrupt := context.WithCancelCause(t.Context())
	watch := stage{"watch", func(context.Context) (string, error) {
		began := filepath.Join(u.dir, "ssh", "began") // a folder that the rig shares
		err := unix.Mkfifo(began, 0o600)
		go func() {
			_, err := os.ReadFile(began) // until the check writes
			interrupt(errors.Join(errors.New("interrupt"), err))
		}()
		return "", err
	}, ""}
	err := u.runStages(ctx, slices.Insert(u.readyStages(), 1, watch))
	if err == nil || !strings.Contains(err.Error(), "interrupt") {
		t.Errorf("run = %v; want the interrupt", err)
	}
	all, err := report.ReadReports(filepath.Join(u.opt.Build.ReportDir(u.spec), "report.json"))
	if err != nil || len(all) != 1 || !all[0].Failed() {
		t.Errorf("the report: %+v, %v; want one of a run that was stopped", all, err)
	}
	u.wantOff(t)
}

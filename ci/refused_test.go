package ci

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"slipway/ci/report"
	"slipway/images"
)

// A run that is refused before it begins has a report for programs, but prints only its error
// for a person.
func TestReportOfARunThatDidNotBegin(t *testing.T) {
	spec, opt := images.Spec{Board: "toy"}, images.Options{Dir: t.TempDir()}
	damaged := images.ArtifactPath(opt.BoardDir(spec))
	if err := errors.Join(os.MkdirAll(filepath.Dir(damaged), 0o755), os.WriteFile(damaged, []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func() (report.Report, error){
		"up": func() (report.Report, error) { return Up(t.Context(), spec, UpOptions{Build: opt, Out: io.Discard}) },
		"rig up": func() (report.Report, error) {
			return UpRig(t.Context(), spec, RigOptions{Build: opt, Out: io.Discard})
		},
		"smoke": func() (report.Report, error) { return SmokeOn(t.Context(), io.Discard, opt, spec, "h", "") },
		"smoke, no suite": func() (report.Report, error) {
			return SmokeOn(t.Context(), io.Discard, images.Options{Dir: t.TempDir()}, spec, "h", "")
		},
		"smoke, no host": func() (report.Report, error) {
			proved := images.Spec{Board: "toy", Suites: []string{"base"}}
			return SmokeOn(t.Context(), io.Discard, images.Options{Dir: t.TempDir()}, proved, "root@h:x", "")
		},
		"update": func() (report.Report, error) {
			o, err := Update(t.Context(), images.Options{Dir: t.TempDir()}, spec, "h", "nosuch.raucb", UpdateOptions{Out: io.Discard, NoReboot: true})
			return o.Report, err
		},
	} {
		r, err := run()
		var said bytes.Buffer
		r.Summary(&said)
		if err == nil || said.Len() > 0 || !r.Failed() || r.Reason != report.ReasonFor(err) {
			t.Errorf("%s: %v, %+v, and a person reads %q; want the error alone", name, err, r, said.String())
		}
		dir := t.TempDir()
		saw, _, _ := strings.Cut(err.Error(), "\nnext: ")
		werr := r.Write(dir)
		if all, rerr := report.ReadReports(filepath.Join(dir, report.ReportJSON)); werr != nil || rerr != nil || all[0].Board != "toy" || all[0].Stages[0].Saw != saw {
			t.Errorf("%s: its report.json: %v, %v, %+v", name, werr, rerr, all)
		}
	}
}

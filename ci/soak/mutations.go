package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"slipway/ci"
	softrig "slipway/ci/rig"
	"slipway/images"
)

// mutationFiles are the faults, a patch each.
const mutationFiles = "ci/rig/testdata/mutations"

// mutated is what can be changed, by the folder of its patches: the part of a rig, the script
// that builds it again, and the suite that must find the fault.
var mutated = map[string]struct{ board, part, script, suite string }{
	"swflow": {"bluefield-rig", "drivers", "recipe=dpdk-swflow" + driverScript, "dpu-flow"},
	"frr":    {"bluefield-rig", "frr", frrScript, "dpu-pbr"},
	"ml_sw":  {"bluefield-rig-trixie", "drivers", "recipe=dpdk-ml-sw" + driverScript, "dpu-mldev"},
}

// driverScript builds the driver of a recipe with the change.
const driverScript = `
rm -rf mutant made
mkdir mutant
cp -r /source/$recipe/files/. mutant/
patch -d mutant -p1 -F0 < change
meson setup made mutant -Dbuildtype=release -Ddpdk_source=/build/dpdk
ninja -C made
mkdir -p /made/usr/lib/slipway
cp made/librte_*.so /made/usr/lib/slipway/
`

// frrScript builds what a change of FRR's touches. What configure decides is tried in a copy:
// all would be built again after it.
const frrScript = `
if grep -q '^+++ b/configure.ac' change; then
	rm -rf copy
	cp -a frr copy
	cd copy
	patch -p1 -F0 < ../change
	autoreconf -fi
	sed -n 's/^run \(.\/configure .*\)/\1/p' /source/debian.txt > ../configure.again
	sh -eu ../configure.again
	exit
fi
cd frr
patch -p1 -F0 < ../change
trap 'patch -R -p1 -F0 < ../change' EXIT
make -j2 zebra/zebra zebra/zebra_dplane_dpdk.la pbrd/pbrd
lib=/made/usr/lib
mkdir -p $lib/frr/modules
cp zebra/.libs/zebra pbrd/.libs/pbrd $lib/frr/
cp zebra/.libs/zebra_dplane_dpdk.so $lib/frr/modules/zebra_dplane_dpdk.so
cp lib/.libs/libfrr.so.0.0.0 $lib/
`

// mutation is a fault that somebody could make, and that a suite must find.
type mutation struct {
	name, kind string
	text       []byte
	fails      bool           // the build must find it
	says       *regexp.Regexp // what must be said of it
}

// Mutations builds each fault into a rig, and runs the suite that must find it. A fault that
// nothing finds is an error.
func Mutations(ctx context.Context, w io.Writer, dir string, opt Options) error {
	all, err := mutations(opt.Only)
	if err != nil {
		return err
	}
	var survived []string
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	benches := map[string]*bench{}
	for _, m := range all {
		b := benches[m.kind]
		if b == nil {
			if b, err = openBench(ctx, w, m.kind); err != nil {
				return err
			}
			benches[m.kind] = b
		}
		caught, said, err := b.try(ctx, m)
		if err != nil {
			return fmt.Errorf("mutation %s: %w", m.name, err)
		}
		if caught == "" {
			survived = append(survived, m.name)
		}
		fmt.Fprintf(w, "%s | %s | %s\n", m.name, cmp.Or(caught, "NOTHING"), said)
		fmt.Fprintf(table, "%s\t| %s\t| %s\n", m.name, cmp.Or(caught, "NOTHING"), said)
	}
	fmt.Fprintf(w, "\nmutation | caught by | what it said\n")
	table.Flush()
	fmt.Fprintf(w, "%d of %d mutations are caught\n", len(all)-len(survived), len(all))
	if len(survived) > 0 {
		return fmt.Errorf("nothing catches %s", strings.Join(survived, ", "))
	}
	return nil
}

// mutations reads the faults whose names match a pattern.
func mutations(only string) (all []mutation, err error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(mutationFiles, "*", "*.patch"))
	for _, file := range files {
		kind := filepath.Base(filepath.Dir(file))
		m := mutation{name: kind + "/" + strings.TrimSuffix(filepath.Base(file), ".patch"), kind: kind}
		if _, known := mutated[kind]; !known {
			return nil, fmt.Errorf("%s: nothing is built from the folder %s", file, kind)
		}
		if !pattern.MatchString(m.name) {
			continue
		}
		if m.text, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		head, _, _ := strings.Cut(string(m.text), "\n--- ")
		for line := range strings.Lines(head) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch key {
			case "says":
				if m.says, err = regexp.Compile(value); err != nil {
					return nil, fmt.Errorf("%s: %w", file, err)
				}
			case "fails":
				m.fails = true
			}
		}
		all = append(all, m)
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no mutation matches %q in %s; run this in a clone", only, mutationFiles)
	}
	return all, err
}

// bench is a rig without a fault, and the workshop of a part of it.
type bench struct {
	spec     images.Spec
	script   string
	out      io.Writer
	workshop *softrig.Workshop
}

var rigOptions = images.Options{Dir: "build"}

// openBench proves that the suite passes where there is no fault.
func openBench(ctx context.Context, w io.Writer, kind string) (*bench, error) {
	what := mutated[kind]
	spec, err := images.Load(what.board)
	if err != nil {
		return nil, err
	}
	spec.Suites = []string{what.suite}
	b := &bench{spec: spec, script: what.script, out: w}
	layers, err := softrig.Build(ctx, spec, rigOptions)
	if err != nil {
		return nil, err
	}
	if b.workshop, err = softrig.OpenWorkshop(ctx, spec, rigOptions, layers, what.part); err != nil {
		return nil, err
	}
	if failed, said, err := b.prove(ctx); err != nil || failed != "" {
		return nil, errors.Join(fmt.Errorf("%s without a mutation: %s %s", what.suite, failed, said), err)
	}
	return b, nil
}

// try says what has found a fault, and what it said.
func (b *bench) try(ctx context.Context, m mutation) (caught, said string, err error) {
	made, err := b.workshop.Change(ctx, b.script, m.text)
	if m.fails && err != nil {
		caught, said, err = "the build", err.Error(), nil
	} else if err == nil {
		caught, said, err = b.prove(ctx, made)
	}
	if err != nil {
		return "", "", err
	}
	if caught != "" && m.says != nil && !m.says.MatchString(said) {
		return "", fmt.Sprintf("%s failed, and did not say %q: %s", caught, m.says, firstLines(said)), nil
	}
	return caught, firstLines(said), nil
}

// prove runs the suite, and returns the first check that failed and what it saw.
func (b *bench) prove(ctx context.Context, above ...string) (failed, said string, err error) {
	report, err := ci.UpRig(ctx, b.spec, ci.RigOptions{Build: rigOptions, Out: b.out, Above: above})
	for _, s := range report.Suites {
		if i := slices.IndexFunc(s.Checks, func(c ci.CheckResult) bool { return c.Status == ci.Failed }); i >= 0 {
			return s.Checks[i].Name, s.Checks[i].Saw, nil
		}
	}
	return "", "", err
}

func firstLines(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 300)]
}

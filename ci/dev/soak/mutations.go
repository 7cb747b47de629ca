package soak

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/renameio/v2"

	"slipway/ci"
	"slipway/ci/report"
	softrig "slipway/ci/rig"
	"slipway/images"
)

// mutationFiles is the folder of the faults, with a patch for each.
const mutationFiles = "ci/rig/testdata/mutations"

// mutated describes what can be changed, by the folder of its patches: the part of a rig,
// the script that builds it again, and the suite that must find the fault.
var mutated = map[string]struct{ board, part, script, suite string }{
	"swflow": {"bluefield-rig", "drivers", "recipe=dpdk-swflow" + driverScript, "dpu-flow"},
	"frr":    {"bluefield-rig", "frr", frrScript, "dpu-pbr"},
	// Faults that FRR 8.4.4 does not show, as its pbrd refuses the rule.
	"frr-10.3": {"bluefield-rig-trixie", "frr", frrScript, "dpu-pbr"},
	"ml_sw":    {"bluefield-rig-trixie", "drivers", "recipe=dpdk-ml-sw" + driverScript, "dpu-mldev"},
}

// driverScript builds the driver of a recipe with the change, in a copy of the build
// without it. That builds few files again, and a run may be stopped at any time.
const driverScript = `
if [ ! -e "base-$recipe" ]; then
	rm -rf mutant made part
	cp -r "/source/$recipe/files" mutant
	meson setup made mutant -Dbuildtype=release -Ddpdk_source=/build/dpdk
	ninja -C made
	mkdir part
	mv mutant made part
	mv part "base-$recipe"
fi
rm -rf mutant made
cp -a "base-$recipe/." .
patch -d mutant -p1 -F0 < change
ninja -C made
mkdir -p /made/usr/lib/slipway
cp made/librte_*.so /made/usr/lib/slipway/
`

// frrScript builds the files of FRR that a change affects, in a copy, so that a run may be
// stopped at any time.
const frrScript = `
rm -rf copy
cp -a frr copy
cd copy
patch -p1 -F0 < ../change
if grep -q '^+++ b/configure.ac' ../change; then
	autoreconf -fi
	sed -n 's/^run \(.\/configure .*\)/\1/p' /source/debian.txt > ../configure.again
	sh -eu ../configure.again
	exit
fi
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
	says       *regexp.Regexp // pattern of the message about it
}

// verdictsFile records the faults that were found.
const verdictsFile = "build/soak/mutations.json"

// verdict names the check that found a fault. Digest covers all inputs of the verdict.
type verdict struct{ Digest, Caught, Said string }

// verdictOf returns the recorded verdict with the same digest, or calls try for a new one.
// It does not record a verdict that no check found the fault, nor one of a stopped run.
func verdictOf(ctx context.Context, file, name, digest string, try func() (caught, said string, err error)) (v verdict, kept bool, err error) {
	if v = readVerdicts(file)[name]; v.Digest == digest {
		return v, true, nil
	}
	v.Digest = digest
	if v.Caught, v.Said, err = try(); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil || v.Caught == "" {
		return v, false, err
	}
	all := readVerdicts(file) // a run on another rig may have added some
	all[name] = v
	data, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o755)
	}
	if err == nil {
		err = renameio.WriteFile(file, data, 0o644)
	}
	return v, false, err
}

// readVerdicts reads the recorded verdicts.
func readVerdicts(file string) map[string]verdict {
	all := map[string]verdict{}
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &all) != nil {
		return map[string]verdict{}
	}
	return all
}

// Mutations builds each fault into a rig and runs the suite that must find it. A fault that
// nothing finds is an error. A fault that was found is not tried again until one of its
// inputs changes.
func Mutations(ctx context.Context, w io.Writer, dir string, opt Options) error {
	all, err := readMutations(opt.Only)
	if err != nil {
		return err
	}
	var survived []string
	before, benches := 0, map[string]*mutationRig{}
	for _, m := range all {
		b := benches[m.kind]
		if b == nil {
			if b, err = openMutationRig(ctx, w, m.kind); err != nil {
				return err
			}
			benches[m.kind] = b
		}
		v, kept, err := verdictOf(ctx, verdictsFile, m.name, b.inputDigest(m.text), func() (string, string, error) { return b.tryMutation(ctx, m) })
		if err != nil {
			return fmt.Errorf("mutation %s: %w", m.name, err)
		}
		if v.Caught == "" {
			survived = append(survived, m.name)
		}
		if kept {
			before++
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", m.name, cmp.Or(v.Caught, "NOTHING"), v.Said)
	}
	fmt.Fprintf(w, "%d of %d mutations are caught, %d of them in runs before\n", len(all)-len(survived), len(all), before)
	if len(survived) > 0 {
		return fmt.Errorf("nothing catches %s", strings.Join(survived, ", "))
	}
	return nil
}

// readMutations reads the faults whose names match a pattern.
func readMutations(only string) (all []mutation, err error) {
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

// mutationRig is a rig without a fault, with the workshop of one of its parts.
type mutationRig struct {
	spec         images.Spec
	part, script string
	out          io.Writer
	layers       []string
	inputs       []byte
	workshop     *softrig.Workshop
}

var rigOptions = images.Options{Dir: "build"}

func openMutationRig(ctx context.Context, w io.Writer, kind string) (*mutationRig, error) {
	what := mutated[kind]
	spec, err := images.Load(what.board)
	if err != nil {
		return nil, err
	}
	spec.Suites = []string{what.suite}
	b := &mutationRig{spec: spec, part: what.part, script: what.script, out: w}
	if b.layers, err = softrig.Build(ctx, spec, rigOptions); err != nil {
		return nil, err
	}
	b.inputs, err = verdictInputs(spec, b.layers, b.script)
	return b, err
}

// verdictInputs returns all inputs of a verdict except the fault: the rig, the suite, and
// the source of the checks.
func verdictInputs(spec images.Spec, layers []string, script string) ([]byte, error) {
	described, err := json.Marshal(spec)
	all := fmt.Appendf(nil, "%q %q %q", described, layers, script)
	for _, pattern := range []string{"ci/*.go", "ci/suite/*.go", "ci/suite/match/*.go", "ci/offload/*.go", "ci/reach/*.go", "ci/rig/*.go", "ci/suite/suites/" + spec.Suites[0] + ".yml", "ci/suite/workloads/" + spec.Suites[0] + "/*"} {
		files, gerr := filepath.Glob(pattern)
		err = errors.Join(err, gerr)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			data, rerr := os.ReadFile(file)
			err = errors.Join(err, rerr)
			all = fmt.Appendf(all, "%q %q", file, data)
		}
	}
	return all, err
}

func (b *mutationRig) inputDigest(change []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(slices.Concat(b.inputs, change)))
}

// prepareWorkshop opens the workshop and checks that the suite passes without a fault.
func (b *mutationRig) prepareWorkshop(ctx context.Context) error {
	w, err := softrig.OpenWorkshop(ctx, b.spec, rigOptions, b.layers, b.part)
	if err != nil {
		return err
	}
	_, _, err = verdictOf(ctx, verdictsFile, b.spec.Suites[0], b.inputDigest(nil), func() (string, string, error) {
		failed, said, err := b.runSuite(ctx)
		if err != nil || failed != "" {
			err = errors.Join(fmt.Errorf("%s without a mutation: %s %s", b.spec.Suites[0], failed, said), err)
		}
		return "nothing to catch", "", err
	})
	if err == nil {
		b.workshop = w
	}
	return err
}

// tryMutation returns the check that found a fault, and its message.
func (b *mutationRig) tryMutation(ctx context.Context, m mutation) (caught, said string, err error) {
	if b.workshop == nil {
		if err := b.prepareWorkshop(ctx); err != nil {
			return "", "", err
		}
	}
	made, err := b.workshop.Change(ctx, b.script, m.text)
	if m.fails && err != nil {
		caught, said, err = "the build", err.Error(), nil
	} else if err == nil {
		caught, said, err = b.runSuite(ctx, made)
	}
	if err != nil {
		return "", "", err
	}
	if caught != "" && m.says != nil && !m.says.MatchString(said) {
		return "", fmt.Sprintf("%s failed, and did not say %q: %s", caught, m.says, firstLines(said)), nil
	}
	return caught, firstLines(said), nil
}

// runSuite runs the suite and returns the first failed check, with its message.
func (b *mutationRig) runSuite(ctx context.Context, above ...string) (failed, said string, err error) {
	r, err := ci.UpRig(ctx, b.spec, ci.RigOptions{Build: rigOptions, Out: b.out, Above: above})
	for _, s := range r.Suites {
		if i := slices.IndexFunc(s.Checks, func(c report.CheckResult) bool { return c.Status == report.Failed }); i >= 0 {
			return s.Checks[i].Name, s.Checks[i].Saw, nil
		}
	}
	return "", "", err
}

func firstLines(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 300)]
}

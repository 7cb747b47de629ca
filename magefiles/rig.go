//go:build mage

package main

import (
	"context"
	"errors"
	"os"

	"github.com/magefile/mage/mg"

	"slipway/ci"
	"slipway/ci/report"
	suites "slipway/ci/suite"
	"slipway/images"
)

// Rig is for people who want to see a DPU's stack work without a DPU.
type Rig mg.Namespace

// Up takes a rig, a BlueField of namespaces on this machine, from nothing to a report.
//
// As root, on Debian: it fetches a userland with DPDK, builds our software driver in it,
// makes network namespaces that stand for the DPU's ports, its host, a virtual machine
// and two leaves, and runs the suites there over SSH. report.html, report.json, junit.xml and transcript.txt, with every command that was
// run, are written into build/<board>. All that is proved is software. What did not
// change is not built again. It exits as smoke does.
//
// Examples: "rig:up"; "rig:up bluefield-rig-trixie"; "rig:up -keep" and then "rig:ssh".
func (Rig) Up(ctx context.Context,
	board *string, // which rig; the first one, on Debian 12, if not given
	keep *bool, // leave it on until Ctrl-C or rig:down
	as *string, // print the report as tap, lava, junit, html or json
) error {
	form, wrong := report.FormOf(given(as, ""), false)
	return runForRig(ctx, board, func(ctx context.Context, spec images.Spec, now <-chan struct{}) error {
		return firstError(wrong, func() error {
			report, err := ci.UpRig(ctx, spec, ci.RigOptions{Build: options, Out: os.Stderr, Keep: given(keep, false), How: []suites.Option{suites.EndTeardown(now)}})
			return showReport(report, err, form)
		})
	})
}

// Build makes the root of a rig alone: the userland and what is built in it.
//
// Example: "rig:build bluefield-rig-trixie".
func (Rig) Build(ctx context.Context,
	board *string, // which rig; the first one if not given
) error {
	return runForRig(ctx, board, func(ctx context.Context, spec images.Spec, _ <-chan struct{}) error {
		return ci.BuildRig(ctx, os.Stdout, spec, options)
	})
}

// Down switches off the rig that "rig:up -keep" keeps on.
//
// Example: "rig:down".
func (Rig) Down(ctx context.Context,
	board *string, // which rig; the first one if not given
) error {
	return runForRig(ctx, board, func(ctx context.Context, spec images.Spec, _ <-chan struct{}) error {
		return ci.DownRig(ctx, options, spec)
	})
}

// SSH logs in on the rig that "rig:up -keep" keeps on. Leave with "exit".
//
// Examples: "rig:ssh"; "rig:ssh -- ip -brief link" to run that there.
func (Rig) SSH(ctx context.Context,
	board *string, // which rig; the first one if not given
	argv *string, // a command to run there, as a JSON list; what follows "--" becomes it
) error {
	name, err := rigName(board)
	spec, unknown := loadSpec(ctx, name)
	return withStatus(firstError(errors.Join(err, unknown), func() error { return ci.SSHRig(options, spec, decodeArgs(given(argv, ""))) }))
}

func runForRig(ctx context.Context, board *string, work func(context.Context, images.Spec, <-chan struct{}) error) error {
	name, err := rigName(board)
	return firstError(err, func() error { return runPatientlyFor(ctx, name, work) })
}

// rigName is the board that was named, or the first rig.
func rigName(board *string) (string, error) {
	if name := given(board, ""); name != "" {
		return name, nil
	}
	spec, err := images.First("is a rig", func(s images.Spec) bool { return s.Rig != nil })
	return spec.Board, err
}

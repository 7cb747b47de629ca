package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"slipway/runtime-hook/internal/choose"
	"slipway/runtime-hook/internal/config"
	"slipway/runtime-hook/internal/csv"
	"slipway/runtime-hook/internal/oci"
	"slipway/runtime-hook/internal/plan"
)

// request is what a container requests from the board, with the board's settings.
type request struct {
	choose.Selection
	config.Config
	looked bool // slipway-runtime has just checked the board for this container
}

// readRequest reads the request of a container, and the board's settings if it requests anything.
// Faults in the settings are an error for such a container only. By the settings, mounts
// replace NVIDIA_VISIBLE_DEVICES, and it may ignore and log an unprivileged container's request.
func readRequest(c oci.Config) (request, error) {
	wanted, err := choose.ParseEnv(c.Env)
	if err == nil && !wanted.Wants() && len(c.DeviceMounts) == 0 {
		return request{}, nil
	}
	set, wrong := config.Read("/")
	switch {
	case wrong != nil:
		err = cmp.Or(err, wrong)
	case set.VolumeMounts && len(c.DeviceMounts) > 0:
		wanted, err = choose.ParseEnv(append(slices.Clone(c.Env), visiblePrefix+strings.Join(c.DeviceMounts, ",")))
	case !set.Variable && !c.Privileged:
		logIgnored(set, c.Rootfs, wanted.Wants() || err != nil)
		return request{}, nil
	}
	return request{Selection: wanted, Config: set}, err
}

// visiblePrefix begins the environment variable that names a container's devices.
const visiblePrefix = "NVIDIA_VISIBLE_DEVICES="

// logIgnored logs, if asked is true, that NVIDIA_VISIBLE_DEVICES has no effect in an unprivileged
// container, which has this rootfs.
func logIgnored(set config.Config, rootfs string, asked bool) {
	if !asked {
		return
	}
	log := openLog(set.Log.File)
	defer log.Close()
	fmt.Fprintf(log, "container with the root %s: gave nothing: it is not privileged, and %s takes NVIDIA_VISIBLE_DEVICES from privileged containers only\n", printable(rootfs), config.File)
}

// readContainer reads a container's config.json and request. If devices is not "", they replace the
// requested ones, and the container counts as privileged. If config.json is unreadable, the request
// has only the settings, and the error is returned.
func readContainer(state oci.State, devices string) (oci.Config, request, error) {
	c, err := oci.ReadConfig(state.Bundle)
	if err != nil {
		// The caller logs this error in the file that the settings name.
		set, _ := config.Read("/")
		return c, request{Config: set}, err
	}
	if devices != "" {
		// An engine chose these devices by a CDI spec, so the container need not be privileged.
		c.Env, c.DeviceMounts, c.Privileged = append(c.Env, visiblePrefix+devices), nil, true
	}
	wanted, err := readRequest(c)
	return c, wanted, err
}

// planShare checks the image's requirements, and returns the requested part of the board's plan,
// with notes for the log. A board without CSV lists has an empty plan and a note. If it has
// NVIDIA's driver of servers and desktops, planShare returns errNoLists.
func (r request) planShare() (p plan.Plan, notes []string, err error) {
	if notes, err = r.Check("/"); err != nil {
		return p, nil, err
	}
	lists, err := csv.ReadFiles(r.CSVDir)
	if err != nil {
		return p, nil, err
	}
	if len(lists) == 0 {
		why := explainNoLists("/", r.CSVDir)
		if errors.Is(why, errNoLists) {
			return p, nil, why
		}
		notes = append(notes, why.Error())
	}
	all, problems := plan.Load(lists, r.Ignore, r.looked)
	p, err = r.PartOf("/", all)
	if !r.Devices {
		p.Devices = nil
	}
	return p, append(notes, unusedProblems(problems)...), err
}

// errNoLists means that the board has a GPU, but no list has its files.
var errNoLists = errors.New("the files of its driver are in no list")

// explainNoLists returns the error for a board at root that has no CSV lists in csvDir. It is
// errNoLists if the board has NVIDIA's driver for servers and desktops.
func explainNoLists(root, csvDir string) error {
	dir := filepath.Join(root, csvDir)
	if choose.WithoutLists(root) {
		return fmt.Errorf("%s: no *.csv there, and the board has NVIDIA's driver of servers and desktops, as with JetPack 7: %w; next: install NVIDIA's toolkit and run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml, or list the files in %s", dir, errNoLists, dir)
	}
	return fmt.Errorf("%s: no *.csv there; install the board's", dir)
}

// Package choose selects a container's part of the board's plan by its environment. It selects by
// GPU and capability, and checks the image's requirements. It changes nothing.
package choose

import (
	"fmt"
	"slices"
	"strings"

	"slipway/runtime-hook/internal/plan"
)

// Selection is what one container requests from the board.
type Selection struct {
	wants        bool
	gpus         []gpuName // nil: all GPUs
	capabilities Capability
	requires     []requirement
}

// Limits for the environment, maybe of a hostile image. Real ones have one or two requirements.
const (
	maxValueBytes   = 16 << 10
	maxRequirements = 16
)

const (
	visibleDevices     = "NVIDIA_VISIBLE_DEVICES"
	driverCapabilities = "NVIDIA_DRIVER_CAPABILITIES"
	disableRequire     = "NVIDIA_DISABLE_REQUIRE"
	requirePrefix      = "NVIDIA_REQUIRE_"
)

// ParseEnv parses a container's environment into a Selection, empty without a request. With one, an
// unknown capability, an invalid GPU name or requirement, or a part of a GPU (MIG) is an error.
func ParseEnv(env []string) (Selection, error) {
	vars := boardVariables(env)
	var s Selection
	var err error
	if s.gpus, s.wants, err = parseNames(vars[visibleDevices]); err != nil || !s.wants {
		return Selection{}, err
	}
	if err = checkLimits(vars); err != nil {
		return Selection{}, err
	}
	if s.capabilities, err = parseCapabilities(vars[driverCapabilities]); err != nil {
		return Selection{}, err
	}
	s.requires, err = parseRequirements(vars)
	return s, err
}

// boardVariables returns the variables of env for this package. Of two, the last counts. It drops
// requirements after those that make checkLimits refuse them.
func boardVariables(env []string) map[string]string {
	vars := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		switch {
		case name == visibleDevices, name == driverCapabilities, name == disableRequire,
			strings.HasPrefix(name, requirePrefix) && len(vars) <= maxRequirements+3: // one over the limit, so that checkLimits sees it
			vars[name] = value
		}
	}
	return vars
}

// checkLimits returns an error for too many requirements, or a variable that is too long. ParseEnv
// calls it only for a container that requests something.
func checkLimits(vars map[string]string) error {
	if len(vars) > maxRequirements+3 {
		return fmt.Errorf("the container has more than %d variables %s*; take some away", maxRequirements, requirePrefix)
	}
	for name, value := range vars {
		if err := checkLength(name, value); err != nil {
			return err
		}
	}
	return nil
}

// checkLength returns an error for a variable of more than maxValueBytes, its name included.
func checkLength(name, value string) error {
	if len(name)+len(value) > maxValueBytes {
		return fmt.Errorf("the container's %.80s is %d bytes long; at most %d are read: set it to less", name, len(value), maxValueBytes)
	}
	return nil
}

// Wants reports whether the container requests anything from the board.
func (s Selection) Wants() bool { return s.wants }

// PartOf returns the part of p that the container gets, in p's order. A GPU that the board at root
// does not have is an error. p stays unchanged, because it may be shared.
func (s Selection) PartOf(root string, p plan.Plan) (plan.Plan, error) {
	others, err := s.unchosenNodes(root, p)
	if err != nil {
		return plan.Plan{}, err
	}
	if len(others) == 0 && s.capabilities == all {
		return p, nil
	}
	classes := Classes(p)
	drops := func(path string) bool { return classes[path]&s.capabilities == 0 }
	out := p
	out.Mounts = slices.DeleteFunc(slices.Clone(p.Mounts), func(m plan.Mount) bool { return drops(m.Path) })
	out.Links = slices.DeleteFunc(slices.Clone(p.Links), func(l plan.Link) bool { return drops(l.Path) })
	out.Devices = slices.DeleteFunc(slices.Clone(p.Devices), func(d plan.Device) bool { return others[d.Path] || drops(d.Path) })
	out.Libraries = out.ProvidedLibraries(p.Libraries)
	return out, nil
}

package lint

import (
	"cmp"
	"slices"
	"strings"
)

// The needs of a container besides the packages that are named.
var (
	gpuContainers = words("nvidia-docker nvidia-container-runtime nvidia-container-toolkit")
	engines       = words("docker docker-ce docker-moby containerd containerd-opencontainers podman cri-o nerdctl packagegroup-docker packagegroup-containerd packagegroup-podman k3s")
)

// bringsDocker reports whether nvidia-container-toolkit depends on docker on a branch of
// meta-tegra: up to whinlatter. The branches for R38 and later leave the engine to the image.
func bringsDocker(tegra string) bool {
	return !strings.HasPrefix(tegra, "master") && Before(tegra, "wrynose")
}

// checkContainers checks a build that installs a container engine or NVIDIA's runtime: the distro's
// features, systemd, the layers, and the engine. It first updates c.layers.DistroKnown.
func (c *checker) checkContainers() {
	gpu, engine := c.findInstalled(gpuContainers), c.findInstalled(engines)
	first := cmp.Or(gpu, engine)
	if first == nil {
		return
	}
	c.layers.DistroKnown = c.distroKnown()
	c.checkVirtualization(*first)
	c.checkSystemd(*first)
	c.checkContainerLayer(*first)
	tegra := c.layers.Branch["meta-tegra"]
	if gpu != nil && !c.isMissing(gpu.Text) && engine == nil && seriesOf(tegra) != "" && !bringsDocker(tegra) {
		c.addFinding(gpu.At, false, gpu.Text+" is installed without a container engine", "on "+tegra+" nvidia-container-toolkit no longer brings docker with it", "add docker docker-registry-config beside it")
	}
}

// distroKnown reports whether Slipway has read everything that sets the distro's features. It has
// not if the configuration includes other files or names another distro than the project.
func (c *checker) distroKnown() bool {
	if slices.ContainsFunc(c.statements, func(s Statement) bool { return s.Op == "" && includeDirectives[s.Var] }) {
		return false
	}
	switch name := assignedValue(c.statements, "DISTRO", ""); {
	case name == "" || name == c.layers.DistroName:
		return c.layers.DistroKnown
	default:
		return slices.Contains(plainDistros, name)
	}
}

// findInstalled returns the first installed package that is on the list, nil without one.
func (c *checker) findInstalled(list []string) *Word {
	i := slices.IndexFunc(c.installed, func(w Word) bool { return slices.Contains(list, w.Text) })
	if i < 0 {
		return nil
	}
	return &c.installed[i]
}

// checkVirtualization reports a build without the feature virtualization, which package w needs,
// if c.layers.DistroKnown, and any build that removes ldconfig from DISTRO_FEATURES.
func (c *checker) checkVirtualization(w Word) {
	virtualization := false
	for _, s := range c.allStatements() {
		base, operation := splitOverrides(s.Var)
		removed := operation == "remove" || base == "DISTRO_FEATURES_BACKFILL_CONSIDERED" || base == "DISTRO_FEATURES_OPTED_OUT"
		switch {
		case !strings.HasPrefix(base, "DISTRO_FEATURES"):
		case hasWord(s, "virtualization"):
			virtualization = !removed
		case hasWord(s, "ldconfig") && removed:
			c.addFinding(s.At, false, "ldconfig is taken out of DISTRO_FEATURES", "NVIDIA's container runtime runs ldconfig on the board, and finds no library without it", "remove ldconfig from "+base)
		}
	}
	if !virtualization && c.layers.DistroKnown {
		c.addFinding(w.At, true, "DISTRO_FEATURES has no virtualization, which "+w.Text+" needs", "bitbake skips the recipe without it, and then nothing provides it", "add "+c.appendTo("DISTRO_FEATURES", "virtualization"))
	}
}

// checkSystemd reports a build without systemd, which starts the package w, if DistroKnown is set.
func (c *checker) checkSystemd(w Word) {
	for _, s := range c.allStatements() {
		base, operation := splitOverrides(s.Var)
		if operation != "remove" && (base == "INIT_MANAGER" || base == "VIRTUAL-RUNTIME_init_manager" || base == "DISTRO_FEATURES") && hasWord(s, "systemd") {
			return
		}
	}
	if !c.layers.DistroKnown {
		return
	}
	fix := `add INIT_MANAGER = "systemd"`
	if Before(c.branch, "zeus") {
		fix = `add DISTRO_FEATURES_append = " systemd" and VIRTUAL-RUNTIME_init_manager = "systemd"`
	}
	c.addFinding(w.At, false, "the init system is not systemd, which "+w.Text+" is started by", "the container engine and the units of L4T are systemd's, and nothing starts them under another", fix)
}

// checkContainerLayer reports a project without meta-virtualization, which the package w needs,
// unless w is reported as missing, or a layer without a table may have its recipe.
func (c *checker) checkContainerLayer(w Word) {
	if c.layers.Branch["meta-virtualization"] != "" || c.layers.Others || len(c.layers.Branch) < 2 {
		return
	}
	if c.isMissing(w.Text) {
		return // has been said
	}
	c.addFinding(w.At, true, w.Text+" needs the layer meta-virtualization, which the project lacks", "meta-tegra's recipes for containers are active only beside it", "add meta-virtualization, and of meta-openembedded meta-oe, meta-python, meta-networking and meta-filesystems, to repos")
}

// allStatements returns the statements of the distro, then the build's own.
func (c *checker) allStatements() []Statement {
	var all []Statement
	for _, src := range c.layers.Distro {
		if statements, _, err := parseConf(src); err == nil {
			all = append(all, statements...)
		}
	}
	return append(all, c.statements...)
}

func hasWord(s Statement, word string) bool {
	return slices.ContainsFunc(s.Words, func(w Word) bool { return w.Text == word })
}

// appendTo returns the line that appends a word to a variable, in the syntax of the release.
func (c *checker) appendTo(variable, word string) string {
	if fromRelease(c.branch, "honister") {
		return variable + `:append = " ` + word + `"`
	}
	return variable + `_append = " ` + word + `"`
}

package lint

import (
	"slices"
	"strings"
)

// What a container needs besides the packages that are named.
var (
	gpuContainers = words("nvidia-docker nvidia-container-runtime nvidia-container-toolkit")
	engines       = words("docker docker-ce docker-moby containerd containerd-opencontainers podman cri-o nerdctl packagegroup-docker packagegroup-containerd packagegroup-podman k3s")
)

// bringsDocker is true where nvidia-container-toolkit depends on docker. It does up to
// whinlatter; the branches for R38 and all later ones leave the engine to the image.
func bringsDocker(tegra string) bool {
	return !strings.HasPrefix(tegra, "master") && Before(tegra, "wrynose")
}

// containers looks at what a build with containers in it needs.
func (c *checker) containers() {
	gpu, engine := c.named(gpuContainers), c.named(engines)
	first := gpu
	if first == nil {
		first = engine
	}
	if first == nil {
		return
	}
	c.layers.DistroKnown = c.distroKnown()
	c.feature(*first)
	c.systemd(*first)
	c.layer(*first)
	tegra := c.layers.Branch["meta-tegra"]
	if gpu != nil && !c.lacks(gpu.Text) && engine == nil && seriesOf(tegra) != "" && !bringsDocker(tegra) {
		c.add(gpu.At, false, gpu.Text+" is installed without a container engine", "on "+tegra+" nvidia-container-toolkit no longer brings docker with it", "add docker docker-registry-config beside it")
	}
}

// distroKnown is true where all that sets the distro's features has been read: the
// configuration includes no other files, and names no other distro than the project.
func (c *checker) distroKnown() bool {
	if slices.ContainsFunc(c.statements, func(s Statement) bool { return s.Op == "" && includes[s.Var] }) {
		return false
	}
	switch name := assigned(c.statements, "DISTRO", ""); {
	case name == "" || name == c.layers.DistroName:
		return c.layers.DistroKnown
	default:
		return slices.Contains(featureless, name)
	}
}

func (c *checker) named(list []string) *Word {
	i := slices.IndexFunc(c.installed, func(w Word) bool { return slices.Contains(list, w.Text) })
	if i < 0 {
		return nil
	}
	return &c.installed[i]
}

// feature looks for virtualization in DISTRO_FEATURES, and for ldconfig taken out.
func (c *checker) feature(w Word) {
	virtualization := false
	for _, s := range c.settled() {
		base, operation := split(s.Var)
		removed := operation == "remove" || base == "DISTRO_FEATURES_BACKFILL_CONSIDERED" || base == "DISTRO_FEATURES_OPTED_OUT"
		switch {
		case !strings.HasPrefix(base, "DISTRO_FEATURES"):
		case has(s, "virtualization"):
			virtualization = !removed
		case has(s, "ldconfig") && removed:
			c.add(s.At, false, "ldconfig is taken out of DISTRO_FEATURES", "NVIDIA's container runtime runs ldconfig on the board, and finds no library without it", "remove ldconfig from "+base)
		}
	}
	if !virtualization && c.layers.DistroKnown {
		c.add(w.At, true, "DISTRO_FEATURES has no virtualization, which "+w.Text+" needs", "bitbake skips the recipe without it, and then nothing provides it", "add "+c.appendTo("DISTRO_FEATURES", "virtualization"))
	}
}

func (c *checker) systemd(w Word) {
	for _, s := range c.settled() {
		base, operation := split(s.Var)
		if operation != "remove" && (base == "INIT_MANAGER" || base == "VIRTUAL-RUNTIME_init_manager" || base == "DISTRO_FEATURES") && has(s, "systemd") {
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
	c.add(w.At, false, "the init system is not systemd, which "+w.Text+" is started by", "the container engine and the units of L4T are systemd's, and nothing starts them under another", fix)
}

// layer says where containers come from.
func (c *checker) layer(w Word) {
	if c.layers.Branch["meta-virtualization"] != "" || c.layers.Others || len(c.layers.Branch) < 2 {
		return
	}
	if c.lacks(w.Text) {
		return // has been said
	}
	c.add(w.At, true, w.Text+" needs the layer meta-virtualization, which the project lacks", "meta-tegra's recipes for containers are active only beside it", "add meta-virtualization, and of meta-openembedded meta-oe, meta-python, meta-networking and meta-filesystems, to repos")
}

// settled is all that is configured: the distro's first, then the build's own.
func (c *checker) settled() []Statement {
	var all []Statement
	for _, src := range c.layers.Distro {
		if statements, _, err := parse(src); err == nil {
			all = append(all, statements...)
		}
	}
	return append(all, c.statements...)
}

func has(s Statement, word string) bool {
	return slices.ContainsFunc(s.Words, func(w Word) bool { return w.Text == word })
}

func (c *checker) appendTo(variable, word string) string {
	if since(c.branch, "honister") {
		return variable + `:append = " ` + word + `"`
	}
	return variable + `_append = " ` + word + `"`
}

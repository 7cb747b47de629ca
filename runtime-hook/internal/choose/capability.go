package choose

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"slipway/runtime-hook/internal/plan"
)

// Capability is a set of uses of the driver, as NVIDIA_DRIVER_CAPABILITIES names it.
type Capability uint8

// NVIDIA's capabilities. An entry of the plan without one is for all: programs may need it.
const (
	Compute Capability = 1 << iota
	Compat32
	Graphics
	Utility
	Video
	Display
	NGX

	all = NGX<<1 - 1
)

var capabilityNames = []string{"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}

// String returns the names of the capabilities with commas, or "all".
func (c Capability) String() string {
	if c == all {
		return "all"
	}
	var out []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}

// parseCapabilities parses NVIDIA_DRIVER_CAPABILITIES. An empty value means all, because containers
// got everything before they could choose. An unknown word is an error.
func parseCapabilities(value string) (c Capability, err error) {
	for _, word := range strings.Split(value, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		at := slices.Index(capabilityNames, word)
		switch {
		case word == "all":
			c = all
		case at >= 0:
			c |= 1 << at
		default:
			return 0, fmt.Errorf("NVIDIA_DRIVER_CAPABILITIES names %.80q, which is none (have %s, all)", word, strings.Join(capabilityNames, ", "))
		}
	}
	if c == 0 {
		return all, nil
	}
	return c, nil
}

// drawing is one class: a program needs the same libraries to draw with and without a window.
const drawing = Graphics | Display

// rule gives files and devices whose name begins with name a capability.
type rule struct {
	name string
	is   Capability
}

// folderRules apply to all files below a folder of this name. The first match counts, before rules.
var folderRules = []rule{
	{"lib32", Compat32},
	{"i386-linux-gnu", Compat32},
	{"arm-linux-gnueabihf", Compat32},
	{"weston", drawing},
	{"tegra-egl", drawing},
	{"gbm", drawing},
	{"egl_vendor.d", drawing},
	{"egl_external_platform.d", drawing},
	{"vulkan", drawing},
	{"vulkansc", drawing},
	{"xorg", drawing},
	{"gstreamer-1.0", Video},
	{"libv4l", Video},
	{"dri", drawing | Video},
}

// rules classify what lists of L4T R32 to R39 name, and NVIDIA's desktop driver; the first that
// fits counts. Cameras count as video, as their libraries use video's. An entry without a rule is
// for all: NVIDIA's core libraries (libnvrm_*, libnvos, libnvsci* and the like), the nodes of the
// GPU and its memory, power and sensors.
var rules = []rule{
	{"libcudla", Compute},
	{"libcuda", Compute},
	{"libnvcudla", Compute},
	{"libnvcucompat", Compute},
	{"libnvdla_compiler", Compute},
	{"libnvmedia_dla", Compute | Video},
	{"libnvpvaintf", Compute},
	{"libnvsample_cudaprocess", Compute},
	{"libnvidia-compiler", Compute},
	{"libnvidia-fatbinaryloader", Compute},
	{"libnvidia-nvvm", Compute},
	{"libnvidia-opencl", Compute},
	{"libnvidia-pkcs11", Compute},
	{"libnvidia-ptxjitcompiler", Compute},
	{"nvidia-cuda-mps-", Compute},
	{"nvhost-ctrl-nvdla", Compute},
	{"nvhost-nvdla", Compute},
	{"nvhost-ctrl-pva", Compute},
	{"nvhost-pva", Compute},

	{"libnvidia-allocator", Compute | drawing | Video},
	{"libnvidia-gpucomp", Compute | drawing},
	{"libnvbuf_fdmap", drawing | Video},
	{"libnvbufsurface", drawing | Video},
	{"libnveglstream", drawing | Video},
	{"libnvidia-vulkan-producer", drawing | Video},
	{"libnvvulkan-producer", drawing | Video},
	{"libdrm", drawing | Video},
	{"nvhost-vic", drawing | Video},

	{"libEGL", drawing},
	{"libGL", drawing},
	{"libVk", drawing},
	{"libnvgbm", drawing},
	{"libnvoptix", drawing},
	{"libnvwinsys", drawing},
	{"libnvidia-cbl", drawing},
	{"libnvidia-egl", drawing},
	{"libnvidia-fbc", drawing},
	{"libnvidia-glcore", drawing},
	{"libnvidia-glsi", drawing},
	{"libnvidia-glvkspirv", drawing},
	{"libnvidia-kms", drawing},
	{"libnvidia-rtcore", drawing},
	{"libnvidia-vksc-core", drawing},
	{"libtegrawfd", drawing},
	{"libvulkan", drawing},
	{"nvidia_icd", drawing},
	{"nvidia-modeset", drawing},
	{"fb", drawing},
	{"tegra_dc_", drawing},

	{"libnvidia-cfg", Utility},
	{"libnvidia-ml", Utility},
	{"nvidia-debugdump", Utility},
	{"nvidia-persistenced", Utility},
	{"nvidia-smi", Utility},

	{"libnvidia-ngx", NGX},
	{"nvidia-ngx", NGX},

	{"libgst", Video},
	{"libnvapputil", Video},
	{"libnvargus", Video},
	{"libnvavp", Video},
	{"libnvbuf", Video},
	{"libnvcam", Video},
	{"libnvcapture", Video},
	{"libnvcuvid", Video},
	{"libnvdecode2eglimage", Video},
	{"libnvdsbufferpool", Video},
	{"libnveventlib", Video},
	{"libnvexif", Video},
	{"libnvfnet", Video},
	{"libnvfusacap", Video},
	{"libnvgst", Video},
	{"libnvid_mapper", Video},
	{"libnvidia-encode", Video},
	{"libnvidia-opticalflow", Video},
	{"libnvisp.", Video},
	{"libnvisppg", Video},
	{"libnvjpeg", Video},
	{"libnvmedia", Video},
	{"libnvmm", Video},
	{"libnvodm_imager", Video},
	{"libnvofsdk", Video},
	{"libnvoggopus", Video},
	{"libnvomx", Video},
	{"libnvosd", Video},
	{"libnvparser", Video},
	{"libnvplayfair", Video},
	{"libnvscf", Video},
	{"libnvtnr", Video},
	{"libnvtvmr", Video},
	{"libnvv4l", Video},
	{"libnvvideo", Video},
	{"libtegrav4l2", Video},
	{"libv4l", Video},
	{"libvdpau_nvidia", Video},
	{"nvhost-msenc", Video},
	{"nvhost_nvdec", Video},
	{"nvhost-nvdec", Video},
	{"nvhost-nvenc", Video},
	{"nvhost-nvjpg", Video},
	{"nvhost-ofa", Video},
	{"v4l2-nv", Video},
}

// Classes returns the capabilities of each entry of p, by its path in the container. A file also
// has those of all links to it, so that a container with the link gets the file too.
func Classes(p plan.Plan) map[string]Capability {
	out, linked := map[string]Capability{}, map[string]Capability{}
	for _, l := range p.Links {
		out[l.Path] = classOf(l.Path)
		linked[l.File] |= out[l.Path]
	}
	for _, d := range p.Devices {
		out[d.Path] = classOf(d.Path)
	}
	for _, m := range p.Mounts {
		out[m.Path] = classOf(m.Path) | linked[m.Source]
	}
	return out
}

// classOf returns the capabilities that need the path p, by the first rule that fits; else all.
func classOf(p string) Capability {
	dir, base := path.Split(p)
	for _, r := range folderRules {
		if strings.Contains(dir, "/"+r.name+"/") {
			return r.is
		}
	}
	for _, r := range rules {
		if strings.HasPrefix(base, r.name) {
			return r.is
		}
	}
	return all
}

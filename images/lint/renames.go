package lint

import (
	_ "embed"
	"strings"
	"sync"
)

// rename replaces names that a branch no longer has.
type rename struct {
	old []string
	// new are the names to write instead. The first of them whose words the branch
	// all has is used. If it has none, the name is to be removed.
	new []string
	why string
}

const csvWhy = "CUDA's recipes were split in April 2020, and each brings its own list of files for containers with it"

// renames are read off the layers' histories. A test looks whether all names are real.
var renames = []rename{
	{
		words("nvidia-docker"),
		[]string{"docker nvidia-container-toolkit docker-registry-config", "docker nvidia-container-toolkit"},
		"NVIDIA ended it; docker runs GPU containers through nvidia-container-toolkit, which installs no docker by itself here",
	},
	{words("nvidia-container-runtime"), []string{"nvidia-container-toolkit"}, "from L4T R35 on nvidia-container-toolkit holds the runtime"},
	{words("cuda-container-csv"), []string{"cuda-cudart-container-csv cuda-libraries", "cuda-toolkit cuda-cudart-container-csv"}, csvWhy},
	{words("tensorrt-container-csv"), []string{"tensorrt-core-container-csv"}, "TensorRT's recipe was split"},
	{words("libnvidia-container-jetson"), nil, "it served containers for R32, which this release no longer runs"},
	{
		words("libvisionworks libvisionworks-sfm libvisionworks-tracking libnvvpi1 libnvvpi2 libnvvpi3"),
		[]string{"libnvvpi4", "libnvvpi3", "libnvvpi2", "libnvvpi1"},
		"JetPack has VPI in the place of VisionWorks, and each release one version of it",
	},
	{words("cuda-cublas"), words("libcublas"), "the package has CUDA's own name since"},
	{words("cuda-cufft"), words("libcufft"), "the package has CUDA's own name since"},
	{words("cuda-curand"), words("libcurand"), "the package has CUDA's own name since"},
	{words("cuda-cusolver"), words("libcusolver"), "the package has CUDA's own name since"},
	{words("cuda-cusparse"), words("libcusparse"), "the package has CUDA's own name since"},
	{words("cuda-npp"), words("libnpp"), "the package has CUDA's own name since"},
	{words("cuda-nvvm"), words("libnvvm"), "the package has CUDA's own name since"},
	{words("cuda-memcheck"), words("cuda-sanitizer"), "CUDA 12 has compute-sanitizer in its place"},
	{words("tensorrt"), words("tensorrt-core"), "TensorRT's recipe was split"},
	{words("tensorrt-examples"), words("tensorrt-samples"), "the package was renamed"},
	{words("tensorrt-samples-trtexec"), words("tensorrt-trtexec tensorrt-trtexec-prebuilt"), "trtexec has a recipe of its own"},
	{words("cudnn-examples"), words("cudnn-samples"), "the package was renamed"},
	{words("linux-tegra linux-jammy-nvidia-tegra"), words("linux-noble-nvidia-tegra linux-jammy-nvidia-tegra linux-tegra"), "each L4T release has a kernel recipe of its own"},
	{words("u-boot-tegra cboot cboot-t18x cboot-t19x cboot-prebuilt"), words("edk2-firmware-tegra"), "from L4T R35 on the boot loader is UEFI"},
	{words("tegra-libraries"), words("tegra-libraries-core"), "the libraries have a package for each use since"},
	{words("tegra-udrm-probeconf"), words("nvidia-drm-loadconf"), "the driver is another one"},
	{words("docker-ce"), words("docker-moby docker"), "meta-virtualization builds docker from moby alone"},
	{words("containerd containerd-docker"), words("containerd containerd-opencontainers"), "meta-virtualization renamed it"},
	{words("runc runc-docker"), words("runc runc-opencontainers"), "meta-virtualization renamed it"},

	{words("machine:jetson-nano machine:jetson-nano-qspi-sd"), words("machine:jetson-nano-devkit"), "machines have the developer kits' names since"},
	{words("machine:jetson-nano-emmc"), words("machine:jetson-nano-devkit-emmc"), "machines have the developer kits' names since"},
	{words("machine:jetson-tx1"), words("machine:jetson-tx1-devkit"), "machines have the developer kits' names since"},
	{words("machine:jetson-tx2"), words("machine:jetson-tx2-devkit"), "machines have the developer kits' names since"},
	{words("machine:jetson-tx2-4gb"), words("machine:jetson-tx2-devkit-4gb"), "machines have the developer kits' names since"},
	{words("machine:jetson-tx2i"), words("machine:jetson-tx2-devkit-tx2i"), "machines have the developer kits' names since"},
	{words("machine:jetson-xavier"), words("machine:jetson-agx-xavier-devkit"), "machines have the developer kits' names since"},
	{words("machine:jetson-xavier-8gb"), words("machine:jetson-agx-xavier-devkit-8gb"), "machines have the developer kits' names since"},
}

func words(list string) []string { return strings.Fields(list) }

// listsEnded is for the packages of R32 that list one recipe's files for containers.
const (
	listSuffix = "-container-csv"
	listsEnded = "from L4T R35 on a container's image brings CUDA, cuDNN and TensorRT itself, and tegra-configs-container-csv, which comes with nvidia-container-toolkit, lists the driver's files"
)

// renamed is the new name of a variable, "" for none, and the release that stops at the old one.
type renamed struct{ since, now string }

//go:embed renamed.txt
var renamedText string

// renamedVariables are the variables of renamed.txt by their old names.
var renamedVariables = sync.OnceValue(func() map[string]renamed {
	all := map[string]renamed{}
	for line := range strings.Lines(renamedText) {
		if old, rest, _ := strings.Cut(strings.TrimSpace(line), " "); old != "#" {
			since, now, _ := strings.Cut(rest, " ")
			all[old] = renamed{since, now}
		}
	}
	return all
})

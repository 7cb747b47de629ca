# What containers with the board's libraries need. Which packages that are depends on
# meta-tegra's branch, so it is said here and nowhere else.
# Tried: parsed with kirkstone, scarthgap, wrynose and master.
SUMMARY = "Container engines, our hook, and NVIDIA's parts where the board has them"
DESCRIPTION = "containerd, docker and slipway-hook. A Jetson also gets NVIDIA's container toolkit."
SECTION = "base"
LICENSE = "MIT"

# A board's packages are among them.
PACKAGE_ARCH = "${MACHINE_ARCH}"
inherit packagegroup features_check
REQUIRED_DISTRO_FEATURES = "virtualization"

# Ours talks to containerd; docker is what people's own containers are started with. Which
# docker that is meta-virtualization says: Yocto 4.0 has two, and meta-tegra there knows
# only the one that is preferred.
RDEPENDS:${PN} = "containerd-opencontainers docker slipway-hook"
RDEPENDS:${PN}:append:tegra = " ${SLIPWAY_NVIDIA_CONTAINERS}"

# nvidia-docker brings the toolkit until meta-tegra drops it in Yocto 6.0; both bring the
# CSVs of the board's drivers. docker-registry-config, which meta-tegra's documentation
# names besides, refuses to be built before a registry is configured.
SLIPWAY_NVIDIA_CONTAINERS = "${@'nvidia-docker' if slipway_tegra_has(d, 'nvidia-docker') else 'nvidia-container-toolkit'}"
# What was found counts, not in which folders the layers lie.
SLIPWAY_NVIDIA_CONTAINERS[vardepvalue] = "${SLIPWAY_NVIDIA_CONTAINERS}"
slipway_tegra_has[vardepsexclude] = "BBLAYERS"

def slipway_tegra_has(d, recipe):
    at = "external/virtualization-layer/recipes-containers/" + recipe
    return any(os.path.isdir(os.path.join(layer, at)) for layer in d.getVar("BBLAYERS").split())

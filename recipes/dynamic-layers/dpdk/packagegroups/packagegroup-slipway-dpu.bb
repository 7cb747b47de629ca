# Tried with scarthgap: parsed; bitbake found a recipe for all of it, but for dpdk-ml-sw,
# which came later. Not built.
# What a DPU's image has besides the base: see ci/suite/workloads/dpu-* for what uses it.
SUMMARY = "FRR and DPDK with the DPU's switch, and NVIDIA's tools for the DPU itself"
DESCRIPTION = "What slipway-image-dpu has besides slipway-image-base: routing, DPDK, an example, and NVIDIA's \
tools for the DPU."
SECTION = "net"
LICENSE = "MIT"

# A board's packages are among them.
PACKAGE_ARCH = "${MACHINE_ARCH}"
inherit packagegroup

COMPATIBLE_MACHINE = "^bluefield[23]$"

# Routing and the flows that it hands to the switch, and software drivers to try
# rules and models beside it.
RDEPENDS:${PN} = " \
    dpdk dpdk-ml-sw dpdk-swflow dpdk-test-apps \
    dpu-hugepages dpu-pbr-example dpu-sriov \
    frr frr-dplane-dpdk \
    rdma-core \
"
# The DPU: firmware, boot partitions, versions, steering tables.
RDEPENDS:${PN} += "\
    bfscripts \
    ethtool \
    iproute2-devlink iproute2-ip iproute2-tc \
    mlx-steering-dump \
    mlxbf-bootctl \
    mstflint \
    tcpdump \
"

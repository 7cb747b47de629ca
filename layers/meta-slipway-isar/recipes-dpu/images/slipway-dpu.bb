require recipes-core/images/slipway-image.bb

DESCRIPTION = "slipway-image with FRR, DPDK, its software drivers and NVIDIA's tools for a DPU"

IMAGE_PREINSTALL += " \
    dpdk \
    dpdk-dev \
    iputils-ping \
    kmod \
    netbase \
    pkgconf \
    procps \
    python3 \
    tcpdump \
"
IMAGE_INSTALL += "dpdk-swflow dpu-ports frr mlxbf-bootctl rshim"
IMAGE_INSTALL:append:trixie = " dpdk-ml-sw"

# dpdk-dev has dpdk-testpmd, and brings what is needed to compile as well.
SLIPWAY_EXCLUDE += "/usr/include/* /usr/lib/*/*.a"

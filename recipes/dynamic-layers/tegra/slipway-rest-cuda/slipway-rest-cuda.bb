# Parsed with meta-tegra, not built by bitbake. Debian's nvcc 11.8 compiled the source for
# arm64 and sm_53, sm_62, sm_72 and sm_87. nvcc 13.0's program ran on an x86-64 server.
SUMMARY = "The worker of slipway-rest on a GPU"
DESCRIPTION = "slipway-rest starts this program for each GPU. It computes what requests ask for, and answers \
on its output."
HOMEPAGE = "https://github.com/NVIDIA/gpu-rest-engine"
SECTION = "net"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

SRC_URI = "file://CMakeLists.txt file://slipway-rest-cuda.cu"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

inherit cmake cuda

COMPATIBLE_MACHINE = "(tegra)"

RDEPENDS:${PN} += "slipway-rest"

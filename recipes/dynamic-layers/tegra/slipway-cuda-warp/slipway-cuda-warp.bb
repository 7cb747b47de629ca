# Parsed with meta-tegra, not built by bitbake. Debian's nvcc 11.8 compiled the source for
# arm64 and sm_53, sm_62, sm_72 and sm_87. nvcc 13.0's program ran on an x86-64 server.
SUMMARY = "Proves votes and shuffles of a GPU's warps"
DESCRIPTION = "The program runs votes, shuffles and locks between the threads of a warp, and compares each \
result with the processor's. The workload cuda-warp runs it."
HOMEPAGE = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/"
SECTION = "devel"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

SRC_URI = "file://CMakeLists.txt file://cuda-warp.cu"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

inherit cmake cuda

COMPATIBLE_MACHINE = "(tegra)"

# Tried: compiled without a warning with DPDK 22.11 (Debian 12), 23.11, 24.11 (Debian 13)
# and 25.11, where testpmd loaded it and packets took the ways that its rules say. bitbake
# has not built it.
SUMMARY = "A software eSwitch for DPDK: rte_flow rules without a BlueField"
DESCRIPTION = "A plugin for DPDK that applies rte_flow rules on the processor, with a port for each \
representor."
SECTION = "libs"
LICENSE = "BSD-3-Clause"
LIC_FILES_CHKSUM = "file://COPYING;md5=2025c2758bb7b0e2fc059af2657270dd"

DEPENDS = "dpdk"

SRC_URI = "\
    file://COPYING \
    file://ethdev.c \
    file://flow.c \
    file://meson.build \
    file://meson_options.txt \
    file://net_swflow.h \
    file://packet.c \
    file://packet.h \
    file://run-ptest \
    file://swflow.c \
    file://swflow.h \
    file://test_swflow.c \
"

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

inherit meson pkgconfig ptest

# Only there is DPDK a shared library, and with its headers for drivers.
COMPATIBLE_MACHINE = "^bluefield[23]$"

EXTRA_OEMESON = "-Dtests=${@bb.utils.contains('PTEST_ENABLED', '1', 'true', 'false', d)}"

# A plugin: given to programs by -d, and never in DPDK's own folder, from where each of
# them would load it.
FILES:${PN} = "${libdir}/dpdk-slipway/librte_net_swflow.so"

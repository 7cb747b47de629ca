# Tried: compiled without a warning with DPDK 23.11, 24.11 (Debian 13) and 25.11, where
# dpdk-test-mldev passed with it and failed with a wrong reference. bitbake has not built it.
SUMMARY = "A software device for DPDK's mldev, with models of dense layers"
DESCRIPTION = "A plugin for DPDK that runs models on the processor. The suites try inference with it where \
there is no hardware for that."
SECTION = "libs"
LICENSE = "BSD-3-Clause"
LIC_FILES_CHKSUM = "file://COPYING;md5=2025c2758bb7b0e2fc059af2657270dd"

DEPENDS = "dpdk"

SRC_URI = "\
    file://COPYING \
    file://dense.c \
    file://dense.h \
    file://example.c \
    file://meson.build \
    file://meson_options.txt \
    file://mlsw.c \
    file://run-ptest \
    file://test_dense.c \
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
FILES:${PN} = "${libdir}/dpdk-slipway/librte_ml_sw.so ${bindir}/ml-sw-example"

# Tried with scarthgap: fetched, unpacked, and its licence proved (../TESTED.md). On Debian 12
# for amd64: compiled with the same options, from a clone without its two largest files (a copy
# of sqlite and a table for Spectrum6).
SUMMARY = "Reads and writes the firmware and settings of NVIDIA's network adapters"
DESCRIPTION = "mstflint burns firmware, mstconfig sets what lasts over a restart, mstreg reads registers, \
and mstresourcedump reads resources. They reach the adapter over PCI."
HOMEPAGE = "https://github.com/Mellanox/mstflint"
SECTION = "console/network"
LICENSE = "GPL-2.0-only | BSD-2-Clause"
LIC_FILES_CHKSUM = " \
    file://COPYING;md5=37684ff4dc627e8779d1dba945d8724b \
    file://LICENSE;md5=79e20039679d6414176a6a04804e40be \
"

# Without sqlite3 it compiles a copy of its own.
DEPENDS = "sqlite3 zlib"

SRC_URI = "git://github.com/Mellanox/mstflint;protocol=https;branch=master;destsuffix=${BP}"
SRCREV = "b9d9e844a14ae1c85cb90c76ccd4a56a0eccd599"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

inherit autotools pkgconfig

EXTRA_OECONF = "--enable-dc --disable-fw-mgr"

# A DPU's own adapter is reached over PCI; InfiniBand's in-band access is for switches.
PACKAGECONFIG ??= "openssl registers"
PACKAGECONFIG[inband] = "--enable-inband,--disable-inband,rdma-core"
PACKAGECONFIG[openssl] = "--enable-openssl,--disable-openssl,openssl"
# mstreg and mstlink.
PACKAGECONFIG[registers] = "--enable-adb-generic-tools,--disable-adb-generic-tools,expat xz"

FILES:${PN}-staticdev += "${libdir}/${BPN}/*.a"
# mstresourcedump, mstfwreset and their like are Python, behind scripts for bash.
RDEPENDS:${PN} = "bash python3-modules"

# Tried with scarthgap: parsed, fetched, and its licence proved; its ptest ran on Debian 12.
# bitbake has not built it.
SUMMARY = "NVIDIA's scripts for BlueFields: versions, settings, boot streams"
DESCRIPTION = "Scripts of NVIDIA that read versions and settings of a BlueField, pack boot streams and \
send messages to rshim."
HOMEPAGE = "https://github.com/Mellanox/bfscripts"
SECTION = "console/utils"
LICENSE = "BSD-2-Clause & BSD-3-Clause"
LIC_FILES_CHKSUM = " \
    file://LICENSE;md5=974ad22346487f8c791ae7b0a8120ae2 \
    file://mlx-mkbfb;beginline=4;endline=32;md5=e6cc77e6972e257180f1fc8de850161f \
"

PV = "3.9.7+git"
SRC_URI = "git://github.com/Mellanox/bfscripts;protocol=https;branch=master;destsuffix=${BP} \
           file://run-ptest"
SRCREV = "2c42ba6e43112ca078495a6f93819061c1970704"
# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}/${BP}"

# Not allarch: its packages need others that each processor has its own of.
inherit ptest
INHIBIT_DEFAULT_DEPS = "1"

# mlxbf-bootctl, which it needs, is for the Arm cores. Any host packs a boot stream.
COMPATIBLE_HOST = "aarch64.*-linux"
COMPATIBLE_HOST:class-native = ".*"

# What an image of ours has a use for. Left out are those that install or repair NVIDIA's
# distributions (bfinst, bfpart, bfpxe, bfup, bfdracut, bfgrubcheck).
SCRIPTS = "bfacpievt bfbootmgr bfcfg bfcpu-freq bffamily bfhcafw bfrec bfrshlog bfsbdump bfsbkeys bfsbverify bfvcheck bfver"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install() {
	install -d ${D}${bindir} ${D}${mandir}/man1 ${D}${mandir}/man8
	install -m 0755 ${S}/mlx-mkbfb ${D}${bindir}
	install -m 0644 ${S}/man/mlx-mkbfb.1 ${D}${mandir}/man1
	for script in ${SCRIPTS}; do
		install -m 0755 ${S}/$script ${D}${bindir}
		install -m 0644 ${S}/man/$script.8 ${D}${mandir}/man8
	done
}
do_install:class-native() {
	install -D -m 0755 ${S}/mlx-mkbfb ${D}${bindir}/mlx-mkbfb
}

PACKAGES =+ "${PN}-mkbfb"
FILES:${PN}-mkbfb = "${bindir}/mlx-mkbfb"
RDEPENDS:${PN}-mkbfb = "python3-core"
# bfver looks for strings, bfcfg reads variables of the firmware by hexdump and xxd,
# and bfsbdump is Python.
RDEPENDS:${PN} = "bash binutils mlxbf-bootctl pciutils python3-core util-linux-getopt util-linux-hexdump"
RDEPENDS:${PN}:class-native = ""
RDEPENDS:${PN}-ptest = "${PN}-mkbfb"
RRECOMMENDS:${PN} = "efibootmgr vim-xxd"

BBCLASSEXTEND = "native"

# Tried with scarthgap: parsed. EAL's arguments for mlx5 are those of DPDK's guide; no
# BlueField was at hand.
SUMMARY = "Policy-based routing that the DPU does itself: the example of 2022"
DESCRIPTION = "Packets to port 53 that come from a virtual machine leave towards the second leaf, \
all others as the routing table says. FRR's DPDK plugin hands the rule to the switch. \
The files are an example: they lie beside FRR's own until somebody copies them."
SECTION = "net"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://frr.conf file://daemons file://README"

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

INHIBIT_DEFAULT_DEPS = "1"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install() {
	install -d ${D}${datadir}/slipway/dpu-pbr-example
	install -m 0644 ${SLIPWAY_FILES}/frr.conf ${SLIPWAY_FILES}/daemons ${SLIPWAY_FILES}/README ${D}${datadir}/slipway/dpu-pbr-example
}

# Not allarch: it needs FRR, of which each BlueField has its own.
PACKAGE_ARCH:bluefield = "${MACHINE_ARCH}"
FILES:${PN} = "${datadir}/slipway"
RDEPENDS:${PN} = "frr"

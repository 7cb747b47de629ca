# Tried with scarthgap: parsed; the script with a device and a devlink that are played
# (images/recipes_dpu_test.go), on no DPU.
SUMMARY = "Virtual functions and their representors, made at boot"
DESCRIPTION = "A service puts the switch of a DPU into switchdev mode. It makes the virtual functions \
that dpu-sriov.conf names, and waits for their representors."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://dpu-sriov file://dpu-sriov.conf file://dpu-sriov.service"

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

# Not allarch: it needs packages that each processor has its own of.
inherit systemd features_check
REQUIRED_DISTRO_FEATURES = "systemd"
INHIBIT_DEFAULT_DEPS = "1"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install() {
	install -D -m 0755 ${SLIPWAY_FILES}/dpu-sriov ${D}${sbindir}/dpu-sriov
	install -D -m 0644 ${SLIPWAY_FILES}/dpu-sriov.conf ${D}${sysconfdir}/slipway/dpu-sriov.conf
	install -D -m 0644 ${SLIPWAY_FILES}/dpu-sriov.service ${D}${systemd_system_unitdir}/dpu-sriov.service
}

SYSTEMD_SERVICE:${PN} = "dpu-sriov.service"
CONFFILES:${PN} = "${sysconfdir}/slipway/dpu-sriov.conf"
RDEPENDS:${PN} = "iproute2-devlink"

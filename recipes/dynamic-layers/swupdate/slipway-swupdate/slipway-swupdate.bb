# Tried: parsed. No Jetson was at hand to update.
SUMMARY = "Which slot of a Jetson SWUpdate writes, and whose updates it takes"
DESCRIPTION = "SWUpdate writes the slot that did not start. SLIPWAY_UPDATE_CERT names the certificate whose \
updates the board takes."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://30-slot file://before-update file://socket.conf file://service.conf"

COMPATIBLE_MACHINE = "(tegra)"
INHIBIT_DEFAULT_DEPS = "1"

# The certificate, on the building machine, whose signature the board asks of an
# update. Where it is not set, SWUpdate takes unsigned files and runs their scripts as
# root. So its web server is left out, and its sockets, which are everybody's by
# default, are root's.
SLIPWAY_UPDATE_CERT ??= ""

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

do_compile[noexec] = "1"
do_install() {
	install -D -m 0644 ${SLIPWAY_FILES}/30-slot ${D}${libdir}/swupdate/conf.d/30-slot
	install -D -m 0755 ${SLIPWAY_FILES}/before-update ${D}${nonarch_libdir}/slipway/before-update
	install -D -m 0644 ${SLIPWAY_FILES}/socket.conf ${D}${systemd_system_unitdir}/swupdate.socket.d/slipway.conf
	install -D -m 0644 ${SLIPWAY_FILES}/service.conf ${D}${systemd_system_unitdir}/swupdate.service.d/slipway.conf
	install -d ${D}${sysconfdir}
	echo "${MACHINE} 1.0" > ${D}${sysconfdir}/hwrevision
	if [ -n "${SLIPWAY_UPDATE_CERT}" ]; then
		install -D -m 0644 ${SLIPWAY_UPDATE_CERT} ${D}${sysconfdir}/swupdate/update.pem
	fi
}
# The certificate counts by what is in it, not by where it lies.
do_install[vardepsexclude] += "SLIPWAY_UPDATE_CERT"
do_install[file-checksums] += "${@'%s:True' % d.getVar('SLIPWAY_UPDATE_CERT') if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"

PACKAGE_ARCH = "${MACHINE_ARCH}"
FILES:${PN} = "${libdir}/swupdate ${nonarch_libdir}/slipway ${sysconfdir} ${systemd_system_unitdir}"
# Busybox's od has no -A, -t and -j.
RDEPENDS:${PN} = "coreutils swupdate swupdate-client tegra-redundant-boot"

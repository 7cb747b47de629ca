# Tried with scarthgap: parsed, and its files made.
SUMMARY = "Two root slots: what RAUC and systemd need to know of the disk"
DESCRIPTION = "For machines with conf/machine/include/efi-slots.inc."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://system.conf.in file://data.mount file://boot-env.mount file://sshd.conf file://sshdgenkeys.conf \
           file://grubenv file://mark-good.conf file://slipway-identity.service"

# RAUC_KEYRING_FILE is meta-rauc's name for the certificates, on the building machine,
# whose bundles the board takes. Where it is not set the board has none and refuses
# every bundle: an example's key would be worse than no key.
RAUC_KEYRING_FILE ??= ""

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

inherit systemd features_check

REQUIRED_DISTRO_FEATURES = "systemd"
INHIBIT_DEFAULT_DEPS = "1"

do_compile[noexec] = "1"
do_install() {
	install -d ${D}${sysconfdir}/rauc ${D}${systemd_system_unitdir} ${D}/data ${D}/boot/env
	sed -e 's/@MACHINE@/${MACHINE}/' ${SLIPWAY_FILES}/system.conf.in > ${D}${sysconfdir}/rauc/system.conf
	install -m 0644 ${SLIPWAY_FILES}/data.mount ${SLIPWAY_FILES}/boot-env.mount ${SLIPWAY_FILES}/slipway-identity.service ${D}${systemd_system_unitdir}
	install -D -m 0644 ${SLIPWAY_FILES}/sshd.conf ${D}${sysconfdir}/ssh/sshd_config.d/slots.conf
	install -D -m 0644 ${SLIPWAY_FILES}/sshdgenkeys.conf ${D}${systemd_system_unitdir}/sshdgenkeys.service.d/slots.conf
	install -D -m 0755 ${SLIPWAY_FILES}/grubenv ${D}${nonarch_libdir}/slipway/grubenv
	install -D -m 0644 ${SLIPWAY_FILES}/mark-good.conf ${D}${systemd_system_unitdir}/rauc-mark-good.service.d/slots.conf
	if [ -n "${RAUC_KEYRING_FILE}" ]; then
		install -m 0644 ${RAUC_KEYRING_FILE} ${D}${sysconfdir}/rauc/keyring.pem
		printf '\n[keyring]\npath=keyring.pem\n' >> ${D}${sysconfdir}/rauc/system.conf
	fi
}
# The keyring counts by what is in it, not by where it lies.
do_install[vardepsexclude] += "RAUC_KEYRING_FILE"
do_install[file-checksums] += "${@'%s:True' % d.getVar('RAUC_KEYRING_FILE') if d.getVar('RAUC_KEYRING_FILE') else ''}"

SYSTEMD_SERVICE:${PN} = "data.mount boot-env.mount slipway-identity.service"
PACKAGE_ARCH = "${MACHINE_ARCH}"
FILES:${PN} = "${nonarch_libdir}/slipway ${sysconfdir} ${systemd_system_unitdir} /data /boot/env"
RDEPENDS:${PN} = "dosfstools e2fsprogs-e2fsck e2fsprogs-resize2fs grub-editenv rauc rauc-mark-good util-linux-fsck"
RPROVIDES:${PN} = "virtual-rauc-conf"

# Tried with scarthgap: parsed; the installer on a loop device (images/recipes_dpu_test.go),
# on no BlueField.
SUMMARY = "Writes an image to a BlueField's disk, started by a boot stream"
DESCRIPTION = "The program looks at chip, disk and image, writes the image, reads it back, and reports \
through rshim."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://init file://slipway-bfb-install"

# Not allarch: it needs packages that each processor has its own of.
INHIBIT_DEFAULT_DEPS = "1"

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install() {
	install -D -m 0755 ${SLIPWAY_FILES}/init ${D}/init
	install -D -m 0755 ${SLIPWAY_FILES}/slipway-bfb-install ${D}${sbindir}/slipway-bfb-install
}
FILES:${PN} = "/init ${sbindir}"
# Busybox's dd cannot go past the cache, and its head counts no bytes.
RDEPENDS:${PN} = "busybox coreutils zstd"

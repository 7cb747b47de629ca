# Tried: parsed, and skipped with its sentence; NVIDIA's files were not at hand.
SUMMARY = "A BlueField's firmware for its Arm cores: what a boot stream begins with"
DESCRIPTION = "NVIDIA gives default.bfb and boot_update2.cap out with its BlueField software \
(package mlxbf-bootimages, folder /lib/firmware/mellanox/boot), under terms of its own."
SECTION = "bootloaders"
LICENSE = "CLOSED"
# Without the files there is no licence to accept either, and another sentence to say.
LICENSE_FLAGS = "${@'commercial' if d.getVar('SLIPWAY_BOOTIMAGES') else ''}"

# The folder on the building machine that has both files.
SLIPWAY_BOOTIMAGES ??= ""

FILESEXTRAPATHS:prepend := "${SLIPWAY_BOOTIMAGES}:"
SRC_URI = "file://default.bfb file://boot_update2.cap"
# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"

INHIBIT_DEFAULT_DEPS = "1"
COMPATIBLE_MACHINE = "^bluefield[23]$"

python () {
    if not d.getVar('SLIPWAY_BOOTIMAGES'):
        raise bb.parse.SkipRecipe('SLIPWAY_BOOTIMAGES is not set: name a folder with default.bfb and boot_update2.cap of NVIDIA\'s package mlxbf-bootimages, and accept its licence with LICENSE_FLAGS_ACCEPTED += "commercial_mlxbf-bootimages"')
}

inherit deploy nopackages

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install[noexec] = "1"
do_deploy() {
	install -d ${DEPLOYDIR}/mlxbf-bootimages
	install -m 0644 ${SLIPWAY_FILES}/default.bfb ${SLIPWAY_FILES}/boot_update2.cap ${DEPLOYDIR}/mlxbf-bootimages
}
addtask deploy after do_install before do_build

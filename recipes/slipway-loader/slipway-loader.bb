# Tried with scarthgap: parsed, and its files made. wic put them on a disk from which GRUB
# booted, by the firmware of a virtual amd64 machine.
SUMMARY = "GRUB's configuration for two root slots, and the block that it remembers them in"
DESCRIPTION = "GRUB starts the slot that the block names. The block holds the order of the slots, and which \
of them started well."
SECTION = "bootloaders"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

SRC_URI = "file://grub.cfg.in"

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}"
B = "${WORKDIR}/build"

inherit deploy nopackages

INHIBIT_DEFAULT_DEPS = "1"

APPEND ?= ""

python do_compile() {
    import os
    with open(os.path.join(d.getVar("SLIPWAY_FILES"), "grub.cfg.in")) as f:
        config = f.read()
    config = config.replace("@KERNEL@", d.getVar("KERNEL_IMAGETYPE")).replace("@APPEND@", d.getVar("APPEND"))
    with open(os.path.join(d.getVar("B"), "grub.cfg"), "w") as f:
        f.write(config)
    # GRUB takes a block of exactly 1024 bytes, filled up with #.
    block = "# GRUB Environment Block\nORDER=A B\nA_OK=1\nA_TRY=0\nB_OK=0\nB_TRY=0\n"
    with open(os.path.join(d.getVar("B"), "grubenv"), "w") as f:
        f.write(block.ljust(1024, "#"))
}

do_compile[dirs] = "${B}"
do_install[noexec] = "1"

do_deploy() {
	install -m 0644 ${B}/grub.cfg ${DEPLOYDIR}/slipway-grub.cfg
	install -m 0644 ${B}/grubenv ${DEPLOYDIR}/slipway-grubenv
}
addtask deploy after do_compile before do_build

PACKAGE_ARCH = "${MACHINE_ARCH}"

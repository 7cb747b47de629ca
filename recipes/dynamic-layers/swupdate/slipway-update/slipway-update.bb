# Tried: parsed, and its description read by a real SWUpdate (images/update_test.go). No
# Jetson was at hand to update.
SUMMARY = "Update of a Jetson's other slot, for SWUpdate"
DESCRIPTION = "bitbake slipway-update; then, on the board: swupdate-client <file>.swu, and reboot."
SECTION = "base"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

COMPATIBLE_MACHINE = "(tegra)"

SRC_URI = "file://sw-description file://next-slot.sh"

inherit swupdate image_types_tegra

SLIPWAY_UPDATE_IMAGE ?= "slipway-image-full"
SLIPWAY_UPDATE_ROOT = "${SLIPWAY_UPDATE_IMAGE}-${MACHINE}.rootfs.tar.gz"

# The capsule updates the boot firmware of the other slot and switches to it. It is
# what upstream maintains; see next-slot.sh for an update without it.
IMAGE_DEPENDS = "${SLIPWAY_UPDATE_IMAGE}"
SWUPDATE_IMAGES = "${SLIPWAY_UPDATE_ROOT} tegra-bl.cap ${SLIPWAY_UPDATE_KERNEL} ${SLIPWAY_UPDATE_DTB}"
do_swuimage[depends] += "tegra-uefi-capsules:do_deploy virtual/kernel:do_deploy"
do_swuimage[depends] += "${@'virtual/dtb:do_deploy' if d.getVar('PREFERRED_PROVIDER_virtual/dtb') else ''}"

# The firmware reads the kernel from the root file system, and where extlinux.conf names
# a device tree that too. Where it names none, which is the default, the device tree is
# the firmware's own and comes with the capsule; the partitions for a kernel and its
# device tree are then not read, and written only so that a slot holds one build.
SLIPWAY_UPDATE_KERNEL = "${@'' if d.getVar('UBOOT_EXTLINUX_FDT') else os.path.basename(d.getVar('IMAGE_TEGRAFLASH_KERNEL'))}"
SLIPWAY_UPDATE_DTB = "${@'' if d.getVar('UBOOT_EXTLINUX_FDT') else slipway_dtb(d)}"

def slipway_dtb(d):
    folder = 'devicetree/' if d.getVar('PREFERRED_PROVIDER_virtual/dtb') else ''
    return folder + os.path.basename(d.getVar('KERNEL_DEVICETREE').split()[0])

# NVIDIA's names of these partitions.
SLIPWAY_KERNEL_A = "A_kernel"
SLIPWAY_KERNEL_B = "B_kernel"
SLIPWAY_DTB_A = "A_kernel-dtb"
SLIPWAY_DTB_B = "B_kernel-dtb"
SLIPWAY_KERNEL_A:tegra194 = "kernel"
SLIPWAY_KERNEL_B:tegra194 = "kernel_b"
SLIPWAY_DTB_A:tegra194 = "kernel-dtb"
SLIPWAY_DTB_B:tegra194 = "kernel-dtb_b"

# Entries of sw-description, each a line: the class takes one digest a line.
SLIPWAY_UPDATE_KERNEL_A = "${@slipway_entry(d, 'KERNEL', 'A')}"
SLIPWAY_UPDATE_KERNEL_B = "${@slipway_entry(d, 'KERNEL', 'B')}"
SLIPWAY_UPDATE_DTB_A = "${@slipway_entry(d, 'DTB', 'A')}"
SLIPWAY_UPDATE_DTB_B = "${@slipway_entry(d, 'DTB', 'B')}"

def slipway_entry(d, what, slot):
    name = os.path.basename(d.getVar('SLIPWAY_UPDATE_' + what))
    if not name:
        return ''
    device = '/dev/disk/by-partlabel/' + d.getVar('SLIPWAY_%s_%s' % (what, slot))
    return ', { filename = "%s"; device = "%s"; sha256 = "$swupdate_get_sha256(%s)"; }' % (name, device, name)

# Signed where a certificate and its key are given, both files on the building
# machine. The board's half is slipway-swupdate's.
SLIPWAY_UPDATE_CERT ??= ""
SLIPWAY_UPDATE_KEY ??= ""
SWUPDATE_SIGNING = "${@'CMS' if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"
SWUPDATE_CMS_CERT = "${SLIPWAY_UPDATE_CERT}"
SWUPDATE_CMS_KEY = "${SLIPWAY_UPDATE_KEY}"
# They count by what is in them, not by where they lie.
SLIPWAY_UPDATE_CERT[vardepvalue] = "${@'a file' if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"
SLIPWAY_UPDATE_KEY[vardepvalue] = "${@'a file' if d.getVar('SLIPWAY_UPDATE_KEY') else ''}"
do_swuimage[file-checksums] += "${@' '.join(d.getVar(n) + ':True' for n in ('SLIPWAY_UPDATE_CERT', 'SLIPWAY_UPDATE_KEY') if d.getVar(n))}"

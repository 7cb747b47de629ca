# Tried: parsed and dry-run. No Jetson was at hand to update.
SUMMARY = "Update of a Jetson's other slot, for SWUpdate"
DESCRIPTION = "bitbake slipway-update; then, on the board: swupdate-client <file>.swu, and reboot."
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COREBASE}/meta/COPYING.MIT;md5=3da9cfbcb788c80a0384361b4de20420"

COMPATIBLE_MACHINE = "(tegra)"

inherit swupdate

SRC_URI = "file://sw-description file://next-slot.sh"

SLIPWAY_UPDATE_IMAGE ?= "slipway-image-full"
SLIPWAY_UPDATE_ROOT = "${SLIPWAY_UPDATE_IMAGE}-${MACHINE}.rootfs.tar.gz"

# The capsule updates the boot firmware of the other slot and switches to it. It is
# what upstream maintains; see next-slot.sh for an update without it.
IMAGE_DEPENDS = "${SLIPWAY_UPDATE_IMAGE}"
SWUPDATE_IMAGES = "${SLIPWAY_UPDATE_ROOT} tegra-bl.cap"
do_swuimage[depends] += "tegra-uefi-capsules:do_deploy"

# Signed where a certificate and its key are given, both files on the building
# machine. The board's half is slipway-swupdate's.
SLIPWAY_UPDATE_CERT ??= ""
SLIPWAY_UPDATE_KEY ??= ""
SWUPDATE_SIGNING = "${@'CMS' if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"
SWUPDATE_CMS_CERT = "${SLIPWAY_UPDATE_CERT}"
SWUPDATE_CMS_KEY = "${SLIPWAY_UPDATE_KEY}"

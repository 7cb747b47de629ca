# Tried: parsed. Not yet built.
#
# The initramfs of a boot stream: what slipway-bfb-install needs, and no more. The image
# that it writes is put behind it by classes/slipway-bfb.bbclass.
SUMMARY = "Installer in a BlueField's boot stream"
DESCRIPTION = "This image runs from memory. It writes another image to the disk of the BlueField. \
slipway-bfb.bbclass puts that image behind it."
LICENSE = "MIT"

COMPATIBLE_MACHINE = "^bluefield[23]$"

PACKAGE_INSTALL = "slipway-bfb-install base-passwd"
PACKAGE_EXCLUDE = "kernel-image-*"
IMAGE_FEATURES = ""
IMAGE_LINGUAS = ""
IMAGE_NAME_SUFFIX ?= ""

# The machine's own types are for disks.
IMAGE_FSTYPES = "cpio.gz"
IMAGE_FSTYPES:remove = "ext4 wic.zst wic.bmap bfb"

inherit core-image

IMAGE_ROOTFS_SIZE = "8192"
IMAGE_ROOTFS_EXTRA_SPACE = "0"

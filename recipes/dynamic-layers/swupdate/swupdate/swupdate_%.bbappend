# On Jetson the firmware switches slots; there is no boot loader's environment.
FILESEXTRAPATHS:prepend := "${THISDIR}/files:"

# For the handler that makes the slot's file system.
DEPENDS:append:tegra = " e2fsprogs util-linux"

SRC_URI:append:tegra = " file://slots.cfg ${SLIPWAY_SIGNED}"
SLIPWAY_SIGNED = "${@'file://signed.cfg' if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"
# Where the certificate lies does not count.
SLIPWAY_SIGNED[vardepvalue] = "${SLIPWAY_SIGNED}"

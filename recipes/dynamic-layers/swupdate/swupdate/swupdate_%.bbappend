# On Jetson the firmware switches slots; there is no boot loader's environment.
FILESEXTRAPATHS:prepend := "${THISDIR}/files:"
SRC_URI:append:tegra = " file://slots.cfg"
SRC_URI:append:tegra = "${@' file://signed.cfg' if d.getVar('SLIPWAY_UPDATE_CERT') else ''}"

# For the handler that makes the slot's file system.
DEPENDS:append:tegra = " e2fsprogs util-linux"

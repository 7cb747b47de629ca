# Tried with scarthgap: parsed, fetched, and its licence proved; on Debian 12: compiled
# with the same options.
#
# It belongs on a machine that has a DPU in it, or on the DPU's BMC; a DPU's own image
# has no use for it.
SUMMARY = "The driver through which a host starts and watches a BlueField"
DESCRIPTION = "Makes /dev/rshimN: boot streams are pushed into it, and the DPU's console, network \
and messages come out of it. Over PCIe or USB, with CUSE."
HOMEPAGE = "https://github.com/Mellanox/rshim-user-space"
SECTION = "console/utils"
# MIT is what unpacks PLDM packages.
LICENSE = "(GPL-2.0-only | BSD-3-Clause) & MIT"
LIC_FILES_CHKSUM = " \
    file://LICENSE;md5=1dcfef6f861ec72b0ef9920470e4eb24 \
    file://third_party/PLDM-unpack/License-MIT-fwpkg-unpack.txt;md5=c64973134f7b5f81444f0e80b446a45a \
"

SRC_URI = "git://github.com/Mellanox/rshim-user-space;protocol=https;branch=master;destsuffix=${BP}"
SRCREV = "b8a331beac795e2a033185012a53af67aac9576b"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

inherit autotools pkgconfig systemd

PACKAGECONFIG ??= "fuse pcie usb ${@bb.utils.filter('DISTRO_FEATURES', 'systemd', d)}"
PACKAGECONFIG[fuse] = "--enable-fuse,--disable-fuse,fuse"
PACKAGECONFIG[pcie] = "--enable-pcie,--disable-pcie,pciutils"
PACKAGECONFIG[usb] = "--enable-usb,--disable-usb,libusb1"
PACKAGECONFIG[systemd] = "--with-systemdsystemunitdir=${systemd_system_unitdir},--with-systemdsystemunitdir=no"

SYSTEMD_SERVICE:${PN} = "rshim.service"

# bfb-install and its like, which push boot streams and take them apart.
PACKAGES =+ "${PN}-tools"
FILES:${PN}-tools = "${sbindir}/bf* ${sbindir}/mlx-mkbfb ${sbindir}/fwpkg_unpack.py"
RDEPENDS:${PN}-tools = "${PN} bash python3-modules"
RRECOMMENDS:${PN} = "kernel-module-cuse"

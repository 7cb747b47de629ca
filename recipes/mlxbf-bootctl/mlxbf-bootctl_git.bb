# Tried with scarthgap: parsed, fetched, and its licence proved; on Debian 12 for amd64:
# compiled by the same make lines.
SUMMARY = "Shows and switches the two boot partitions of a BlueField"
DESCRIPTION = "The program reads and switches the two boot partitions of a BlueField. It also writes boot \
streams to them."
HOMEPAGE = "https://github.com/Mellanox/mlxbf-bootctl"
SECTION = "console/utils"
LICENSE = "BSD-2-Clause"
LIC_FILES_CHKSUM = "file://LICENSE;md5=2f39be0fb8f6fef3a14999ee4590647d"

PV = "2.1+git"
SRC_URI = "git://github.com/Mellanox/mlxbf-bootctl;protocol=https;branch=master;destsuffix=${BP}"
SRCREV = "570fd137f39486b2b41e90897fc63881efde4f68"
# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

COMPATIBLE_HOST = "aarch64.*-linux"

# Its Makefile asks git for its files, and sets CFLAGS that the compiler's own add to.
do_compile() {
	oe_runmake mlxbf-bootctl
}
do_install() {
	oe_runmake install DESTDIR=${D} SBINDIR=${base_sbindir}
	install -D -m 0644 ${S}/mlxbf-bootctl.8 ${D}${mandir}/man8/mlxbf-bootctl.8
}

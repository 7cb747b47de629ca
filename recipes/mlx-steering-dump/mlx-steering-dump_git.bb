# Tried with scarthgap: parsed, fetched, and its licence proved. The parser that its ptest
# calls was run by hand on Debian 12; the ptest was not, and bitbake has not built it.
SUMMARY = "Shows the steering rules that an mlx5 device holds"
DESCRIPTION = "Two parsers for dumps of a ConnectX's or a BlueField's steering tables: one for \
rules that software steers, one for those that the hardware does (dv_flow_en=2)."
HOMEPAGE = "https://github.com/Mellanox/mlx_steering_dump"
SECTION = "console/network"
LICENSE = "GPL-2.0-only | MIT"
LIC_FILES_CHKSUM = " \
    file://COPYING.md;md5=ab16bd0cc2204f6c0003533a21729735 \
    file://COPYING.BSD_MIT;md5=4a60d511999113040958163cbb09ac0f \
    file://COPYING.GPL2;md5=b234ee4d69f5fce4486a80fdaf4a4263 \
"

PV = "2510.0.0+git"
SRC_URI = "git://github.com/Mellanox/mlx_steering_dump;protocol=https;branch=master;destsuffix=${BP} \
           file://run-ptest"
SRCREV = "5168af1f3c2ad290ef40dbc07bd9e2fd4724f1f7"
# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
S = "${SLIPWAY_FILES}/${BP}"

# Not allarch: its packages need others that each processor has its own of.
inherit ptest
INHIBIT_DEFAULT_DEPS = "1"

do_configure[noexec] = "1"
do_compile[noexec] = "1"
# The wrappers go to this folder by its whole name.
do_install() {
	for kind in sws:mlx_steering_dump:mlx_steering_dump_parser.py hws:mlx_hw_steering_dump:mlx_hw_steering_parser.py; do
		folder=${kind%%:*} script=${kind##*:} names=${kind#*:}
		install -D -m 0755 ${S}/$folder/${names%%:*} ${D}${bindir}/${names%%:*}
		install -D -m 0755 ${S}/$folder/$script ${D}${datadir}/mlx-steering-dump/$folder/$script
		cp -R --no-preserve=ownership ${S}/$folder/src ${D}${datadir}/mlx-steering-dump/$folder/
	done
}

# The dump that comes with the parser.
do_install_ptest() {
	install -m 0644 ${S}/sws/example.csv ${D}${PTEST_PATH}/sws.csv
}

# The parser of hardware steering asks mstresourcedump, which is mstflint's, for the device.
RDEPENDS:${PN} = "bash python3-core python3-ctypes python3-io python3-multiprocessing python3-threading"
RRECOMMENDS:${PN} = "mstflint"

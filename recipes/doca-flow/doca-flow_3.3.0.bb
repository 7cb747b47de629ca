# Tried: nothing but that it is skipped with its sentence. NVIDIA's files were not at hand,
# so that fetching, packaging and its QA never ran.
SUMMARY = "NVIDIA's DOCA Flow, for zebra's plugin dplane_doca"
DESCRIPTION = "Whoever has a BlueField with NVIDIA's image makes the archive there: \
tar -C /opt/mellanox/doca -cJf doca-flow-3.3.0-aarch64.tar.xz include lib"
HOMEPAGE = "https://docs.nvidia.com/doca/sdk/doca-flow/index.html"
SECTION = "libs"
LICENSE = "CLOSED"
# Without a mirror there is no licence to accept either, and another sentence to say.
LICENSE_FLAGS = "${@'' if d.getVar('NVIDIA_DOCA_MIRROR') == 'https://nowhere.invalid' else 'commercial'}"

# Where that archive is, as a URL of its folder, and the archive's sha256.
NVIDIA_DOCA_MIRROR ??= "https://nowhere.invalid"
NVIDIA_DOCA_SHA256 ??= ""

SRC_URI = "${NVIDIA_DOCA_MIRROR}/doca-flow-${PV}-aarch64.tar.xz;subdir=${BP}"
SRC_URI[sha256sum] = "${NVIDIA_DOCA_SHA256}"

COMPATIBLE_MACHINE = "^bluefield[23]$"

python () {
    if d.getVar('NVIDIA_DOCA_MIRROR') == 'https://nowhere.invalid':
        raise bb.parse.SkipRecipe('NVIDIA_DOCA_MIRROR is not set: name the URL of a folder with doca-flow-%s-aarch64.tar.xz (doca-flow_%s.bb says how to make it on a BlueField), give its NVIDIA_DOCA_SHA256, and accept its licence with LICENSE_FLAGS_ACCEPTED += "commercial_doca-flow"' % (d.getVar('PV'), d.getVar('PV')))
}

# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

do_configure[noexec] = "1"
do_compile[noexec] = "1"

# NVIDIA's folder of libraries has the name of Debian's kind of machine.
do_install() {
	install -d ${D}${includedir} ${D}${libdir}/pkgconfig
	cp -R --no-preserve=ownership ${S}/include/. ${D}${includedir}
	for library in doca_common doca_flow doca_dpdk_bridge; do
		cp -R --no-preserve=ownership ${S}/lib/aarch64-linux-gnu/lib$library.so* ${D}${libdir}
	done
	for name in doca-common doca-flow; do
		sed -e 's#^prefix=.*#prefix=${prefix}#' -e 's#^libdir=.*#libdir=${libdir}#' -e 's#^includedir=.*#includedir=${includedir}#' \
			${S}/lib/aarch64-linux-gnu/pkgconfig/$name.pc > ${D}${libdir}/pkgconfig/$name.pc
	done
}

# They come stripped, linked by another compiler's flags, and ask for a DPDK of NVIDIA's.
INSANE_SKIP:${PN} = "already-stripped ldflags file-rdeps"

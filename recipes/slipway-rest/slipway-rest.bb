# Parsed with meta-tegra, not built. Isar compiles the same source.
SUMMARY = "HTTP server that computes on a board's GPUs"
DESCRIPTION = "Requests wait in a bounded queue for a worker on each GPU, or for one on the processor. \
The workload rest proves it and measures it."
HOMEPAGE = "https://github.com/NVIDIA/gpu-rest-engine"
SECTION = "net"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

PV = "0.1"

SRC_URI = "file://slipway-rest;subdir=${BP}/src"
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

GO_IMPORT = "slipway-rest"

inherit slipway-go

# It needs no modules, so its go.mod says only which Go it is for.
do_compile:prepend() {
	printf 'module slipway-rest\n\ngo 1.22\n' >${S}/src/slipway-rest/go.mod
}
do_install() {
	install -D -m 0755 ${B}/${GO_BUILD_BINDIR}/slipway-rest ${D}${bindir}/slipway-rest
}

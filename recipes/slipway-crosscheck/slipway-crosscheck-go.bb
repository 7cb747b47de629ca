# Parsed, not built. Isar compiles the same source.
SUMMARY = "A Go program that tries what breaks on another machine"
DESCRIPTION = "It tries panics, threads, other programs, accounts and SHA-256, and compares \
each result. The workload programs runs it."
HOMEPAGE = "https://go.dev/doc/install/source#environment"
SECTION = "devel"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

PV = "0.1"

SRC_URI = "file://slipway-crosscheck-go;subdir=${BP}/src"
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}"

GO_IMPORT = "slipway-crosscheck-go"

inherit slipway-go

# It needs no modules, so its go.mod says only which Go it is for.
do_compile:prepend() {
	printf 'module slipway-crosscheck-go\n\ngo 1.22\n' >${S}/src/slipway-crosscheck-go/go.mod
}
do_install() {
	install -D -m 0755 ${B}/${GO_BUILD_BINDIR}/slipway-crosscheck-go ${D}${bindir}/slipway-crosscheck-go
}

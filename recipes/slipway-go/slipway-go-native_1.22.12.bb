# Yocto 4.0's Go is 1.17 and cannot compile our hook, and its other recipes need that
# one. So this is Go's own release, under a name and in a folder that only
# classes/slipway-go.bbclass looks at. Yocto 5.0 bootstraps its Go from the same files.
# Tried with kirkstone: the hook was compiled by it. (The release came through the Go
# module proxy; the checksums are those that Yocto 5.0 has.) Go 1.22 gets no more fixes.
SUMMARY = "Go's own release, for programs that Yocto's Go is too old for"
DESCRIPTION = "Yocto 4.0 has Go 1.17, which cannot compile slipway-hook. Only slipway-go.bbclass uses this \
Go."
HOMEPAGE = "https://go.dev"
SECTION = "devel"
LICENSE = "BSD-3-Clause"
CVE_PRODUCT = "golang:go"
LIC_FILES_CHKSUM = "file://LICENSE;md5=5d4950ecb7b26d2c5e4e7b4e0dd74707"

SRC_URI = "https://dl.google.com/go/go${PV}.${BUILD_GOOS}-${BUILD_GOARCH}.tar.gz;name=${BUILD_GOTUPLE};subdir=${BP}"
SRC_URI[linux_amd64.sha256sum] = "4fa4f869b0f7fc6bb1eb2660e74657fbf04cdd290b5aef905585c86051b34d43"
SRC_URI[linux_arm64.sha256sum] = "fd017e647ec28525e86ae8203236e0653242722a7436929b1f775744e26278e7"

# Where files are unpacked changed its name in Yocto 5.1.
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}/${BP}/go"

inherit goarch native

do_configure[noexec] = "1"
do_compile[noexec] = "1"
do_install() {
	install -d ${D}${libdir}/slipway-go
	cp --preserve=mode,timestamps -R ${S}/bin ${S}/lib ${S}/pkg ${S}/src ${S}/go.env ${S}/VERSION ${D}${libdir}/slipway-go
	find ${D}${libdir}/slipway-go/src -depth -type d -name testdata -exec rm -rf {} +
}

# The programs are Go's, static, and partly for other processors.
INHIBIT_SYSROOT_STRIP = "1"

# recipes/slipway-rest builds the same source for OpenEmbedded.
DESCRIPTION = "HTTP server that computes on a board's GPUs, or on its processor"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0"

FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../recipes/slipway-rest/files:"
SRC_URI = "file://slipway-rest file://rules"

inherit dpkg

# As for slipway-hook.
DEBIAN_BUILD_DEPENDS = "golang-go:native (>= 2:1.22)"
DEBIAN_BUILD_DEPENDS:bookworm = "golang-1.23-go:native"
DPKG_ARCH = "any"
S = "${WORKDIR}/source"

do_prepare_build[cleandirs] += "${S}"
do_prepare_build() {
    cp -R '${WORKDIR}/slipway-rest/.' '${S}'
    deb_debianize
}

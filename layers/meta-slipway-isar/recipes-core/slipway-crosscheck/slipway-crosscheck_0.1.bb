# recipes/slipway-crosscheck builds the same sources for OpenEmbedded.
DESCRIPTION = "Programs in Rust and Go that try what breaks on another machine"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0"

FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../recipes/slipway-crosscheck/files:"
SRC_URI = "file://slipway-crosscheck-go file://slipway-crosscheck-rust file://rules"

inherit dpkg

# As for slipway-hook.
DEBIAN_BUILD_DEPENDS = "golang-go:native (>= 2:1.22), rustc:native, libstd-rust-dev"
# rustc of Debian 12 and the newer one for browsers must not be mixed.
DEBIAN_BUILD_DEPENDS:bookworm = "golang-1.23-go:native, rustc-web:native, libstd-rust-web-dev"
DPKG_ARCH = "any"
S = "${WORKDIR}/source"

do_prepare_build[cleandirs] += "${S}"
do_prepare_build() {
    cp -R '${WORKDIR}/slipway-crosscheck-go' '${WORKDIR}/slipway-crosscheck-rust' '${S}'
    deb_debianize
}

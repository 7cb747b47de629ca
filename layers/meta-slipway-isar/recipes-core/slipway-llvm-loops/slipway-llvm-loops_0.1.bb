# recipes/slipway-llvm-loops builds the same source for OpenEmbedded.
DESCRIPTION = "Pass for LLVM's opt that counts basic blocks by loop depth"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0"

FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../recipes/slipway-llvm-loops/files:"
SRC_URI = "file://CMakeLists.txt file://loop-depth.cpp file://loops.ll file://rules"

inherit dpkg

DEBIAN_BUILD_DEPENDS = "cmake, llvm-dev"
# opt is in the package llvm.
DEBIAN_DEPENDS = "\${shlibs:Depends}, \${misc:Depends}, llvm"
DPKG_ARCH = "any"
S = "${WORKDIR}/source"

do_prepare_build[cleandirs] += "${S}"
do_prepare_build() {
    cp '${WORKDIR}/CMakeLists.txt' '${WORKDIR}/loop-depth.cpp' '${WORKDIR}/loops.ll' '${S}'
    deb_debianize
}

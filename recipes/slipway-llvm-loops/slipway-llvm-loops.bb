# Parsed, not built. Isar compiles the same source with LLVM 19, and it was compiled by hand
# with LLVM 14 and 16.
SUMMARY = "A pass for LLVM's opt that counts basic blocks by loop depth"
DESCRIPTION = "It is built against the release's own LLVM. The workload llvm-loops runs it by opt on the board, \
and compares the counts."
HOMEPAGE = "https://llvm.org/docs/WritingAnLLVMNewPMPass.html"
SECTION = "devel"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/Apache-2.0;md5=89aea4e17d99a7cacdbeed46a0096b10"

DEPENDS = "llvm"

PV = "0.1"

SRC_URI = "file://CMakeLists.txt file://loop-depth.cpp file://loops.ll"
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

inherit cmake

FILES:${PN} += "${libdir}/slipway ${datadir}/slipway"
# opt is in llvm, and since Yocto 5.3 in llvm-bin.
RDEPENDS:${PN} = "${@bb.utils.contains('LAYERSERIES_CORENAMES', 'scarthgap', 'llvm', 'llvm-bin', d)}"

python () {
    if 'kirkstone' in (d.getVar('LAYERSERIES_CORENAMES') or '').split():
        raise bb.parse.SkipRecipe("LLVM 13 of Yocto 4.0 has no files for CMake")
}

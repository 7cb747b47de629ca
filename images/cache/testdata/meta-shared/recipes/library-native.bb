SUMMARY = "what depends on the tool"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"
INHIBIT_DEFAULT_DEPS = "1"
PATCHDEPENDENCY = ""
DEPENDS = "tool-native"

inherit deploy native

do_compile() {
    cat ${STAGING_BINDIR_NATIVE}/tool > ${B}/library
}
do_install() {
    install -D ${B}/library ${D}${libdir}/library
}
do_deploy() {
    install -D ${B}/library ${DEPLOYDIR}/library
}
addtask deploy after do_install before do_build

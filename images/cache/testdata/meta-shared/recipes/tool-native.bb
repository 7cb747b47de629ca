SUMMARY = "a tool that others use from the sysroot"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"
INHIBIT_DEFAULT_DEPS = "1"
PATCHDEPENDENCY = ""

inherit native

do_compile() {
    echo "made by a build" > ${B}/tool
}
do_install() {
    install -D ${B}/tool ${D}${bindir}/tool
}

SUMMARY = "a tool that others use from the sysroot"
LICENSE = "MIT"
LIC_FILES_CHKSUM = "file://${COMMON_LICENSE_DIR}/MIT;md5=0835ade698e0bcf8506ecda2f7b4f302"
# Only a mirror has it.
SRC_URI = "https://nowhere.invalid/tool-1.0.txt"
SRC_URI[sha256sum] = "4939f2f9ffe14e16351ba6817058ea8acf1cae19c22cd74b20ca35856b9d9b9c"
S = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
INHIBIT_DEFAULT_DEPS = "1"
PATCHDEPENDENCY = ""

inherit native

do_compile() {
    echo "made by a build" > ${B}/tool
}
do_install() {
    install -D ${B}/tool ${D}${bindir}/tool
}

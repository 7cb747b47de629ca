# The programs that ci/suites run on a board, and those that their advice names.
# Busybox has some of them, with fewer options.
SUMMARY = "What the smoke suites run on a board"
DESCRIPTION = "The programs that the suites of Slipway run on a board. Busybox has some of them, with fewer \
options."
SECTION = "base"
LICENSE = "MIT"

inherit packagegroup

# A check's stat, date and sha256sum; its grep; the files of the containers' probe.
RDEPENDS:${PN} = "\
    coreutils \
    grep \
    util-linux-dmesg \
    util-linux-findmnt \
    util-linux-lsblk \
"
RDEPENDS:${PN} += "${@bb.utils.contains('DISTRO_FEATURES', 'virtualization', 'slipway-probe-csv', '', d)}"

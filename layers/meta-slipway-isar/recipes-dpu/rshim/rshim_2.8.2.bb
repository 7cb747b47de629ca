# Its source has a folder debian/. Debian's own rshim is older.
DESCRIPTION = "The driver through which a host starts and watches a BlueField"
HOMEPAGE = "https://github.com/Mellanox/rshim-user-space"
LICENSE = "(GPL-2.0-only | BSD-3-Clause) & MIT"

SRC_URI = "git://github.com/Mellanox/rshim-user-space;protocol=https;branch=master;destsuffix=${P}"
SRCREV = "b8a331beac795e2a033185012a53af67aac9576b"

inherit dpkg

DEB_BUILD_OPTIONS = "noautodbgsym"

# Its control file names libfuse2 alone.
do_prepare_build() {
    sed -i 's/^Depends: .*/Depends: ${shlibs:Depends}, ${misc:Depends}, python3/' '${S}/debian/control'
}

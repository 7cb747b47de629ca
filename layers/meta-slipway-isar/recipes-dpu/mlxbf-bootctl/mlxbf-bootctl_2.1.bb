# Its source has a folder debian/. Debian has no package of it.
DESCRIPTION = "Shows and switches the two boot partitions of a BlueField"
HOMEPAGE = "https://github.com/Mellanox/mlxbf-bootctl"
LICENSE = "BSD-2-Clause"

SRC_URI = "git://github.com/Mellanox/mlxbf-bootctl;protocol=https;branch=master;destsuffix=${P}"
SRCREV = "570fd137f39486b2b41e90897fc63881efde4f68"

inherit dpkg

DEB_BUILD_OPTIONS = "noautodbgsym"

# In Debian /sbin is a link to /usr/sbin, and packages have their files there.
do_prepare_build() {
    printf '\noverride_dh_auto_install:\n\tdh_auto_install -- SBINDIR=/usr/sbin\n' >>'${S}/debian/rules'
}

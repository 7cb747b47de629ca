# Debian's frr with a plugin for DPDK that works. debian.txt says which patches that takes;
# the software rig's FRR is made of the same ones.
DESCRIPTION = "FRRouting with zebra's dataplane plugin for DPDK"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "GPL-2.0-or-later"

SLIPWAY_FRR_FILES = "${LAYERDIR_slipway-isar}/../../recipes/dynamic-layers/networking-layer/frr/files"
FILESEXTRAPATHS:prepend := "${SLIPWAY_FRR_FILES}:"

# Debian applies patches in the order of their names, whatever their folders are called. Only
# a change to these words of debian.txt builds frr again, not one to what else it says.
def slipway_frr_patches(d):
    import glob
    folder, release = d.getVar('SLIPWAY_FRR_FILES'), d.getVar('BASE_DISTRO_CODENAME')
    bb.parse.mark_dependency(d, folder + '/debian.txt')
    for line in open(folder + '/debian.txt'):
        words = line.split()
        if words[:2] == ['release', release]:
            found = [p for name in words[4:] for p in glob.glob('%s/%s/*.patch' % (folder, name))]
            return [os.path.relpath(p, folder) for p in sorted(found, key=os.path.basename)]
    raise bb.parse.SkipRecipe('debian.txt names no patches for Debian %s' % release)

SRC_URI = " \
    apt://frr \
    file://rules.txt \
    ${@' '.join('file://%s;apply=no' % p for p in slipway_frr_patches(d))} \
"

inherit dpkg

CHANGELOG_V = "<orig-version>+slipway"
# Its own tests are Debian's affair.
DEB_BUILD_PROFILES = "nocheck"
DEB_BUILD_OPTIONS = "nocheck noautodbgsym"

do_prepare_build() {
    deb_add_changelog
    for patch in ${@' '.join(slipway_frr_patches(d))}; do
        install -m 0644 '${WORKDIR}/'$patch '${S}/debian/patches/'
        basename $patch >>'${S}/debian/patches/series'
    done

    sed -i 's/^Build-Depends:/Build-Depends: libdpdk-dev,/' '${S}/debian/control'
    # netbase has /etc/protocols, without which pbrd knows no "match ip-protocol udp".
    sed -i '/^Package: frr$/,/^$/ s/^Depends:/Depends: netbase,/' '${S}/debian/control'
    sed -i 's/--enable-fpm /--enable-fpm --enable-dp-dpdk /' '${S}/debian/rules'
    install -m 0644 '${WORKDIR}/rules.txt' '${S}/debian/frr-rules.txt'
    cat >>'${S}/debian/frr.install' <<'EOF'
usr/lib/*/frr/modules/zebra_dplane_dpdk.so
debian/frr-rules.txt usr/share/slipway
EOF
}

# FRR for BlueFields: zebra's dataplane plugin for DPDK, which hands PBR rules to the
# switch of the DPU as flows, in a package of its own. Other machines' FRR stays as it is.
# Upstream's plugin starts no port and counts and removes no flow. The text of each patch in
# files/ says what it fixes, and how that was seen.
#
# Tried: the patches apply to what both recipes (9.1.3, 10.6.1) make of the source, and the
# files of zebra that they change compile. The plugin was built and run from Debian's 8.4.4
# and 10.3, not by bitbake, and not on a DPU.

FILESEXTRAPATHS:prepend := "${THISDIR}/files:"

PACKAGECONFIG[dpdk] = "--enable-dp-dpdk,,dpdk"
PACKAGECONFIG:append:bluefield = " dpdk"

# Each folder of patches is named after the versions that need it.
SLIPWAY_FRR_PATCHES = " \
    all/0001-configure-option.patch \
    all/0002-incoming-ifindex.patch \
    all/0003-resolve-again.patch \
    all/0004-eal-arguments.patch \
    all/0005-start-ports.patch \
    all/0006-match-the-rule.patch \
    all/0007-keep-flows.patch \
    all/0008-port-json.patch \
    all/0010-kernel-ports.patch \
    all/0011-rules-on-their-way.patch \
    all/0012-take-back.patch \
    all/0013-rule-priority.patch \
"
# 9.1 does not compile with a DPDK of today, and its pbrd sends rules without addresses that
# zebra refuses.
SLIPWAY_FRR_PATCHES_9 = " \
    8.4-9.1/0000b-as-in-10.patch \
    8.4-9.1/0000c-build-with-dpdk-22.11.patch \
    9.1-10.3/0009-rule-family.patch \
    9.1-10.6/0015-rules-not-sent.patch \
"
SLIPWAY_FRR_PATCHES_10 = "9.1-10.6/0015-rules-not-sent.patch"

# This version's patches in the order of their names, or nothing. Debian has 8.4 and 10.3, for
# which files/ has patches too; see debian.txt there.
def slipway_frr_patches(d):
    own = {'9.1': d.getVar('SLIPWAY_FRR_PATCHES_9'), '10.6': d.getVar('SLIPWAY_FRR_PATCHES_10')}
    version = '.'.join(d.getVar('PV').split('.')[:2])
    if version not in own:
        return []
    return sorted((d.getVar('SLIPWAY_FRR_PATCHES') + ' ' + own[version]).split(), key=os.path.basename)

SRC_URI:append:bluefield = " ${@' '.join('file://' + patch for patch in slipway_frr_patches(d))}"

python () {
    plugins = {'dpdk', 'doca'} & set(d.getVar('PACKAGECONFIG').split())
    if plugins and not slipway_frr_patches(d):
        raise bb.parse.SkipRecipe('FRR %s: its plugins for offload do not work, and there are patches for 9.1 and 10.6 only: use the frr of scarthgap or of wrynose, or take %s out of its PACKAGECONFIG' % (d.getVar('PV'), ' and '.join(sorted(plugins))))
}

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FRR_UNPACKED = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

# What the suites dpu-pbr and dpu-doca give FRR, to see what becomes of it.
SRC_URI:append:bluefield = " file://rules.txt"
do_install:append:bluefield() {
	install -D -m 0644 ${SLIPWAY_FRR_UNPACKED}/rules.txt ${D}${datadir}/slipway/frr-rules.txt
}

# Other machines of the same processor have an FRR without them.
PACKAGE_ARCH:bluefield = "${MACHINE_ARCH}"

SUMMARY:${PN}-dplane-dpdk = "zebra's dataplane plugin for DPDK"
SUMMARY:${PN}-dplane-rules = "Rules that a plugin must offload, or leave to the kernel"
PACKAGES:prepend:bluefield = "${PN}-dplane-dpdk ${PN}-dplane-rules "
FILES:${PN}-dplane-dpdk = "${libdir}/frr/modules/zebra_dplane_dpdk.so"
FILES:${PN}-dplane-rules = "${datadir}/slipway/frr-rules.txt"
# netbase has /etc/protocols, without which pbrd knows no "match ip-protocol udp".
RDEPENDS:${PN}-dplane-dpdk = "${PN} ${PN}-dplane-rules dpdk netbase"

require frr-doca.inc

# FRR for BlueFields: zebra's dataplane plugin for DPDK, which hands PBR rules to the
# switch of the DPU as flows, in a package of its own. Other machines' FRR stays as it is.
# Upstream's plugin starts no port and counts and removes no flow; the patches in files/
# say what each mends, and how it was seen.
#
# Tried: the patches apply to what both recipes (9.1.3, 10.6.1) make of the source, and the
# files of zebra that they change compile. The plugin was built and run from Debian's 8.4.4
# and 10.3, not by bitbake, and not on a DPU.

FILESEXTRAPATHS:prepend := "${THISDIR}/files:"

PACKAGECONFIG[dpdk] = "--enable-dp-dpdk,,dpdk"
PACKAGECONFIG:append:bluefield = " dpdk"
# Other machines of the same processor have an FRR without them.
PACKAGE_ARCH:bluefield = "${MACHINE_ARCH}"

SLIPWAY_FRR_PATCHES = " \
    0001-configure-option.patch \
    0002-incoming-ifindex.patch \
    0003-resolve-again.patch \
    0004-eal-arguments.patch \
    0005-start-ports.patch \
    0006-match-the-rule.patch \
    0007-keep-flows.patch \
    0008-port-json.patch \
    0010-kernel-ports.patch \
    0011-rules-on-their-way.patch \
    0012-take-back.patch \
    0013-rule-priority.patch \
"
# What 9.1 needs besides: it does not compile with a DPDK of today, and its pbrd sends
# rules without addresses that zebra refuses.
SLIPWAY_FRR_PATCHES_FIRST = "0000-build-with-dpdk-22.11.patch"
SLIPWAY_FRR_PATCHES_LAST = "0009-rule-family.patch"

# The folder of this version's patches, or nothing. Debian has 8.4 and 10.3, for which
# files/ has patches too; see debian.txt there.
def slipway_frr_folder(d):
    folders = {'9.1': '9.1', '10.6': '10'}
    return folders.get('.'.join(d.getVar('PV').split('.')[:2]), '')

def slipway_frr_uris(d):
    folder = slipway_frr_folder(d)
    names = d.getVar('SLIPWAY_FRR_PATCHES').split() if folder else []
    if folder == '9.1':
        names.insert(0, d.getVar('SLIPWAY_FRR_PATCHES_FIRST'))
        names.append(d.getVar('SLIPWAY_FRR_PATCHES_LAST'))
    return ' '.join('file://%s/%s' % (folder, name) for name in names)

SRC_URI:append:bluefield = " ${@slipway_frr_uris(d)}"

python () {
    plugins = {'dpdk', 'doca'} & set(d.getVar('PACKAGECONFIG').split())
    if plugins and not slipway_frr_folder(d):
        raise bb.parse.SkipRecipe('FRR %s: its plugins for offload do not work, and there are patches for 9.1 and 10.6 only: use the frr of scarthgap or of wrynose, or take %s out of its PACKAGECONFIG' % (d.getVar('PV'), ' and '.join(sorted(plugins))))
}

# Where files are unpacked changed its name in Yocto 5.1.
SLIPWAY_FRR_UNPACKED = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"

# What the suites dpu-pbr and dpu-doca give FRR, to see what becomes of it.
SRC_URI:append:bluefield = " file://rules.txt"
do_install:append:bluefield() {
	install -D -m 0644 ${SLIPWAY_FRR_UNPACKED}/rules.txt ${D}${datadir}/slipway/frr-rules.txt
}
SUMMARY:${PN}-dplane-rules = "Rules that a plugin must offload, or leave to the kernel"
FILES:${PN}-dplane-rules = "${datadir}/slipway/frr-rules.txt"

PACKAGES:prepend:bluefield = "${PN}-dplane-dpdk ${PN}-dplane-rules "
SUMMARY:${PN}-dplane-dpdk = "zebra's dataplane plugin for DPDK"
FILES:${PN}-dplane-dpdk = "${libdir}/frr/modules/zebra_dplane_dpdk.so"
# netbase has /etc/protocols, without which pbrd knows no "match ip-protocol udp".
RDEPENDS:${PN}-dplane-dpdk = "${PN} ${PN}-dplane-rules dpdk netbase"

require frr-doca.inc

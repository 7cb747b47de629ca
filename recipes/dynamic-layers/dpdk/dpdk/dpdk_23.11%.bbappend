# Tried with scarthgap: parsed for both machines; DPDK 23.11.1 with these options was
# configured, not compiled, for arm64 by Debian 12's meson and cross compiler.
#
# DPDK for BlueFields: mlx5 through rdma-core, mldev, what drivers out of its tree need,
# and the test programs in a package of their own. Other machines' DPDK stays as it is.

COMPATIBLE_MACHINE:bluefield = "^bluefield[23]$"

PACKAGECONFIG[mlx5] = ",,rdma-core"
PACKAGECONFIG:append:bluefield = " mlx5"

# A cross build takes its SoC from a cross file alone, and stops without one. The name is
# that of the machine, but that DPDK calls the BlueField-2 "bluefield".
SLIPWAY_DPDK_PLATFORM:bluefield2 = "bluefield"
SLIPWAY_DPDK_PLATFORM:bluefield3 = "bluefield3"
do_write_config:append:bluefield() {
	printf "[properties]\nplatform = '%s'\n" ${SLIPWAY_DPDK_PLATFORM} > ${WORKDIR}/dpdk.cross
}

# Named drivers and programs must be built, else meson stops: an image without mlx5 would
# be found out on the board. Shared libraries, since a plugin that is loaded into a
# program with its own copy of a library registers itself with the wrong one.
SLIPWAY_DPDK_DRIVERS = "bus/auxiliary,bus/pci,bus/vdev,mempool/ring,common/mlx5,net/mlx5,\
net/af_packet,net/null,net/ring,net/tap,common/cnxk,ml/cnxk"
SLIPWAY_DPDK_APPS = "pdump,proc-info,test-pmd,test-flow-perf,test-mldev"
EXTRA_OEMESON:bluefield = " \
    --cross-file ${WORKDIR}/dpdk.cross -Dcpu_instruction_set=generic \
    -Ddefault_library=shared -Denable_driver_sdk=true -Dtests=false \
    -Denable_drivers=${SLIPWAY_DPDK_DRIVERS} -Denable_apps=${SLIPWAY_DPDK_APPS} \
"

# Other machines of the same processor have a DPDK without them.
PACKAGE_ARCH:bluefield = "${MACHINE_ARCH}"

SUMMARY:${PN}-test-apps = "testpmd, test-mldev, test-flow-perf and proc-info"
PACKAGES:prepend:bluefield = "${PN}-test-apps "
FILES:${PN}-test-apps = " \
    ${bindir}/dpdk-proc-info \
    ${bindir}/dpdk-test-flow-perf \
    ${bindir}/dpdk-test-mldev \
    ${bindir}/dpdk-testpmd \
"
RDEPENDS:${PN}-tools:append:bluefield = " python3-core"

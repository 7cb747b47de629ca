DESCRIPTION = "Simulated ports of a BlueField: veth pairs, and places behind them as network namespaces"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0"

# The script is that of Slipway's software rig.
FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../ci/rig:"
SRC_URI = "file://ports.sh file://dpu-ports.service file://05-dpu-ports.network file://ports.conf"

inherit dpkg-raw

DEBIAN_DEPENDS = "ethtool, iproute2, procps, systemd"

do_install() {
    install -D -m 0755 '${WORKDIR}/ports.sh' '${D}/usr/sbin/dpu-ports'
    install -D -m 0644 '${WORKDIR}/dpu-ports.service' '${D}/usr/lib/systemd/system/dpu-ports.service'
    install -D -m 0644 '${WORKDIR}/05-dpu-ports.network' '${D}/usr/lib/systemd/network/05-dpu-ports.network'
    install -D -m 0644 '${WORKDIR}/ports.conf' '${D}/etc/dpu-ports/ports.conf'
    # The board's own preset enables named units alone, and the first file that names a unit counts.
    install -d '${D}/usr/lib/systemd/system-preset'
    echo 'enable dpu-ports.service' >'${D}/usr/lib/systemd/system-preset/40-dpu-ports.preset'
}

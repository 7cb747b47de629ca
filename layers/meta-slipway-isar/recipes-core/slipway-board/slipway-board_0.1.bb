# What the virtual board has over Debian's packages: the files of its overlay. Both boards
# have one description.
DESCRIPTION = "Configuration of Slipway's emulated boards: slots, keys, containers, network"
MAINTAINER = "Slipway <slipway@localhost>"
LICENSE = "Apache-2.0"

FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../images/boards/virt:"
RAUC_KEYRING_FILE ??= ""
SRC_URI = "file://overlay file://preinst file://postrm ${@'file://' + d.getVar('RAUC_KEYRING_FILE') + ';subdir=keyring' if d.getVar('RAUC_KEYRING_FILE') else ''}"
# The content of the keyring counts, not where it lies.
do_fetch[vardepsexclude] += "RAUC_KEYRING_FILE"
SRC_URI[vardepsexclude] += "RAUC_KEYRING_FILE"
do_install[vardepsexclude] += "RAUC_KEYRING_FILE"

inherit dpkg-raw

DPKG_ARCH = "any"
DEBIAN_DEPENDS = "rauc, grub-common, containerd, openssh-server, systemd"

do_install() {
    cp -R --no-preserve=ownership '${WORKDIR}/overlay/.' '${D}/'
    rm '${D}/etc/fstab' '${D}/etc/hosts' # which no package has; slipway-image.bb installs them
    if [ '${MACHINE_SERIAL}' != ttyS0 ]; then
        mv '${D}/etc/systemd/system/serial-getty@ttyS0.service.d' '${D}/etc/systemd/system/serial-getty@${MACHINE_SERIAL}.service.d'
    fi
    sed -i 's|^compatible=.*|compatible=${SLIPWAY_COMPATIBLE}|' '${D}/etc/rauc/system.conf'
    if [ -n '${RAUC_KEYRING_FILE}' ]; then
        install -m 0644 '${WORKDIR}/keyring${RAUC_KEYRING_FILE}' '${D}/etc/rauc/keyring.pem'
    fi
    install -d '${D}/etc/systemd/system' '${D}/etc/systemd/system-generators' '${D}/boot/env' '${D}/data'
    for unit in ${SLIPWAY_MASK}; do
        ln -s /dev/null '${D}/etc/systemd/system/'$unit
    done
    for generator in ${SLIPWAY_MASK_GENERATORS}; do
        ln -s /dev/null '${D}/etc/systemd/system-generators/'$generator
    done
    # The last line keeps Isar from enabling all other units of the image.
    install -d '${D}/usr/lib/systemd/system-preset'
    printf 'enable %s\n' ${SLIPWAY_ENABLE} >'${D}/usr/lib/systemd/system-preset/50-slipway.preset'
    echo 'disable *' >>'${D}/usr/lib/systemd/system-preset/50-slipway.preset'
}
SLIPWAY_ENABLE ?= "systemd-networkd.service containerd.service rauc-still-good.service slipway-identity.service ssh.service"

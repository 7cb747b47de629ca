DESCRIPTION = "Board with two root slots, RAUC, containerd and slipway-hook"
LICENSE = "Apache-2.0"
PV = "0.1"
# BUILD_ID in /etc/os-release.
ISAR_RELEASE_CMD ?= "echo ${PV}"

inherit image

IMAGE_PREINSTALL += " \
    containerd \
    dbus \
    e2fsprogs \
    grub-common \
    iproute2 \
    openssh-server \
    rauc \
    rauc-service \
    runc \
    systemd-sysv \
    tiny-initramfs \
    udev \
    xz-utils \
"
IMAGE_INSTALL += "slipway-board slipway-crosscheck slipway-hook slipway-rest"

# The virtual board's, in place of Isar's fstab and of the hosts that netbase makes.
FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/../../images/boards/virt/overlay:"
SRC_URI += "file://etc/fstab file://etc/hosts"
image_configure_fstab() {
    sudo install -m 0644 '${WORKDIR}/etc/fstab' '${WORKDIR}/etc/hosts' '${IMAGE_ROOTFS}/etc/'
}

# What a board has no use for, and an update would carry.
SLIPWAY_EXCLUDE ?= " \
    /usr/share/doc/* \
    /usr/share/man/* \
    /usr/share/info/* \
    /usr/share/locale/* \
    /usr/share/grub/* \
    /usr/lib/udev/hwdb.d/* \
    /lib/udev/hwdb.d/* \
    /usr/bin/containerd-shim \
    /usr/bin/containerd-shim-runc-v1 \
"
ROOTFS_CONFIGURE_COMMAND += "slipway_configure_dpkg"
slipway_configure_dpkg() {
    set -f
    printf 'path-exclude=%s\n' ${SLIPWAY_EXCLUDE} | sudo tee '${IMAGE_ROOTFS}/etc/dpkg/dpkg.cfg.d/slipway'
    set +f
}

# Each board gets its own keys when it is flashed. An empty machine-id is made anew at boot,
# as "uninitialized" would be too, but without what systemd does at a first boot.
ROOTFS_INSTALL_COMMAND += "slipway_delete_keys"
slipway_delete_keys() {
    sudo rm -f '${IMAGE_ROOTFS}'/etc/ssh/ssh_host_*
}
ROOTFS_POSTPROCESS_COMMAND += "slipway_finish"
slipway_finish() {
    sudo truncate -s 0 '${IMAGE_ROOTFS}/etc/machine-id'
    sudo chown root:root '${IMAGE_ROOTFS}/etc/apt/trusted.gpg.d' # Isar leaves it to the user who builds
    sudo install -d '${IMAGE_ROOTFS}/etc/slipway'
    echo '{"board":"${MACHINE}","key":"'"$(${ISAR_RELEASE_CMD})"'"}' | sudo tee '${IMAGE_ROOTFS}/etc/slipway/image.json'
    echo '${MACHINE}' | sudo tee '${IMAGE_ROOTFS}/etc/hostname'
}

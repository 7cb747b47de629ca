# Tried with poky and meta-tegra scarthgap: parsed and dry-run. Not yet built.
SUMMARY = "The least image that Slipway can reach, prove and give containers' libraries"
LICENSE = "MIT"

inherit core-image

IMAGE_FEATURES += "ssh-server-openssh"
IMAGE_INSTALL += "openssh-sftp-server slipway-hook"

# There is no password. SLIPWAY_AUTHORIZED_KEYS names a file of SSH public keys on
# the building machine; whoever holds one of them can log in as root.
SLIPWAY_AUTHORIZED_KEYS ??= ""

install_authorized_keys() {
	if [ -n "${SLIPWAY_AUTHORIZED_KEYS}" ]; then
		install -d -m 0700 ${IMAGE_ROOTFS}${ROOT_HOME}/.ssh
		install -m 0600 ${SLIPWAY_AUTHORIZED_KEYS} ${IMAGE_ROOTFS}${ROOT_HOME}/.ssh/authorized_keys
	fi
}
ROOTFS_POSTPROCESS_COMMAND += "install_authorized_keys"
do_rootfs[file-checksums] += "${@ '%s:True' % d.getVar('SLIPWAY_AUTHORIZED_KEYS') if d.getVar('SLIPWAY_AUTHORIZED_KEYS') else ''}"

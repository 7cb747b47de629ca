# Tried: parsed and dry-run for the boards that ci/TESTED.md names. Not yet built.
SUMMARY = "The least image that Slipway can reach, prove and give containers' libraries"
DESCRIPTION = "systemd, an SSH server and the container hook. SLIPWAY_AUTHORIZED_KEYS names the keys \
that may log in."
LICENSE = "MIT"

inherit core-image extrausers

IMAGE_FEATURES += "ssh-server-openssh"
IMAGE_INSTALL += "openssh-sftp-server slipway-hook"

# Nobody has a password. SLIPWAY_AUTHORIZED_KEYS is a file of SSH public keys on the
# building machine; whoever holds one of them can log in as the user slipway, who may
# read the journal and no more. Where it is not set, nobody can log in.
SLIPWAY_AUTHORIZED_KEYS ??= ""

# With "1" the same keys open root, which deploying, the container suites and updates
# need: the board's ssh.user is root for them.
SLIPWAY_ROOT_LOGIN ??= "0"

# "*" is no password that could match; "!" would lock the account for keys as well.
EXTRA_USERS_PARAMS = " \
    groupadd --force --system systemd-journal; \
    useradd --create-home --home-dir ${SLIPWAY_HOME} --shell /bin/sh --password '*' --groups systemd-journal slipway; \
"
SLIPWAY_HOME = "/home/slipway"

python () {
    keys = d.getVar('SLIPWAY_AUTHORIZED_KEYS')
    if keys and not os.path.isfile(keys):
        bb.fatal('SLIPWAY_AUTHORIZED_KEYS: there is no file %s; name one with SSH public keys by its whole path' % keys)
}

slipway_keys_for() {
	install -d -m 0700 -o $1 -g $1 ${IMAGE_ROOTFS}$2/.ssh
	install -m 0600 -o $1 -g $1 ${SLIPWAY_AUTHORIZED_KEYS} ${IMAGE_ROOTFS}$2/.ssh/authorized_keys
}

slipway_logins() {
	# sshd goes by the first line that speaks of a setting. Not every release's
	# sshd_config reads sshd_config.d.
	root=${@'prohibit-password' if bb.utils.to_boolean(d.getVar('SLIPWAY_ROOT_LOGIN')) else 'no'}
	for config in ${IMAGE_ROOTFS}${sysconfdir}/ssh/sshd_config*; do
		[ -f $config ] || continue
		sed -i "1i PasswordAuthentication no\nPermitRootLogin $root" $config
	done
	[ -n "${SLIPWAY_AUTHORIZED_KEYS}" ] || return 0
	slipway_keys_for slipway ${SLIPWAY_HOME}
	[ $root = no ] || slipway_keys_for root ${ROOT_HOME}
}
# Up to Yocto 4.0 commands were separated by semicolons.
ROOTFS_POSTPROCESS_COMMAND:append = " slipway_logins;"
do_rootfs[file-checksums] += "${@'%s:True' % d.getVar('SLIPWAY_AUTHORIZED_KEYS') if d.getVar('SLIPWAY_AUTHORIZED_KEYS') else ''}"

# Tried with scarthgap: parsed. Not yet built.
SUMMARY = "RAUC bundle that brings a board with two slots the full image"
DESCRIPTION = "A board with slipway-slots takes this bundle. It is signed by RAUC_KEY_FILE, and has a list of \
blocks, so that a board fetches only what changed."
SECTION = "base"
LICENSE = "MIT"

inherit bundle

# It must be what system.conf says (slipway-slots).
RAUC_BUNDLE_COMPATIBLE = "slipway-${MACHINE}"
RAUC_BUNDLE_FORMAT = "verity"
RAUC_BUNDLE_VERSION ?= "${DISTRO_VERSION}"

SLIPWAY_BUNDLE_IMAGE ?= "slipway-image-full"
RAUC_BUNDLE_SLOTS = "rootfs"
RAUC_SLOT_rootfs = "${SLIPWAY_BUNDLE_IMAGE}"
RAUC_SLOT_rootfs[fstype] = "ext4"
# With it a board fetches only the blocks that it does not have yet.
RAUC_SLOT_rootfs[adaptive] = "block-hash-index"

# meta-rauc's names for the key that signs, its certificate, and the certificates that
# the bundle is checked against. All lie on the building machine; none is shipped.
python do_signer() {
    for name in ("RAUC_KEY_FILE", "RAUC_CERT_FILE"):
        path = d.getVar(name)
        if not path or not os.path.isfile(path):
            bb.fatal("%s is %r, and must name a file: export RAUC_KEY_FILE and RAUC_CERT_FILE, "
                     "the key and the certificate that boards shall trust, and "
                     "RAUC_KEYRING_FILE, the certificates that they trust" % (name, path or ""))
}
addtask signer before do_configure

COMPATIBLE_MACHINE = "${@'.*' if 'slipway-slots' in (d.getVar('MACHINE_ESSENTIAL_EXTRA_RDEPENDS') or '') else '(^$)'}"

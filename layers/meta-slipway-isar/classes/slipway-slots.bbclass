# Images of two root slots that RAUC switches: slot is the root file system, esp and bootenv
# are what the boot loader needs, and raucb is the update of the slot that does not run.
SLIPWAY_EARLY = "set root=(hd0,gpt2)\nset prefix=(hd0,gpt2)\nnormal /grub.cfg\n"

# The same files have to make the same file system: by another UUID each build would differ
# from the last in every folder, and a streamed update would fetch all of it.
SLIPWAY_UUID = "5c1f7c5e-51b0-4a7e-9d0e-0a5a11b0a4d5"
SLIPWAY_MKE2FS = "mke2fs -q -F -t ext4 -U ${SLIPWAY_UUID} -E hash_seed=${SLIPWAY_UUID},lazy_itable_init=0,lazy_journal_init=0,nodiscard"

IMAGE_SRC_URI:bootenv = "file://grub.cfg.in"
# The bundle's manifest and hook are those of the virtual board.
FILESEXTRAPATHS:prepend := "${LAYERDIR_slipway-isar}/recipes-core/images/files:${LAYERDIR_slipway-isar}/../../images/boards/virt:"

IMAGER_INSTALL:slot = "e2fsprogs"
IMAGE_CMD:slot() {
    truncate -s ${SLIPWAY_SLOT_MIB}M '${IMAGE_FILE_HOST}'
    ${SUDO_CHROOT} env E2FSPROGS_FAKE_TIME=${SOURCE_DATE_EPOCH} ${SLIPWAY_MKE2FS} -d '${PP_ROOTFS}' '${IMAGE_FILE_CHROOT}'
}

# Below 33 MiB firmware would take FAT32 with clusters of one sector for FAT16.
IMAGER_INSTALL:esp = "dosfstools mtools grub-common ${GRUB_BOOTLOADER_INSTALL}"
IMAGE_CMD:esp() {
    printf '${SLIPWAY_EARLY}' >'${WORKDIR}/early.cfg'
    rm -f '${IMAGE_FILE_HOST}'
    truncate -s 33M '${IMAGE_FILE_HOST}'
    imager_run -p -d ${PP_WORK} -u root <<'EOIMAGER'
        set -e
        grub-mkimage -O ${GRUB_FORMAT} -o core.efi -c early.cfg -p '(hd0,gpt2)' \
            part_gpt ext2 normal linux loadenv test echo reboot
        mkfs.vfat -F 32 -s 1 '${IMAGE_FILE_CHROOT}'
        mmd -i '${IMAGE_FILE_CHROOT}' ::/EFI ::/EFI/BOOT
        mcopy -i '${IMAGE_FILE_CHROOT}' core.efi '::/EFI/BOOT/${EFI_NAME}'
EOIMAGER
}

# It has the environment by which RAUC says which slot to try, and a second one for when a
# power cut has damaged that. It has no journal, as GRUB writes to it and replays none.
IMAGER_INSTALL:bootenv = "e2fsprogs grub-common"
IMAGE_CMD:bootenv() {
    sudo rm -rf '${WORKDIR}/bootenv' # the imager's files are root's
    mkdir '${WORKDIR}/bootenv'
    sed 's|@CMDLINE@|${@' '.join(d.getVar('SLIPWAY_CMDLINE').split())}|' '${WORKDIR}/grub.cfg.in' >'${WORKDIR}/bootenv/grub.cfg'
    truncate -s 16M '${IMAGE_FILE_HOST}'
    imager_run -p -d ${PP_WORK} -u root <<'EOIMAGER'
        set -e
        for env in bootenv/grubenv bootenv/grubenv.good; do
            grub-editenv $env create
            grub-editenv $env set 'ORDER=A B' LAST=A A_OK=1 A_TRY=0 A_PROVED=1 B_OK=0 B_TRY=0 B_PROVED=0
        done
        chown -R 0:0 bootenv
        env E2FSPROGS_FAKE_TIME=${SOURCE_DATE_EPOCH} ${SLIPWAY_MKE2FS} -O ^has_journal -d bootenv '${IMAGE_FILE_CHROOT}'
EOIMAGER
}

IMAGE_TYPEDEP:wic += "slot esp bootenv"
IMAGE_TYPEDEP:raucb = "slot"

# An update without a version of its own has the time at which it was made.
SLIPWAY_VERSION ?= ""
RAUC_KEY_FILE ??= ""
RAUC_CERT_FILE ??= ""
RAUC_KEYRING_FILE ??= ""

def slipway_key_folders(d):
    files = [d.getVar(v) or '' for v in ('RAUC_KEY_FILE', 'RAUC_CERT_FILE', 'RAUC_KEYRING_FILE')]
    return ' '.join(sorted({os.path.dirname(f) for f in files if os.path.isabs(f)}))

SCHROOT_MOUNTS += "${@slipway_key_folders(d)}"
SCHROOT_MOUNTS[vardepvalue] = ""

IMAGE_SRC_URI:raucb = "file://bundle"
IMAGER_INSTALL:raucb = "rauc squashfs-tools"
IMAGE_CMD:raucb[vardepsexclude] = "RAUC_KEY_FILE RAUC_CERT_FILE RAUC_KEYRING_FILE"
do_image_raucb[file-checksums] += "${@(d.getVar('RAUC_CERT_FILE') or '') + ':True' if os.path.isabs(d.getVar('RAUC_CERT_FILE') or '') else ''}"
# Small blocks, because who streams a bundle fetches whole ones.
IMAGE_CMD:raucb() {
    if [ -z '${RAUC_KEY_FILE}' ] || [ -z '${RAUC_CERT_FILE}' ] || [ -z '${RAUC_KEYRING_FILE}' ]; then
        bbfatal "no key signs the update: set RAUC_KEY_FILE, RAUC_CERT_FILE and RAUC_KEYRING_FILE to files in PEM, or take raucb out of IMAGE_FSTYPES"
    fi
    sudo rm -rf '${WORKDIR}/content'
    mkdir '${WORKDIR}/content'
    version='${SLIPWAY_VERSION}'
    sed "s|^compatible=.*|compatible=${SLIPWAY_COMPATIBLE}|; s|@VERSION@|${version:-$(date -u +%Y%m%d%H%M%S)}|" '${WORKDIR}/bundle/manifest.raucm' >'${WORKDIR}/content/manifest.raucm'
    install -m 0755 '${WORKDIR}/bundle/hook' '${WORKDIR}/content/hook'
    cp --sparse=always '${DEPLOY_DIR_IMAGE}/${IMAGE_FULLNAME}.slot' '${WORKDIR}/content/root.ext4'
    rm -f '${IMAGE_FILE_HOST}'
    imager_run -p -d ${PP_WORK} -u root -- rauc bundle --cert='${RAUC_CERT_FILE}' --key='${RAUC_KEY_FILE}' --keyring='${RAUC_KEYRING_FILE}' \
        --mksquashfs-args='-comp zstd -Xcompression-level 3 -b 32k' content '${IMAGE_FILE_CHROOT}'
    sudo rm -rf '${WORKDIR}/content'
}

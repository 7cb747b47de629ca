# The image type "bfb": a boot stream that installs the image on a BlueField. Push it
# through rshim: slipway flash <board> /dev/rshim0, or cat FILE > /dev/rshim0/boot.
#
#   SLIPWAY_BOOTIMAGES = "/path"    NVIDIA's default.bfb and boot_update2.cap; see the
#                                   recipe mlxbf-bootimages. Without it none is made.
#
# mlx-mkbfb of NVIDIA's bfscripts packs it, although package flash/bfb can too: it is
# Python without other modules, so the host's is enough, while Slipway itself wants a
# newer Go than Yocto has. Both make the same bytes, which tests in flash/bfb show, and
# "slipway bfb check" looks at the stream once more before it is pushed.
#
# Not a tar of the root file system, but the whole disk travels: partitions, loader and
# slots are then those of efi-slots.wks.in, as on a disk that "slipway flash" writes.
#
# Tried: the function that packs, with dummy parts; Linux 6.1 in QEMU (amd64) started the
# initramfs, which wrote its disk and proved it. No BlueField has started one.

# Which chip's ACPI tables the installer must find, and where it writes.
SLIPWAY_BFB_CHIP ??= ""
SLIPWAY_BFB_DISK ??= "/dev/mmcblk0"

# For BlueField-1 and 2, and for BlueField-3.
SLIPWAY_BFB_ARGS_V0 ??= "console=ttyAMA1 console=hvc0 console=ttyAMA0 earlycon=pl011,0x01000000 earlycon=pl011,0x01800000 initrd=initramfs"
SLIPWAY_BFB_ARGS_V2 ??= "console=hvc0 console=ttyAMA0 earlycon=pl011,0x13010000 initrd=initramfs"
# UEFI's name of the boot stream as a file system, and the kernel in it.
SLIPWAY_BFB_PATH ??= "VenHw(F019E406-8C9C-11E5-8797-001ACA00BFC4)/Image"

IMAGE_TYPES += "bfb"
IMAGE_TYPEDEP:bfb = "wic.zst"
do_image_bfb[depends] += " \
    bfscripts-native:do_populate_sysroot \
    cpio-native:do_populate_sysroot \
    mlxbf-bootimages:do_deploy \
    slipway-bfb-installer:do_image_complete \
    virtual/kernel:do_deploy \
    zstd-native:do_populate_sysroot \
"
do_image_bfb[cleandirs] += "${WORKDIR}/bfb"

# The installer's folder: the image and what it is to be written to.
slipway_bfb_payload() {
	install -d ${WORKDIR}/bfb/slipway
	cp ${IMGDEPLOYDIR}/${IMAGE_NAME}.wic.zst ${WORKDIR}/bfb/slipway/disk.zst
	cat > ${WORKDIR}/bfb/slipway/settings <<EOF
chip=${SLIPWAY_BFB_CHIP}
disk=${SLIPWAY_BFB_DISK}
bytes=$(zstd -q -d -c ${WORKDIR}/bfb/slipway/disk.zst | wc -c)
sha256=$(zstd -q -d -c ${WORKDIR}/bfb/slipway/disk.zst | sha256sum | cut -d ' ' -f 1)
EOF
}

# Archives can stand one behind the other in an initramfs. The second is not packed, as
# the image in it is, and the kernel finds it at a multiple of 4 bytes only.
slipway_bfb_initramfs() {
	out=${WORKDIR}/bfb/initramfs
	cp ${DEPLOY_DIR_IMAGE}/slipway-bfb-installer-${MACHINE}.cpio.gz $out
	truncate -s %4 $out
	( cd ${WORKDIR}/bfb && find slipway | LC_ALL=C sort | cpio --quiet --reproducible -o -H newc -R 0:0 >> $out )
}

IMAGE_CMD:bfb() {
	[ -n "${SLIPWAY_BFB_CHIP}" ] || bbfatal "SLIPWAY_BFB_CHIP is not set; the installer would not know which chip the image is for"
	slipway_bfb_payload
	slipway_bfb_initramfs
	firmware=${DEPLOY_DIR_IMAGE}/mlxbf-bootimages
	mlx-mkbfb --image ${DEPLOY_DIR_IMAGE}/${KERNEL_IMAGETYPE} --initramfs ${WORKDIR}/bfb/initramfs \
		--capsule $firmware/boot_update2.cap \
		--boot-args-v0 "=${SLIPWAY_BFB_ARGS_V0}" --boot-args-v2 "=${SLIPWAY_BFB_ARGS_V2}" \
		--boot-path "=${SLIPWAY_BFB_PATH}" --boot-desc "=Slipway's installer" \
		$firmware/default.bfb ${IMGDEPLOYDIR}/${IMAGE_NAME}.bfb
	mlx-mkbfb -c ${IMGDEPLOYDIR}/${IMAGE_NAME}.bfb
}

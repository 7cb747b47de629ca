# The BlueField boards' kernel: arm64's own defconfig, which boots by UEFI and ACPI,
# and the drivers that it leaves out. NVIDIA's fork has more (mlxbf-ptm, mlxbf-pka);
# they are not in Linux. Other machines do not look into the folder: kernel-yocto hashes
# each .cfg of a folder that it may read. Tried with scarthgap: parsed; not compiled.
FILESEXTRAPATHS:prepend:efi-slots := "${THISDIR}/${BPN}:"

COMPATIBLE_MACHINE:bluefield = "^bluefield[23]$"
KBUILD_DEFCONFIG:bluefield = "defconfig"
# What the defconfig does not name is as Kconfig has it, instead of off.
KCONFIG_MODE:bluefield = "alldefconfig"
SRC_URI:append:efi-slots = " file://efi-slots.cfg"
SRC_URI:append:bluefield = " file://bluefield.cfg"

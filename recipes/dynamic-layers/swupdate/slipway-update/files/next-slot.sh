#!/bin/sh
# Runs on the board once the other slot is written, and makes that the next to boot.
set -e

case "$(nvbootctrl get-current-slot)" in
0) next=1 status=RootfsStatusSlotB ;;
1) next=0 status=RootfsStatusSlotA ;;
*) echo "nvbootctrl does not name the slot that runs"; exit 1 ;;
esac

# A slot that once failed to boot stays barred until its status is reset.
. /usr/bin/uefi_common.func
set_efi_var "$status" 781e084c-a330-417c-b678-38e696380cb9 '\x00\x00\x00\x00'

# The firmware takes the capsule at the next boot and then boots the slot that it
# updated. Without one (left out of the update) the slot is switched here.
if [ -e /boot/efi/EFI/UpdateCapsule/TEGRA_BL.Cap ]; then
	/usr/bin/oe4t-set-uefi-OSIndications
else
	nvbootctrl set-active-boot-slot "$next"
fi
